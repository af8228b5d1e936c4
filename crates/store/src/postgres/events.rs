//! Readers of the event log: the feed across lanes, and the history of one tx.
//!
//! A row of the feed is a range of one lane's events, which stand in one or more turns.

use domain::{Event, LaneKey, NodeName, Timestamp, Token, TxId};
use engine::ports::{EventFilter, EventPage, EventRecord};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::Fault;
use super::headers::{WALKS_MIN, Walks, Wanted};
use super::pool::Db;
use super::rows::{lane_key, number, optional, time};
use crate::cursor::{FeedCursor, StoreTag};
use crate::encoding::{
    Malformed, bits, bound, events_from_bytes, from_stored, seqs_from_bytes, stored,
};

/// The most events of one page.
const PAGE_MAX: usize = 1_000;
/// The most ranges that one page looks at when it asks for some lanes only. A filter that matches
/// little gives short or empty pages, and `next` goes on behind what was looked at.
const RANGES_MAX: usize = 10_000;
/// The most turns that one page looks into when it asks for some kinds only.
const TURNS_MAX: usize = 2_000;
/// A page ends behind the turn with which the stored events reach this.
const PAGE_BYTES_MAX: u64 = 4 << 20;
/// The most events of a history that are read at once: their headers always fit.
const HISTORY_MAX: usize = WALKS_MIN;

/// What stands in the log for one lane and turn, as [`Turn::read`] reads it.
macro_rules! turn_columns {
    () => {
        "turn.first_seq, turn.count, turn.at, turn.node, turn.token, turn.chain_id, turn.signer, \
         turn.position, turn.range_first"
    };
}

/// Where a statement's own columns begin, behind those of [`turn_columns`].
const OWN: usize = 9;

/// One row of the log: what one lane told in one turn.
struct Turn {
    first_seq: u64,
    count: usize,
    at: Timestamp,
    node: NodeName,
    token: Token,
    lane: LaneKey,
    /// Its place in the feed: the position, and the first event of the range there.
    fed: Option<(u64, u64)>,
}

// Ranges in their order, of each its lane (when it is asked for), of each lane its turns. The first
// range may have been told in part: its turns begin with the one in which the next event stands. The
// sub-selects with a limit are look-ups by the key, whatever the planner thinks of the numbers of
// rows. A turn beyond the bytes comes without its body, to say that there is more; a row without a
// turn is an empty page.
// $1 position, $2 told there, $3 ranges, $4 turns, $5 chain, $6 signer, $7 bytes.
pub(super) const PAGE: &str = concat!(
    "SELECT ",
    turn_columns!(),
    ", CASE WHEN turn.bytes_before < $7 THEN turn.body END, \
       head.position, edge.position, edge.count \
     FROM feed_head AS head \
     LEFT JOIN ( \
       SELECT feed.position, feed.last_seq - feed.first_seq + 1 AS count \
       FROM (SELECT position, first_seq, last_seq FROM event_feed \
             WHERE position >= $1 ORDER BY position LIMIT $3) AS feed \
       ORDER BY feed.position DESC LIMIT 1 \
     ) AS edge ON true \
     LEFT JOIN ( \
       SELECT told.*, sum(octet_length(told.body)) OVER (ORDER BY told.position, told.first_seq) \
                      - octet_length(told.body) AS bytes_before \
       FROM ( \
         SELECT feed.position, feed.first_seq AS range_first, lane.chain_id, lane.signer, event.* \
         FROM ( \
           SELECT position, lane_id, first_seq, last_seq, \
                  CASE WHEN position = $1 THEN first_seq + $2 ELSE first_seq END AS from_seq \
           FROM event_feed WHERE position >= $1 ORDER BY position LIMIT $3 \
         ) AS feed \
         CROSS JOIN LATERAL ( \
           SELECT lane.chain_id, lane.signer FROM lane WHERE lane.lane_id = feed.lane_id \
             AND ($5 IS NULL OR lane.chain_id = $5) AND ($6 IS NULL OR lane.signer = $6) LIMIT 1 \
         ) AS lane \
         CROSS JOIN LATERAL ( \
           SELECT event.first_seq, event.count, event.at, event.node, event.token, event.body \
           FROM lane_event AS event \
           WHERE event.lane_id = feed.lane_id AND event.first_seq <= feed.last_seq \
             AND event.first_seq >= ( \
               SELECT first.first_seq FROM lane_event AS first \
               WHERE first.lane_id = feed.lane_id AND first.first_seq <= feed.from_seq \
               ORDER BY first.first_seq DESC LIMIT 1 \
             ) \
           ORDER BY event.first_seq LIMIT $4 \
         ) AS event \
         WHERE feed.from_seq <= feed.last_seq \
         ORDER BY feed.position, event.first_seq LIMIT $4 \
       ) AS told \
     ) AS turn ON true \
     ORDER BY turn.position, turn.first_seq"
);

pub(super) async fn events(
    db: &Db,
    tag: StoreTag,
    filter: &EventFilter,
) -> Result<EventPage, Fault> {
    let limit = filter.limit.clamp(1, PAGE_MAX);
    let asked = start(tag, filter)?;
    let asks_lanes = filter.chain_id.is_some() || filter.signer.is_some();
    // Every range has a turn and every turn an event, so more than the limit is only looked at for
    // a filter; one more says whether anything follows.
    let turns = if filter.kinds.is_empty() {
        limit
    } else {
        TURNS_MAX
    };
    let ranges = if asks_lanes { RANGES_MAX } else { turns + 1 };
    let signer = filter.signer.as_ref().map(|signer| signer.as_slice());
    let rows = db
        .read(
            PAGE,
            &[
                (&bound(asked.position), Type::INT8),
                (&bound(asked.told_of(asked.position) as u64), Type::INT8),
                (&bound(ranges as u64), Type::INT8),
                (&bound(turns as u64 + 1), Type::INT8),
                (&filter.chain_id.map(|id| bits(id.0)), Type::INT8),
                (&signer, Type::BYTEA),
                (&bound(PAGE_BYTES_MAX), Type::INT8),
            ],
        )
        .await?;
    let first = rows.first().ok_or(Malformed("head of the feed"))?;
    if asked.position > number(first, OWN + 1, "position")? {
        return Err(not_ours(filter));
    }
    let mut page = Page::new(filter, asked, limit);
    let is_whole = page.take(&rows[..rows.len().min(turns)])? && rows.len() <= turns;
    if is_whole && let Some(position) = optional(first, OWN + 2, read_position)? {
        let count = number(first, OWN + 3, "count")?;
        page.cursor = behind(position, count.saturating_sub(1));
    }
    page.finish(db, tag).await
}

pub(super) const FIND: &str = "SELECT lane_id, event_seqs FROM managed_tx WHERE tx_id = $1";

// $1 lane, $2 numbers of its events.
pub(super) const HISTORY: &str = concat!(
    "SELECT ",
    turn_columns!(),
    ", turn.body, asked.seq, head.position \
     FROM unnest($2) WITH ORDINALITY AS asked (seq, n) \
     CROSS JOIN feed_head AS head \
     CROSS JOIN LATERAL ( \
       SELECT event.*, lane.chain_id, lane.signer, feed.position, feed.first_seq AS range_first \
       FROM ( \
         SELECT first_seq, count, at, node, token, body FROM lane_event \
         WHERE lane_id = $1 AND first_seq <= asked.seq ORDER BY first_seq DESC LIMIT 1 \
       ) AS event \
       JOIN lane ON lane.lane_id = $1 \
       LEFT JOIN ( \
         SELECT position, first_seq, last_seq FROM event_feed \
         WHERE lane_id = $1 AND first_seq <= asked.seq ORDER BY first_seq DESC LIMIT 1 \
       ) AS feed ON feed.last_seq >= asked.seq \
     ) AS turn \
     ORDER BY asked.n"
);

pub(super) async fn tx_events(
    db: &Db,
    tag: StoreTag,
    id: TxId,
) -> Result<Option<Vec<EventRecord>>, Fault> {
    let found = db.read(FIND, &[(&id.0, Type::UUID)]).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let lane: i64 = row.try_get(0)?;
    let seqs = seqs_from_bytes(row.try_get(1)?)?;
    let seqs: Vec<i64> = seqs.into_iter().map(stored).collect::<Result<_, _>>()?;
    let mut history = Vec::with_capacity(seqs.len());
    for chunk in seqs.chunks(HISTORY_MAX) {
        let rows = db
            .read(HISTORY, &[(&lane, Type::INT8), (&chunk, Type::INT8_ARRAY)])
            .await?;
        let told: Vec<Told> = rows.iter().map(told).collect::<Result<_, _>>()?;
        if told.len() != chunk.len() {
            return Err(Malformed("history of a tx").into());
        }
        let walks = Walks::read(db, &wanted(&told)).await?;
        history.extend(told.into_iter().map(|told| told.record(tag, &walks)));
    }
    Ok(Some(history))
}

/// An event of a tx's history, from a row of [`HISTORY`].
fn told(row: &Row) -> Result<Told, Fault> {
    let turn = Turn::read(row)?;
    let seq = number(row, OWN + 1, "event number")?;
    let found = turn
        .events(row.try_get(OWN)?)?
        .into_iter()
        .find(|event| event.seq == seq);
    let cursor = match turn.fed {
        Some((position, range_first)) => behind(position, seq.saturating_sub(range_first)),
        // Not in the feed yet: it will come behind everything that is.
        None => FeedCursor::behind_all(number(row, OWN + 2, "position")?),
    };
    let event = found.ok_or(Malformed("history of a tx"))?;
    Ok(turn.told(event, cursor))
}

/// Where to begin.
fn start(tag: StoreTag, filter: &EventFilter) -> Result<FeedCursor, Fault> {
    match &filter.after {
        None => Ok(FeedCursor::START),
        Some(text) => FeedCursor::parse(tag, text).ok_or_else(|| not_ours(filter)),
    }
}

/// A cursor of another store, or one that lies ahead of everything ever written.
fn not_ours(filter: &EventFilter) -> Fault {
    let text = filter.after.as_deref().unwrap_or_default();
    Fault::Invalid(format!("{text:?} is not a cursor of this store"))
}

fn read_position(column: i64) -> Result<u64, Malformed> {
    from_stored(column, "position")
}

/// Behind the n-th event (from 0) of the range at a position.
fn behind(position: u64, n: u64) -> FeedCursor {
    FeedCursor::behind(position, usize::try_from(n).unwrap_or(usize::MAX))
}

/// A page that is being filled.
struct Page<'a> {
    filter: &'a EventFilter,
    limit: usize,
    /// Behind the last event that was looked at.
    cursor: FeedCursor,
    told: Vec<Told>,
}

impl<'a> Page<'a> {
    fn new(filter: &'a EventFilter, cursor: FeedCursor, limit: usize) -> Self {
        Self {
            filter,
            limit,
            cursor,
            told: Vec::new(),
        }
    }

    /// Takes turns in order, as far as the page has room; whether it had room for all.
    fn take(&mut self, rows: &[Row]) -> Result<bool, Fault> {
        let from = self.cursor;
        for row in rows {
            if row.try_get::<_, Option<i64>>(0)?.is_none() {
                return Ok(true);
            }
            let turn = Turn::read(row)?;
            let (position, range_first) = turn.fed.ok_or(Malformed("position"))?;
            let Some(body) = row.try_get::<_, Option<&[u8]>>(OWN)? else {
                return Ok(false);
            };
            let next_seq = range_first.saturating_add(from.told_of(position) as u64);
            for event in turn.events(body)? {
                if event.seq < next_seq {
                    continue;
                }
                if self.told.len() == self.limit {
                    return Ok(false);
                }
                self.cursor = behind(position, event.seq.saturating_sub(range_first));
                if is_asked(self.filter, &event) {
                    self.told.push(turn.told(event, self.cursor));
                }
            }
        }
        Ok(true)
    }

    /// Adds the headers. Ends the page earlier when they are more than one answer may hold.
    async fn finish(mut self, db: &Db, tag: StoreTag) -> Result<EventPage, Fault> {
        let walks = loop {
            let walks = Walks::read(db, &wanted(&self.told)).await?;
            if !walks.is_cut() || self.told.len() <= 1 {
                break walks;
            }
            self.told.truncate(self.told.len() / 2);
            if let Some(last) = self.told.last() {
                self.cursor = last.cursor;
            }
        };
        let told = self.told.into_iter();
        Ok(EventPage {
            events: told.map(|told| told.record(tag, &walks)).collect(),
            next: self.cursor.to_text(tag),
        })
    }
}

fn is_asked(filter: &EventFilter, event: &Event) -> bool {
    filter.kinds.is_empty() || filter.kinds.iter().any(|word| word == event.kind.as_str())
}

/// An event with what its row adds, still without its headers.
struct Told {
    lane: LaneKey,
    node: NodeName,
    token: Token,
    event: Event,
    cursor: FeedCursor,
}

impl Told {
    fn wanted(&self) -> Option<Wanted> {
        let (block, counted) = self.event.kind.counted()?;
        Some(Wanted {
            chain_id: self.lane.chain_id,
            block,
            counted,
        })
    }

    fn record(self, tag: StoreTag, walks: &Walks) -> EventRecord {
        let confirmations = self.wanted().map(|wanted| walks.walk(wanted));
        EventRecord {
            lane: self.lane,
            node: self.node,
            token: self.token,
            event: self.event,
            confirmations: confirmations.unwrap_or_default(),
            cursor: self.cursor.to_text(tag),
        }
    }
}

fn wanted(told: &[Told]) -> Vec<Wanted> {
    told.iter().filter_map(Told::wanted).collect()
}

impl Turn {
    /// A row of [`turn_columns`].
    fn read(row: &Row) -> Result<Self, Fault> {
        let count = usize::try_from(row.try_get::<_, i32>(1)?);
        let position = optional(row, 7, read_position)?;
        let range_first = optional(row, 8, |seq| from_stored(seq, "event number"))?;
        Ok(Self {
            first_seq: number(row, 0, "event number")?,
            count: count.map_err(|_negative| Malformed("count"))?,
            at: time(row, 2)?,
            node: NodeName(row.try_get(3)?),
            token: Token(number(row, 4, "token")?),
            lane: lane_key(row, 5)?,
            fed: position.zip(range_first),
        })
    }

    /// Its events, in order.
    fn events(&self, body: &[u8]) -> Result<Vec<Event>, Fault> {
        let events = events_from_bytes(body, self.first_seq, self.at)?;
        if events.len() == self.count {
            Ok(events)
        } else {
            Err(Malformed("event").into())
        }
    }

    fn told(&self, event: Event, cursor: FeedCursor) -> Told {
        Told {
            lane: self.lane,
            node: self.node.clone(),
            token: self.token,
            event,
            cursor,
        }
    }
}
