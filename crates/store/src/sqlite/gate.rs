//! The gate: everything that one lane writes in one turn, under its fence, whole or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Event, LaneId, LeaseGrant, Timestamp, Tx, TxId, Writes};
use engine::ports::{CommitOutcome, Conflict, LaneBatch, RegrantOutcome, StoreError};
use rusqlite::{Connection, params};

use super::fault::{Fault, Result};
use super::rows::{
    INSERT_ATTEMPT, INSERT_TX, UpdateTx, find_row, insert_attempt, insert_tx, number,
};
use super::writer::savepoint;
use crate::encoding::{block_to_bytes, events_to_bytes, head_to_bytes, open_cost_to_bytes, stored};
use crate::folded;

/// Why a lane's batch was not written.
enum Refused {
    Fenced,
    Conflict(Conflict),
    Fault(Fault),
}

/// Applies every batch on its own: a failed lane never fails its neighbours.
pub(super) fn commit(conn: &Connection, batches: &[Arc<LaneBatch>]) -> Vec<CommitOutcome> {
    batches
        .iter()
        .map(|batch| commit_lane(conn, batch))
        .collect()
}

fn commit_lane(conn: &Connection, batch: &LaneBatch) -> CommitOutcome {
    match savepoint(conn, |conn| write_lane(conn, batch)) {
        Ok(()) => CommitOutcome::Applied,
        Err(Refused::Fenced) => CommitOutcome::Fenced,
        Err(Refused::Conflict(conflict)) => CommitOutcome::Conflict(conflict),
        // A number that is too large for its column will not fit the next time either.
        Err(Refused::Fault(Fault::Invalid(text))) => CommitOutcome::Conflict(Conflict::Rows(text)),
        // The savepoint was rolled back, so this is certain.
        Err(Refused::Fault(fault)) => {
            CommitOutcome::NotApplied(StoreError::from(fault).to_string())
        }
    }
}

/// The fence before all writes: the rest is written only if the lane row matches it.
fn write_lane(conn: &Connection, batch: &LaneBatch) -> Result<(), Refused> {
    let (lane, writes) = (batch.lease_grant.lane, &batch.writes);
    folded::check(batch).map_err(Refused::Conflict)?;
    pass_fence(conn, batch)?;
    update_txs(conn, lane, &writes.updates)?;
    insert_txs(conn, lane, &writes.inserts)?;
    insert_attempts(conn, lane, writes)?;
    mark_first_sent(conn, lane, writes)?;
    write_queue_rows(conn, lane, writes)?;
    append_events(conn, batch)
}

/// Updates the lane row where token, grant and the numbers of batches and events are those in memory. The
/// cursor never decreases.
fn pass_fence(conn: &Connection, batch: &LaneBatch) -> Result<(), Refused> {
    const SQL: &str = "UPDATE signer_nonce_cursor \
         SET next_nonce = max(next_nonce, ?5), event_seq = event_seq + ?6, batch_seq = batch_seq + 1, \
             paused = coalesce(?8, paused), updated_at = ?9, open_cost = ?10, \
             head_wait = ?11, newest_final = ?12 \
         WHERE lane_id = ?1 AND fencing_token = ?2 AND grant_id = ?3 AND event_seq = ?4 \
           AND batch_seq = ?7 RETURNING next_nonce";
    let next_nonce = stored(batch.next_nonce.0)?;
    let fence = params![
        batch.lease_grant.lane.0,
        stored(batch.lease_grant.token.0)?,
        batch.lease_grant.grant.0.as_bytes().as_slice(),
        stored(batch.event_seq_before)?,
        next_nonce,
        stored(batch.writes.events.len() as u64)?,
        stored(batch.batch_seq_before)?,
        batch.writes.paused,
        stored(batch.at.0)?,
        open_cost_to_bytes(&batch.open_cost),
        head_to_bytes(batch.head.as_ref()),
        block_to_bytes(batch.newest_final),
    ];
    let bumped: Option<i64> = find_row(conn, SQL, fence, |row| Ok(row.get(0)?))?;
    match bumped {
        Some(cursor) if cursor == next_nonce => Ok(()),
        Some(cursor) => Err(rows(format!(
            "the cursor falls from {cursor} to {next_nonce}"
        ))),
        None => Err(Refused::Fenced),
    }
}

fn update_txs(conn: &Connection, lane: LaneId, updates: &[Tx]) -> Result<(), Refused> {
    if updates.is_empty() {
        return Ok(());
    }
    let mut statement = UpdateTx::prepare(conn)?;
    // Txs that lose their nonce come first: it is free for the others of this batch.
    let (keeping, giving_up): (Vec<&Tx>, Vec<&Tx>) =
        updates.iter().partition(|tx| tx.nonce.is_some());
    for tx in giving_up.into_iter().chain(keeping) {
        match statement.execute(lane, tx) {
            Ok(true) => {}
            Ok(false) => return Err(rows(format!("tx {} is not in the lane", tx.id))),
            Err(fault) if fault.is_duplicate() => return Err(find_duplicate(conn, lane, tx)?),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

fn insert_txs(conn: &Connection, lane: LaneId, inserts: &[Tx]) -> Result<(), Refused> {
    if inserts.is_empty() {
        return Ok(());
    }
    let mut insert = conn.prepare_cached(INSERT_TX)?;
    for tx in inserts {
        match insert_tx(&mut insert, lane, tx) {
            Ok(()) => {}
            Err(fault) if fault.is_duplicate() => return Err(find_duplicate(conn, lane, tx)?),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

/// Which of a tx's keys another tx has.
fn find_duplicate(conn: &Connection, lane: LaneId, tx: &Tx) -> Result<Refused> {
    const BY_REQUEST: &str =
        "SELECT 1 FROM managed_tx WHERE lane_id = ?1 AND request_id = ?2 AND tx_id <> ?3";
    const BY_NONCE: &str =
        "SELECT 1 FROM managed_tx WHERE lane_id = ?1 AND nonce = ?2 AND tx_id <> ?3";
    let id = tx.id.0.as_bytes().as_slice();
    let request = params![lane.0, tx.request.request_id.as_str(), id];
    if conn.prepare_cached(BY_REQUEST)?.exists(request)? {
        return Ok(Refused::Conflict(Conflict::RequestId(
            tx.request.request_id.clone(),
        )));
    }
    if let Some(nonce) = tx.nonce
        && conn
            .prepare_cached(BY_NONCE)?
            .exists(params![lane.0, stored(nonce.0)?, id])?
    {
        return Ok(Refused::Conflict(Conflict::Nonce(nonce)));
    }
    Ok(rows(format!("tx {} exists already", tx.id)))
}

fn insert_attempts(conn: &Connection, lane: LaneId, writes: &Writes) -> Result<(), Refused> {
    const HAS_TX: &str = "SELECT 1 FROM managed_tx WHERE tx_id = ?1 AND lane_id = ?2";
    if writes.attempts.is_empty() {
        return Ok(());
    }
    let mut insert = conn.prepare_cached(INSERT_ATTEMPT)?;
    for attempt in &writes.attempts {
        match insert_attempt(&mut insert, lane, attempt) {
            Ok(()) => {}
            Err(fault) if fault.is_duplicate() => {
                return Err(rows(format!("attempt {} exists already", attempt.hash)));
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    let mut has_tx = conn.prepare_cached(HAS_TX)?;
    for id in txs_with_attempt_only(writes) {
        if !has_tx.exists(params![id.0.as_bytes().as_slice(), lane.0])? {
            return Err(rows(format!("an attempt's tx {id} is not in the lane")));
        }
    }
    Ok(())
}

/// The txs that get an attempt and do not change otherwise. (The others are known to be in the lane.)
fn txs_with_attempt_only(writes: &Writes) -> BTreeSet<TxId> {
    let served = writes.attempts.iter().map(|attempt| attempt.tx_id);
    let mut served: BTreeSet<TxId> = served.collect();
    for tx in writes.inserts.iter().chain(&writes.updates) {
        served.remove(&tx.id);
    }
    served
}

fn mark_first_sent(conn: &Connection, lane: LaneId, writes: &Writes) -> Result<(), Refused> {
    const SQL: &str = "UPDATE tx_attempt SET first_sent_at = coalesce(first_sent_at, ?3) \
         WHERE hash = ?1 AND lane_id = ?2";
    let mut statement = conn.prepare_cached(SQL)?;
    for (hash, Timestamp(at)) in &writes.first_sent {
        if statement.execute(params![hash.as_slice(), lane.0, stored(*at)?])? != 1 {
            return Err(rows(format!("attempt {hash} is not in the lane")));
        }
    }
    Ok(())
}

fn write_queue_rows(conn: &Connection, lane: LaneId, writes: &Writes) -> Result<(), Refused> {
    const DONE: &str = "DELETE FROM queued_tx WHERE lane_id = ?1 AND tx_id = ?2";
    const ADDED: &str = "INSERT INTO queued_tx (lane_id, tx_id) \
         SELECT lane_id, tx_id FROM managed_tx WHERE tx_id = ?2 AND lane_id = ?1";
    for id in &writes.queued_removed {
        if conn
            .prepare_cached(DONE)?
            .execute(params![lane.0, id.0.as_bytes().as_slice()])?
            != 1
        {
            return Err(rows(format!("tx {id} is not queued")));
        }
    }
    for id in &writes.queued_added {
        let added = conn
            .prepare_cached(ADDED)?
            .execute(params![lane.0, id.0.as_bytes().as_slice()]);
        match added.map_err(Fault::from) {
            Ok(1) => {}
            Ok(_none) => return Err(rows(format!("tx {id} is not in the lane"))),
            Err(fault) if fault.is_duplicate() => {
                return Err(rows(format!("tx {id} is queued already")));
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

fn append_events(conn: &Connection, batch: &LaneBatch) -> Result<(), Refused> {
    const SQL: &str = "INSERT INTO lane_event (lane_id, first_seq, count, at, node, token, body) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let events: &[Event] = &batch.writes.events;
    let Some(first) = events.first() else {
        return Ok(());
    };
    conn.prepare_cached(SQL)?.execute(params![
        batch.lease_grant.lane.0,
        stored(first.seq)?,
        stored(events.len() as u64)?,
        stored(batch.at.0)?,
        batch.node.0.as_str(),
        stored(batch.lease_grant.token.0)?,
        events_to_bytes(events, batch.at),
    ])?;
    Ok(())
}

/// Grants a lane anew. There is one writer: every earlier batch is committed or never will be.
pub(super) fn regrant(
    conn: &Connection,
    lease_grant: LeaseGrant,
    grant: domain::GrantId,
) -> Result<RegrantOutcome> {
    // The new grant may be there already, when the answer to the first call was lost.
    const SQL: &str = "UPDATE signer_nonce_cursor SET grant_id = ?4 \
         WHERE lane_id = ?1 AND fencing_token = ?2 AND grant_id IN (?3, ?4) RETURNING batch_seq";
    let key = params![
        lease_grant.lane.0,
        stored(lease_grant.token.0)?,
        lease_grant.grant.0.as_bytes().as_slice(),
        grant.0.as_bytes().as_slice(),
    ];
    let held = find_row(conn, SQL, key, |row| {
        Ok(RegrantOutcome::Held {
            lease_grant: LeaseGrant {
                grant,
                ..lease_grant
            },
            batch_seq: number(row, 0, "number of batches")?,
        })
    })?;
    Ok(held.unwrap_or(RegrantOutcome::Fenced))
}

fn rows(text: String) -> Refused {
    Refused::Conflict(Conflict::Rows(text))
}

impl<E: Into<Fault>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}
