//! Readers of txs: by id, by key, by any hash, and in pages.

use domain::{B256, LaneId, LaneKey, RequestId, Tx, TxId};
use engine::ports::{TxCursor, TxFilter, TxPage, TxRecord};
use rusqlite::{Connection, Row, params};

use super::fault::{Fault, Result};
use super::headers::Lookups;
use super::lane_lists;
use super::rows::{attempts, find_lane, find_row, lane_id, tx as read_tx, uuid};
use crate::encoding::{bound, state_number, tx_columns};

/// The most txs of one page.
pub(super) const PAGE_MAX: usize = 1_000;
/// The most rows that one page reads. A filter that matches little gives short pages, and `next`
/// continues after them: no query occupies a reader for long.
pub(super) const EXAMINED_MAX: usize = 10_000;

pub(super) const BY_ID: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx WHERE tx_id = ?1"
);

pub(super) fn tx(conn: &Connection, id: TxId) -> Result<Option<TxRecord>> {
    one(conn, BY_ID, params![id.0.as_bytes().as_slice()])
}

pub(super) const BY_REQUEST: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx WHERE lane_id = ?1 AND request_id = ?2"
);

pub(super) fn tx_by_request(
    conn: &Connection,
    key: LaneKey,
    request_id: &RequestId,
) -> Result<Option<TxRecord>> {
    let Some(lane) = find_lane(conn, key)? else {
        return Ok(None);
    };
    one(conn, BY_REQUEST, params![lane.0, request_id.as_str()])
}

pub(super) const BY_HASH: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM tx_attempt AS attempt CROSS JOIN managed_tx AS tx ON tx.tx_id = attempt.tx_id \
     WHERE attempt.hash = ?1"
);

pub(super) fn tx_by_hash(conn: &Connection, hash: B256) -> Result<Option<TxRecord>> {
    one(conn, BY_HASH, params![hash.as_slice()])
}

pub(super) const PAGE: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx INDEXED BY managed_tx_id \
     WHERE tx_id < ?1 ORDER BY tx_id DESC LIMIT ?2"
);

/// Newest first, by a walk along the index of tx ids, which are time-ordered; or lane by lane.
pub(super) fn txs(conn: &Connection, filter: &TxFilter) -> Result<TxPage> {
    if filter.is_by_lane() {
        return lane_lists::txs(conn, filter);
    }
    let limit = filter.limit.clamp(1, PAGE_MAX);
    // Above every id: one byte longer than the highest.
    let after = match filter.after {
        None => vec![0xff; 17],
        Some(TxCursor::After(id)) => id.0.as_bytes().to_vec(),
        Some(cursor @ TxCursor::InLane(..)) => {
            let text = format!("{cursor:?} is not a place in this list");
            return Err(Fault::Invalid(text));
        }
    };
    let mut lookups = Lookups::new(conn);
    let mut page = TxPage {
        txs: Vec::new(),
        next: None,
    };
    let mut statement = conn.prepare_cached(PAGE)?;
    // One more than may be read: only its presence counts.
    let mut rows = statement.query(params![after, bound(EXAMINED_MAX as u64 + 1)])?;
    let mut examined = 0;
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.txs.len() == limit || examined == EXAMINED_MAX {
            page.next = last.map(TxCursor::After);
            break;
        }
        examined += 1;
        last = Some(TxId(uuid(row, 2)?));
        if matches(&mut lookups, row, filter)? {
            page.txs.push(record(conn, &mut lookups, row)?);
        }
    }
    Ok(page)
}

fn one(conn: &Connection, sql: &str, params: &[&dyn rusqlite::ToSql]) -> Result<Option<TxRecord>> {
    find_row(conn, sql, params, |row| {
        record(conn, &mut Lookups::new(conn), row)
    })
}

/// Whether a row matches the filter, by its first columns: the rest is not even decoded.
fn matches(lookups: &mut Lookups<'_>, row: &Row<'_>, filter: &TxFilter) -> Result<bool> {
    Ok(matches_state(row, filter)?
        && (filter.chain_id.is_none() || filter.has_lane(lookups.lane(lane_id(row)?)?)))
}

pub(super) fn matches_state(row: &Row<'_>, filter: &TxFilter) -> Result<bool> {
    Ok(match filter.state {
        Some(state) => row.get::<_, i64>(1)? == i64::from(state_number(state)),
        None => true,
    })
}

pub(super) fn record(
    conn: &Connection,
    lookups: &mut Lookups<'_>,
    row: &Row<'_>,
) -> Result<TxRecord> {
    let lane = lookups.lane(lane_id(row)?)?;
    let tx = read_tx(row)?;
    let confirmations = match (&tx.inclusion, tx.counted) {
        (Some(inclusion), Some(counted)) => {
            lookups.walk(lane.chain_id, inclusion.block_hash, counted)?
        }
        (Some(_) | None, _) => Vec::new(),
    };
    Ok(TxRecord {
        lane,
        attempts: attempts(conn, tx.id)?,
        tx,
        confirmations,
        lane_wait: lookups.lane_wait(lane_id(row)?)?,
    })
}

/// A tx and its lane.
pub(super) fn find(conn: &Connection, id: TxId) -> Result<Option<(LaneId, Tx)>> {
    let id = params![id.0.as_bytes().as_slice()];
    find_row(conn, BY_ID, id, |row| Ok((lane_id(row)?, read_tx(row)?)))
}
