//! Readers of the event log: the feed across lanes, and the events of one tx.
//!
//! A row of the feed is a range of one lane's events, which stand in one or more turns.

use domain::{Event, LaneKey, NodeName, Timestamp, Token, TxId};
use engine::ports::{ChangedTxs, EventFilter, EventPage, EventRecord};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::{Fault, Result};
use super::headers::{WALKS_MIN, Walks, Wanted};
use super::pool::Pool;
use super::rows::{lane_key, number, optional, time};
use crate::cursor::{FeedCursor, StoreTag, matches_kind};
use crate::encoding::{
    Malformed, bits, bound, events_from_bytes, from_stored, seqs_from_bytes, stored,
};

/// The most events of one page.
const PAGE_MAX: usize = 1_000;
/// The most ranges that one page reads with a filter by lane. A filter that matches little gives short
/// or empty pages, and `next` continues after the ranges that were read.
const RANGES_MAX: usize = 10_000;
/// The most turns that one page reads with a filter by kind.
const TURNS_MAX: usize = 2_000;
/// A page ends after the turn with which the stored events reach this.
const PAGE_BYTES_MAX: u64 = 4 << 20;
/// The most events of a tx that are read at once: their headers always fit.
const HISTORY_MAX: usize = WALKS_MIN;

/// The columns of the log for one lane and turn, as [`Turn::read`] reads them.
macro_rules! turn_columns {
    () => {
        "turn.first_seq, turn.count, turn.at, turn.node, turn.token, turn.chain_id, turn.signer, \
         turn.position, turn.range_first"
    };
}

/// The first column of a statement after those of [`turn_columns`].
const OWN: usize = 9;

/// One row of the log: the events of one lane in one turn.
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

// Ranges in their order, each with its lane (where the filter matches) and its turns. The first range may
// have been delivered in part: its turns begin with the one that contains the next event. The sub-selects
// with a limit are look-ups by the key, whatever the planner estimates. A turn beyond the bytes comes
// without its body, to show that there is more; a row without a turn is an empty page.
// $1 position, $2 delivered there, $3 ranges, $4 turns, $5 chain, $6 signer, $7 bytes.
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
       SELECT turn.*, sum(octet_length(turn.body)) OVER (ORDER BY turn.position, turn.first_seq) \
                      - octet_length(turn.body) AS bytes_before \
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
       ) AS turn \
     ) AS turn ON true \
     ORDER BY turn.position, turn.first_seq"
);

pub(super) async fn events(pool: &Pool, tag: StoreTag, filter: &EventFilter) -> Result<EventPage> {
    read_page(pool, tag, filter).await?.finish(pool, tag).await
}

pub(super) const END: &str = "SELECT position FROM feed_head WHERE one";

/// The txs of a page, without the headers that its events count.
pub(super) async fn changed_txs(
    pool: &Pool,
    tag: StoreTag,
    after: Option<&str>,
) -> Result<ChangedTxs> {
    let Some(after) = after else {
        let head = pool.query(END, &[]).await?;
        let head = head.first().ok_or(Malformed("head of the feed"))?;
        let end = FeedCursor::after_all(number(head, 0, "position")?);
        return Ok(ChangedTxs {
            txs: Vec::new(),
            next: end.to_text(tag),
        });
    };
    let filter = EventFilter {
        after: Some(after.to_owned()),
        limit: PAGE_MAX,
        ..EventFilter::default()
    };
    let page = read_page(pool, tag, &filter).await?;
    let txs = page.pending.iter();
    Ok(ChangedTxs {
        txs: txs.filter_map(|pending| pending.event.tx_id).collect(),
        next: page.cursor.to_text(tag),
    })
}

async fn read_page<'a>(pool: &Pool, tag: StoreTag, filter: &'a EventFilter) -> Result<Page<'a>> {
    let limit = filter.limit.clamp(1, PAGE_MAX);
    let requested = start(tag, filter)?;
    let asks_lanes = filter.chain_id.is_some() || filter.signer.is_some();
    // Every range has a turn and every turn an event, so more than the limit is only read for a filter;
    // one more shows whether anything follows.
    let turns = if filter.kinds.is_empty() {
        limit
    } else {
        TURNS_MAX
    };
    let ranges = if asks_lanes { RANGES_MAX } else { turns + 1 };
    let signer = filter.signer.as_ref().map(|signer| signer.as_slice());
    let rows = pool
        .query(
            PAGE,
            &[
                (&bound(requested.position), Type::INT8),
                (
                    &bound(requested.delivered_of(requested.position) as u64),
                    Type::INT8,
                ),
                (&bound(ranges as u64), Type::INT8),
                (&bound(turns as u64 + 1), Type::INT8),
                (&filter.chain_id.map(|id| bits(id.0)), Type::INT8),
                (&signer, Type::BYTEA),
                (&bound(PAGE_BYTES_MAX), Type::INT8),
            ],
        )
        .await?;
    let first = rows.first().ok_or(Malformed("head of the feed"))?;
    if requested.position > number(first, OWN + 1, "position")? {
        return Err(not_ours(filter));
    }
    let mut page = Page {
        filter,
        limit,
        cursor: requested,
        pending: Vec::new(),
    };
    let is_whole = page.add_turns(&rows[..rows.len().min(turns)])? && rows.len() <= turns;
    if is_whole && let Some(position) = optional(first, OWN + 2, read_position)? {
        let count = number(first, OWN + 3, "count")?;
        page.cursor = after(position, count.saturating_sub(1));
    }
    Ok(page)
}

pub(super) const FIND: &str = "SELECT lane_id, event_seqs FROM managed_tx WHERE tx_id = $1";

// $1 lane, $2 numbers of its events.
pub(super) const HISTORY: &str = concat!(
    "SELECT ",
    turn_columns!(),
    ", turn.body, requested.seq, head.position \
     FROM unnest($2) WITH ORDINALITY AS requested (seq, n) \
     CROSS JOIN feed_head AS head \
     CROSS JOIN LATERAL ( \
       SELECT event.*, lane.chain_id, lane.signer, feed.position, feed.first_seq AS range_first \
       FROM ( \
         SELECT first_seq, count, at, node, token, body FROM lane_event \
         WHERE lane_id = $1 AND first_seq <= requested.seq ORDER BY first_seq DESC LIMIT 1 \
       ) AS event \
       JOIN lane ON lane.lane_id = $1 \
       LEFT JOIN ( \
         SELECT position, first_seq, last_seq FROM event_feed \
         WHERE lane_id = $1 AND first_seq <= requested.seq ORDER BY first_seq DESC LIMIT 1 \
       ) AS feed ON feed.last_seq >= requested.seq \
     ) AS turn \
     ORDER BY requested.n"
);

pub(super) async fn tx_events(
    pool: &Pool,
    tag: StoreTag,
    id: TxId,
) -> Result<Option<Vec<EventRecord>>> {
    let found = pool.query(FIND, &[(&id.0, Type::UUID)]).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let lane: i64 = row.try_get(0)?;
    let seqs = seqs_from_bytes(row.try_get(1)?)?;
    let seqs: Vec<i64> = seqs.into_iter().map(stored).collect::<Result<_, _>>()?;
    let mut tx_events = Vec::with_capacity(seqs.len());
    for chunk in seqs.chunks(HISTORY_MAX) {
        let rows = pool
            .query(HISTORY, &[(&lane, Type::INT8), (&chunk, Type::INT8_ARRAY)])
            .await?;
        let pending: Vec<PendingRecord> = rows.iter().map(pending).collect::<Result<_, _>>()?;
        if pending.len() != chunk.len() {
            return Err(Malformed("events of a tx").into());
        }
        let walks = Walks::read(pool, &wanted(&pending)).await?;
        tx_events.extend(
            pending
                .into_iter()
                .map(|pending| pending.record(tag, &walks)),
        );
    }
    Ok(Some(tx_events))
}

/// An event of a tx, from a row of [`HISTORY`].
fn pending(row: &Row) -> Result<PendingRecord> {
    let turn = Turn::read(row)?;
    let seq = number(row, OWN + 1, "event number")?;
    let found = turn
        .events(row.try_get(OWN)?)?
        .into_iter()
        .find(|event| event.seq == seq);
    let cursor = match turn.fed {
        Some((position, range_first)) => after(position, seq.saturating_sub(range_first)),
        // Not in the feed yet: it will come after all events that are.
        None => FeedCursor::after_all(number(row, OWN + 2, "position")?),
    };
    let event = found.ok_or(Malformed("events of a tx"))?;
    Ok(turn.pending(event, cursor))
}

/// Where the page begins.
fn start(tag: StoreTag, filter: &EventFilter) -> Result<FeedCursor> {
    match &filter.after {
        None => Ok(FeedCursor::START),
        Some(text) => FeedCursor::parse(tag, text).ok_or_else(|| not_ours(filter)),
    }
}

/// A cursor of another store, or one ahead of the last position.
fn not_ours(filter: &EventFilter) -> Fault {
    let text = filter.after.as_deref().unwrap_or_default();
    Fault::Invalid(format!("{text:?} is not a cursor of this store"))
}

fn read_position(column: i64) -> Result<u64, Malformed> {
    from_stored(column, "position")
}

/// After the n-th event (from 0) of the range at a position.
fn after(position: u64, n: u64) -> FeedCursor {
    FeedCursor::after(position, usize::try_from(n).unwrap_or(usize::MAX))
}

/// A page that is being filled.
struct Page<'a> {
    filter: &'a EventFilter,
    limit: usize,
    /// After the last event that was read.
    cursor: FeedCursor,
    pending: Vec<PendingRecord>,
}

impl Page<'_> {
    /// Adds turns in order, as far as the page has room; returns whether it had room for all.
    fn add_turns(&mut self, rows: &[Row]) -> Result<bool> {
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
            let next_seq = range_first.saturating_add(from.delivered_of(position) as u64);
            for event in turn.events(body)? {
                if event.seq < next_seq {
                    continue;
                }
                if self.pending.len() == self.limit {
                    return Ok(false);
                }
                self.cursor = after(position, event.seq.saturating_sub(range_first));
                if matches_kind(self.filter, &event) {
                    self.pending.push(turn.pending(event, self.cursor));
                }
            }
        }
        Ok(true)
    }

    /// Adds the headers. Ends the page earlier when they are more than one answer may hold.
    async fn finish(mut self, pool: &Pool, tag: StoreTag) -> Result<EventPage> {
        let walks = loop {
            let walks = Walks::read(pool, &wanted(&self.pending)).await?;
            if !walks.is_cut() || self.pending.len() <= 1 {
                break walks;
            }
            self.pending.truncate(self.pending.len() / 2);
            if let Some(last) = self.pending.last() {
                self.cursor = last.cursor;
            }
        };
        let pending = self.pending.into_iter();
        Ok(EventPage {
            events: pending.map(|pending| pending.record(tag, &walks)).collect(),
            next: self.cursor.to_text(tag),
        })
    }
}

/// An event with the values of its row, still without its headers.
struct PendingRecord {
    lane: LaneKey,
    node: NodeName,
    token: Token,
    event: Event,
    cursor: FeedCursor,
}

impl PendingRecord {
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

fn wanted(pending: &[PendingRecord]) -> Vec<Wanted> {
    pending.iter().filter_map(PendingRecord::wanted).collect()
}

impl Turn {
    /// A row of [`turn_columns`].
    fn read(row: &Row) -> Result<Self> {
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
    fn events(&self, body: &[u8]) -> Result<Vec<Event>> {
        let events = events_from_bytes(body, self.first_seq, self.at)?;
        if events.len() == self.count {
            Ok(events)
        } else {
            Err(Malformed("event").into())
        }
    }

    fn pending(&self, event: Event, cursor: FeedCursor) -> PendingRecord {
        PendingRecord {
            lane: self.lane,
            node: self.node.clone(),
            token: self.token,
            event,
            cursor,
        }
    }
}
