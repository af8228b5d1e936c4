//! Readers of the event log: the feed across lanes, and the events of one tx.

use domain::{Event, LaneId, NodeName, Token, TxId};
use engine::ports::{ChangedTxs, EventFilter, EventPage, EventRecord};
use rusqlite::{Connection, Row, params};

use super::fault::{Fault, Result};
use super::headers::Lookups;
use super::rows::{bytes, number, time};
use super::txs;
use crate::cursor::{FeedCursor, StoreTag, matches_kind};
use crate::encoding::{Malformed, bound, events_from_bytes, from_stored, stored};

/// The most events of one page.
const PAGE_MAX: usize = 1_000;
/// The most events (or turns of lanes that the filter excludes) that one page reads. A filter that
/// matches little gives short or empty pages, and `next` continues after the events that were read.
const EXAMINED_MAX: usize = 20_000;

macro_rules! event_columns {
    () => {
        "position, lane_id, first_seq, count, at, node, token, body"
    };
}

/// One row of the log: the events of one lane in one turn.
struct Turn {
    position: u64,
    lane: LaneId,
    count: usize,
    node: NodeName,
    token: Token,
}

pub(super) const PAGE: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM lane_event WHERE position >= ?1 ORDER BY position LIMIT ?2"
);

pub(super) fn events(conn: &Connection, tag: StoreTag, filter: &EventFilter) -> Result<EventPage> {
    let limit = filter.limit.clamp(1, PAGE_MAX);
    let mut cursor = start(conn, tag, filter.after.as_deref())?;
    let mut lookups = Lookups::new(conn);
    let mut events = Vec::new();
    let mut statement = conn.prepare_cached(PAGE)?;
    let mut rows = statement.query(params![bound(cursor.position), bound(EXAMINED_MAX as u64)])?;
    let mut examined = 0;
    'page: while let Some(row) = rows.next()? {
        let turn = Turn::read(row)?;
        let lane = lookups.lane(turn.lane)?;
        if filter.chain_id.is_some_and(|id| id != lane.chain_id)
            || filter.signer.is_some_and(|signer| signer != lane.signer)
        {
            cursor = FeedCursor::after(turn.position, turn.count.saturating_sub(1));
            examined += 1;
            continue;
        }
        let skip = cursor.delivered_of(turn.position);
        for (n, event) in turn.events(row)?.into_iter().enumerate().skip(skip) {
            if events.len() == limit || examined >= EXAMINED_MAX {
                break 'page;
            }
            examined += 1;
            cursor = FeedCursor::after(turn.position, n);
            if matches_kind(filter, &event) {
                events.push(record(&mut lookups, tag, &turn, n, event)?);
            }
        }
    }
    Ok(EventPage {
        events,
        next: cursor.to_text(tag),
    })
}

/// The txs of a page.
pub(super) fn changed_txs(
    conn: &Connection,
    tag: StoreTag,
    after: Option<&str>,
) -> Result<ChangedTxs> {
    let Some(after) = after else {
        let end = from_stored(last_position(conn)?, "position")?;
        return Ok(ChangedTxs {
            txs: Vec::new(),
            next: FeedCursor::after_all(end).to_text(tag),
        });
    };
    let filter = EventFilter {
        after: Some(after.to_owned()),
        limit: PAGE_MAX,
        ..EventFilter::default()
    };
    let page = events(conn, tag, &filter)?;
    let txs = page.events.iter();
    Ok(ChangedTxs {
        txs: txs.filter_map(|record| record.event.tx_id).collect(),
        next: page.next,
    })
}

pub(super) const TURN_OF_EVENT: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM lane_event WHERE lane_id = ?1 AND first_seq <= ?2 ORDER BY first_seq DESC LIMIT 1"
);

pub(super) fn tx_events(
    conn: &Connection,
    tag: StoreTag,
    id: TxId,
) -> Result<Option<Vec<EventRecord>>> {
    let Some((lane, tx)) = txs::find(conn, id)? else {
        return Ok(None);
    };
    let mut lookups = Lookups::new(conn);
    let mut history = Vec::with_capacity(tx.history.event_seqs.len());
    for seq in tx.history.event_seqs {
        let mut statement = conn.prepare_cached(TURN_OF_EVENT)?;
        let mut rows = statement.query(params![lane.0, stored(seq)?])?;
        let row = rows.next()?.ok_or(Malformed("events of a tx"))?;
        let turn = Turn::read(row)?;
        let found = turn
            .events(row)?
            .into_iter()
            .enumerate()
            .find(|(_, event)| event.seq == seq);
        let (n, event) = found.ok_or(Malformed("events of a tx"))?;
        history.push(record(&mut lookups, tag, &turn, n, event)?);
    }
    Ok(Some(history))
}

/// Where the page begins. A cursor ahead of the last position is not of this store.
fn start(conn: &Connection, tag: StoreTag, after: Option<&str>) -> Result<FeedCursor> {
    let Some(text) = after else {
        return Ok(FeedCursor::START);
    };
    let cursor = FeedCursor::parse(tag, text);
    let last = last_position(conn)?;
    match cursor {
        Some(cursor) if bound(cursor.position) <= last => Ok(cursor),
        Some(_) | None => Err(Fault::Invalid(format!(
            "{text:?} is not a cursor of this store"
        ))),
    }
}

fn last_position(conn: &Connection) -> Result<i64> {
    const LAST: &str =
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'lane_event'";
    Ok(conn.prepare_cached(LAST)?.query_row([], |row| row.get(0))?)
}

impl Turn {
    /// A row of [`event_columns`], without its body.
    fn read(row: &Row<'_>) -> Result<Self> {
        let count = usize::try_from(number(row, 3, "count")?);
        Ok(Self {
            position: number(row, 0, "position")?,
            lane: LaneId(row.get(1)?),
            count: count.map_err(|_too_many| Malformed("count"))?,
            node: NodeName(row.get(5)?),
            token: Token(number(row, 6, "token")?),
        })
    }

    /// Its events, in order.
    fn events(&self, row: &Row<'_>) -> Result<Vec<Event>> {
        let first_seq = number(row, 2, "event number")?;
        let events = events_from_bytes(bytes(row, 7)?, first_seq, time(row, 4)?)?;
        if events.len() == self.count {
            Ok(events)
        } else {
            Err(Malformed("event").into())
        }
    }
}

/// The record of the n-th event of a turn.
fn record(
    lookups: &mut Lookups<'_>,
    tag: StoreTag,
    turn: &Turn,
    n: usize,
    event: Event,
) -> Result<EventRecord> {
    let lane = lookups.lane(turn.lane)?;
    let confirmations = match event.kind.counted() {
        Some((block, counted)) => lookups.walk(lane.chain_id, block, counted)?,
        None => Vec::new(),
    };
    Ok(EventRecord {
        lane,
        node: turn.node.clone(),
        token: turn.token,
        event,
        confirmations,
        cursor: FeedCursor::after(turn.position, n).to_text(tag),
    })
}
