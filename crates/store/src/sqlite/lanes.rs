//! Lanes: loading them for their keepers, finding lanes with work, and listing them for people.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::lane::{HeadWait, LaneWait, MinedRows, OpenCost, OpenSummary, UNRECORDED_MAX};
use domain::lease::Lease;
use domain::{
    Attempt, FinalTx, GrantId, Header, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce, Timestamp,
    Token, Tx, TxId,
};
use engine::ports::{LaneRecord, LaneWork, LeaseRequest, UnwatchedLane, UnwatchedLanes};
use rusqlite::{Connection, params};

use super::fault::Result;
use super::headers::Lookups;
use super::lease::{halted, lease};
use super::rows::{attempts, bytes, find_lane, find_row, lane_key, number, select, tx, uuid};
use crate::encoding::{
    block_from_bytes, bound, from_stored, head_from_bytes, inclusion_from_bytes,
    open_cost_from_bytes, stored, tx_columns,
};

/// How many waiting txs one load returns at most.
const LOAD_MAX: usize = 10_000;

/// How many final txs of a loaded lane are watched for reorgs at most.
const FINALS_MAX: u64 = 100_000;

/// The lane row.
struct Cursor {
    next_nonce: Nonce,
    event_seq: u64,
    batch_seq: u64,
    token: Token,
    grant: GrantId,
    paused: bool,
    open_cost: OpenCost,
    head: Option<HeadWait>,
}

pub(super) fn load(
    conn: &Connection,
    key: LaneKey,
    lease_grant: LeaseGrant,
    watch_depth: u64,
) -> Result<Option<LaneImage>> {
    let lane = lease_grant.lane;
    let Some(cursor) = cursor(conn, lane)? else {
        return Ok(None);
    };
    if (cursor.token, cursor.grant) != (lease_grant.token, lease_grant.grant) {
        return Ok(None);
    }
    let (out, waiting) = (
        open_nonces(conn, lane, true)?,
        open_nonces(conn, lane, false)?,
    );
    let backlog_from = waiting.first().map(|range| Nonce(range.start));
    let held = merge(out, waiting);
    let consumed_below = consumed_below(conn, lane, &held)?;
    let in_flight = in_flight(conn, lane)?;
    Ok(Some(LaneImage {
        key,
        lease_grant,
        next_nonce: cursor.next_nonce,
        event_seq: cursor.event_seq,
        batch_seq: cursor.batch_seq,
        paused: cursor.paused,
        open: OpenSummary {
            queued: count_queued(conn, lane)?,
            cost: cursor.open_cost,
            head: cursor.head,
            reported: reported_headers(conn, key, &in_flight)?,
        },
        in_flight,
        backlog_from,
        consumed_below,
        held,
        mined: MinedRows {
            finals: finals(conn, lane, consumed_below, watch_depth)?,
            unrecorded: unrecorded(conn, lane)?,
        },
    }))
}

/// The rows of transactions that no tx recorded. Parameters: lane, how many.
pub(super) const UNRECORDED: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx WHERE tx.lane_id = ?1 AND tx.request_id > 'lanekeeper-unrecorded-' \
       AND tx.request_id < 'lanekeeper-unrecorded.' ORDER BY tx.request_id LIMIT ?2"
);

fn unrecorded(conn: &Connection, lane: LaneId) -> Result<Vec<Tx>> {
    let most = bound(UNRECORDED_MAX.saturating_add(1) as u64);
    select(conn, UNRECORDED, params![lane.0, most], tx)
}

pub(super) const IN_FLIGHT: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx INDEXED BY managed_tx_open \
     WHERE open = 1 AND signed = 1 AND lane_id = ?1 AND nonce IS NOT NULL ORDER BY nonce"
);

/// Txs in flight, with the attempts at their present nonces. (Attempts at a nonce that a tx lost are
/// history: another transaction has consumed it.)
fn in_flight(conn: &Connection, lane: LaneId) -> Result<Vec<(Tx, Vec<Attempt>)>> {
    let txs = select(conn, IN_FLIGHT, [lane.0], tx)?.into_iter();
    let with_attempts = txs.map(|tx| {
        let mut attempts = attempts(conn, tx.id)?;
        attempts.retain(|attempt| Some(attempt.nonce) == tx.nonce);
        Ok((tx, attempts))
    });
    with_attempts.collect()
}

/// The headers from the blocks of txs up to those that were reported as their confirmations.
fn reported_headers(
    conn: &Connection,
    key: LaneKey,
    in_flight: &[(Tx, Vec<Attempt>)],
) -> Result<Vec<Header>> {
    let mut lookups = Lookups::new(conn);
    let mut reported = BTreeMap::new();
    for (tx, _) in in_flight {
        let Some((mined, counted)) = tx.inclusion.as_ref().zip(tx.counted) else {
            continue;
        };
        if counted != mined.block_hash {
            let walk = lookups.walk(key.chain_id, mined.block_hash, counted)?;
            reported.extend(walk.into_iter().map(|header| (header.hash, header)));
        }
    }
    Ok(reported.into_values().collect())
}

pub(super) const BACKLOG: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx INDEXED BY managed_tx_open \
     WHERE open = 1 AND signed = 0 AND lane_id = ?1 AND nonce >= ?2 ORDER BY nonce LIMIT ?3"
);

pub(super) fn load_backlog(
    conn: &Connection,
    lane: LaneId,
    from: Nonce,
    limit: usize,
) -> Result<Vec<Tx>> {
    let limit = bound(limit.min(LOAD_MAX) as u64);
    select(conn, BACKLOG, params![lane.0, bound(from.0), limit], tx)
}

// Tx ids are time-ordered, so the key of the queue rows is the order of waiting.
pub(super) const QUEUED: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM queued_tx AS queued CROSS JOIN managed_tx AS tx ON tx.tx_id = queued.tx_id \
     WHERE queued.lane_id = ?1 ORDER BY queued.tx_id LIMIT ?2"
);

pub(super) fn load_queued(conn: &Connection, lane: LaneId, limit: usize) -> Result<Vec<Tx>> {
    let limit = bound(limit.min(LOAD_MAX) as u64);
    select(conn, QUEUED, params![lane.0, limit], tx)
}

pub(super) const OPEN_NONCES: &str = "SELECT nonce FROM managed_tx INDEXED BY managed_tx_open \
     WHERE open = 1 AND lane_id = ?1 AND signed = ?2 AND nonce IS NOT NULL ORDER BY nonce";

/// The nonces of open txs with or without an attempt, as ranges in order: one walk over the index, which
/// contains no final tx.
fn open_nonces(conn: &Connection, lane: LaneId, signed: bool) -> Result<Vec<Range<u64>>> {
    let mut statement = conn.prepare_cached(OPEN_NONCES)?;
    let mut rows = statement.query(params![lane.0, signed])?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    while let Some(row) = rows.next()? {
        let nonce = number(row, 0, "nonce")?;
        let end = nonce.saturating_add(1);
        match ranges.last_mut() {
            Some(last) if last.end == nonce => last.end = end,
            Some(_) | None => ranges.push(nonce..end),
        }
    }
    Ok(ranges)
}

/// Two lists of ranges that share no nonce, as one.
fn merge(some: Vec<Range<u64>>, others: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all = some;
    all.extend(others);
    all.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            Some(_) | None => merged.push(range),
        }
    }
    merged
}

pub(super) const HIGHEST_NONCE: &str =
    "SELECT max(nonce) FROM managed_tx WHERE lane_id = ?1 AND nonce < ?2";

/// One above the highest nonce of a final tx: the highest in the index that no open tx has. Steps over
/// whole ranges, so a long backlog costs nothing.
fn consumed_below(conn: &Connection, lane: LaneId, held: &[Range<u64>]) -> Result<Nonce> {
    let mut statement = conn.prepare_cached(HIGHEST_NONCE)?;
    let mut below = i64::MAX;
    let mut held = held.iter().rev().peekable();
    loop {
        let highest: Option<i64> = statement.query_row(params![lane.0, below], |row| row.get(0))?;
        let Some(highest) = highest else {
            return Ok(Nonce(0));
        };
        let highest = from_stored(highest, "nonce")?;
        while held.next_if(|range| range.start > highest).is_some() {}
        match held.peek() {
            Some(range) if range.contains(&highest) => below = stored(range.start)?,
            Some(_) | None => return Ok(Nonce(highest).next()),
        }
    }
}

pub(super) const FINALS: &str = "SELECT tx_id, inclusion, nonce FROM managed_tx INDEXED BY managed_tx_nonce \
     WHERE lane_id = ?1 AND nonce < ?2 AND open = 0 AND inclusion IS NOT NULL \
     ORDER BY nonce DESC LIMIT ?3";

/// Final txs that a reorg may still revert: from the newest downwards, which is by nonce too.
fn finals(conn: &Connection, lane: LaneId, below: Nonce, watch_depth: u64) -> Result<Vec<FinalTx>> {
    let mut statement = conn.prepare_cached(FINALS)?;
    let mut rows = statement.query(params![lane.0, stored(below.0)?, bound(FINALS_MAX)])?;
    let mut finals: Vec<FinalTx> = Vec::new();
    while let Some(row) = rows.next()? {
        let mined = inclusion_from_bytes(bytes(row, 1)?)?;
        let newest = finals
            .first()
            .map_or(mined.block_number, |tx| tx.block_number);
        if mined.block_number.saturating_add(watch_depth) < newest {
            break;
        }
        finals.push(FinalTx {
            id: TxId(uuid(row, 0)?),
            nonce: Nonce(from_stored(row.get(2)?, "nonce")?),
            block_number: mined.block_number,
            block_hash: mined.block_hash,
        });
    }
    finals.reverse();
    Ok(finals)
}

pub(super) const WITH_WORK: &str = "SELECT lane_id, \
       EXISTS (SELECT 1 FROM managed_tx AS tx INDEXED BY managed_tx_open \
               WHERE tx.open = 1 AND tx.lane_id = lane.lane_id AND tx.signed IN (0, 1) \
                 AND tx.nonce IS NOT NULL) AS has_open, \
       EXISTS (SELECT 1 FROM queued_tx AS queued WHERE queued.lane_id = lane.lane_id) AS has_queued \
     FROM lane WHERE has_open OR has_queued";

/// Lanes with txs that hold or wait for a nonce, and that no other node keeps. Lanes are few: two probes for each.
pub(super) fn lanes_with_work(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
) -> Result<Vec<LaneWork>> {
    let mut statement = conn.prepare_cached(WITH_WORK)?;
    let mut rows = statement.query([])?;
    let mut work = Vec::new();
    while let Some(row) = rows.next()? {
        let lane = LaneId(row.get(0)?);
        if is_free(conn, lane, now, lease_request)? {
            work.push(LaneWork {
                lane: lane_key(conn, lane)?,
                has_queued: row.get(2)?,
            });
        }
    }
    work.sort_unstable_by_key(|work| work.lane);
    Ok(work)
}

pub(super) const UNWATCHED: &str = "SELECT lane_id, newest_final FROM signer_nonce_cursor \
     WHERE lane_id > ?1 ORDER BY lane_id LIMIT ?2";

/// Lanes with final results to watch that no other node keeps. Lanes are few, so the page counts those without, too.
pub(super) fn unwatched_lanes(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    after: Option<LaneId>,
    limit: usize,
) -> Result<UnwatchedLanes> {
    let page = params![after.map_or(0, |lane| lane.0), bound(limit as u64)];
    let examined = select(conn, UNWATCHED, page, |row| {
        Ok((LaneId(row.get(0)?), block_from_bytes(bytes(row, 1)?)?))
    })?;
    let last = examined.last().map(|(lane, _)| *lane);
    let mut unwatched = UnwatchedLanes {
        next: last.filter(|_| examined.len() >= limit),
        ..UnwatchedLanes::default()
    };
    for (lane, newest) in examined {
        if let Some(newest) = newest
            && is_free(conn, lane, now, lease_request)?
        {
            let lane = lane_key(conn, lane)?;
            unwatched.lanes.push(UnwatchedLane { lane, newest });
        }
    }
    Ok(unwatched)
}

/// Whether no other node keeps a lane, and a node may.
fn is_free(
    conn: &Connection,
    lane: LaneId,
    now: Timestamp,
    lease_request: &LeaseRequest,
) -> Result<bool> {
    let kept_by_another =
        |lease: &Lease| lease.owner != lease_request.node && lease.is_live_for(lease_request, now);
    Ok(halted(conn, lane)?.is_none() && !lease(conn, lane)?.as_ref().is_some_and(kept_by_another))
}

pub(super) const COUNT_IN_FLIGHT: &str = "SELECT count(*) FROM managed_tx INDEXED BY managed_tx_open \
     WHERE open = 1 AND lane_id = ?1 AND signed IN (0, 1) AND nonce IS NOT NULL";

pub(super) fn lanes(conn: &Connection, keys: &[LaneKey]) -> Result<Vec<LaneRecord>> {
    let mut records = Vec::new();
    for key in keys {
        let Some(lane) = find_lane(conn, *key)? else {
            continue;
        };
        let cursor = cursor(conn, lane)?;
        let in_flight = conn
            .prepare_cached(COUNT_IN_FLIGHT)?
            .query_row([lane.0], |row| row.get::<_, i64>(0))?;
        records.push(LaneRecord {
            key: *key,
            lease: lease(conn, lane)?,
            next_nonce: cursor.as_ref().map_or(Nonce(0), |cursor| cursor.next_nonce),
            batch_seq: cursor.as_ref().map_or(0, |cursor| cursor.batch_seq),
            paused: cursor.is_some_and(|cursor| cursor.paused),
            halted: halted(conn, lane)?,
            wait: lane_wait(conn, lane)?,
            in_flight: from_stored(in_flight, "count")?,
            queued: count_queued(conn, lane)?,
        });
    }
    Ok(records)
}

fn cursor(conn: &Connection, lane: LaneId) -> Result<Option<Cursor>> {
    const SQL: &str = "SELECT next_nonce, event_seq, fencing_token, grant_id, paused, batch_seq, open_cost, head_wait \
         FROM signer_nonce_cursor WHERE lane_id = ?1";
    find_row(conn, SQL, [lane.0], |row| {
        Ok(Cursor {
            next_nonce: Nonce(number(row, 0, "nonce")?),
            event_seq: number(row, 1, "event number")?,
            token: Token(number(row, 2, "token")?),
            grant: GrantId(uuid(row, 3)?),
            paused: row.get(4)?,
            batch_seq: number(row, 5, "number of batches")?,
            open_cost: open_cost_from_bytes(bytes(row, 6)?)?,
            head: head_from_bytes(bytes(row, 7)?)?,
        })
    })
}

/// Why a lane makes no progress.
pub(super) fn lane_wait(conn: &Connection, lane: LaneId) -> Result<Option<LaneWait>> {
    const SQL: &str = "SELECT head_wait FROM signer_nonce_cursor WHERE lane_id = ?1";
    let head = find_row(conn, SQL, [lane.0], |row| {
        Ok(head_from_bytes(bytes(row, 0)?)?)
    })?;
    Ok(head.flatten().and_then(HeadWait::into_lane_wait))
}

fn count_queued(conn: &Connection, lane: LaneId) -> Result<u64> {
    let mut statement = conn.prepare_cached("SELECT count(*) FROM queued_tx WHERE lane_id = ?1")?;
    let count = statement.query_row([lane.0], |row| row.get(0))?;
    Ok(from_stored(count, "count")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        assert_eq!(merge(vec![0..2, 5..6], vec![2..5, 9..10]), [0..6, 9..10]);
        assert_eq!(merge(vec![], vec![3..4, 7..9]), [3..4, 7..9]);
        assert_eq!(merge(vec![], vec![]), []);
    }
}
