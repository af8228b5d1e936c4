//! Leases, by the store's clock. Both rows of a lane change owner together.

use std::time::Duration;

use domain::lease::{Lease, LeaseDecision};
use domain::{
    GrantId, History, Incarnation, LaneId, LaneKey, LeaseGrant, NodeName, Timestamp, Token,
};
use engine::ports::{ACCEPTED_LOSS_GAP, AcquireOutcome, LeaseRequest, RenewOutcome};
use rusqlite::{Connection, params};

use super::fault::Result;
use super::history;
use super::rows::{create_lane, find_lane, find_row, number, time, uuid};
use crate::encoding::stored;

pub(super) fn acquire(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    lanes: &[(LaneKey, GrantId)],
) -> Result<Vec<AcquireOutcome>> {
    let history = history::current(conn)?;
    lanes
        .iter()
        .map(|(key, grant)| acquire_lane(conn, now, lease_request, history, (*key, *grant)))
        .collect()
}

fn acquire_lane(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    history: History,
    (key, grant): (LaneKey, GrantId),
) -> Result<AcquireOutcome> {
    let lane = create_lane(conn, key)?;
    if let Some(reason) = halted(conn, lane)? {
        return Ok(AcquireOutcome::Halted(reason));
    }
    let held = lease(conn, lane)?;
    let decision = Lease::decide(held.as_ref(), lease_request, now);
    let (token, previous_keeper) = match (decision, held) {
        (LeaseDecision::Insert, _) | (_, None) => (Token(1), None),
        (LeaseDecision::Renew, Some(held)) => (held.token, None),
        (LeaseDecision::TakeOver, Some(held)) => {
            (held.token.next(), held.previous_keeper_of(lease_request))
        }
        (LeaseDecision::NotKeeper, Some(lease)) => {
            let left = Duration::from_millis(lease.expires_at.0.saturating_sub(now.0));
            return Ok(AcquireOutcome::NotKeeper { lease, left });
        }
    };
    let lease_grant = LeaseGrant { lane, token, grant };
    grant_lane(conn, now, lease_request, lease_grant)?;
    Ok(AcquireOutcome::Granted {
        lease_grant,
        previous_keeper,
        history,
        is_reconciled: history::is_reconciled(conn, lane, history)?,
        is_loss_accepted: history::is_loss_accepted(conn, lane, history)?,
    })
}

/// Writes both rows: the lease, and the lane row that fences all earlier keepers.
fn grant_lane(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    lease_grant: LeaseGrant,
) -> Result<()> {
    const LEASE: &str = "UPDATE signer_lease SET owner = ?2, incarnation = ?3, token = ?4, \
           renew_seq = renew_seq + 1, expires_at = ?5, updated_at = ?6 WHERE lane_id = ?1";
    const CURSOR: &str = "INSERT INTO signer_nonce_cursor \
         (lane_id, next_nonce, event_seq, fencing_token, grant_id, paused, updated_at) \
         VALUES (?1, 0, 0, ?2, ?3, 0, ?4) \
         ON CONFLICT (lane_id) DO UPDATE SET fencing_token = excluded.fencing_token, \
           grant_id = excluded.grant_id, updated_at = excluded.updated_at";
    let token = stored(lease_grant.token.0)?;
    conn.prepare_cached(LEASE)?.execute(params![
        lease_grant.lane.0,
        lease_request.node.0,
        lease_request.incarnation.0.as_bytes().as_slice(),
        token,
        stored(now.plus(lease_request.duration).0)?,
        stored(now.0)?,
    ])?;
    conn.prepare_cached(CURSOR)?.execute(params![
        lease_grant.lane.0,
        token,
        lease_grant.grant.0.as_bytes().as_slice(),
        stored(now.0)?,
    ])?;
    Ok(())
}

/// Extends the requester's leases, also expired ones that no other node took: their token is the last
/// one, so nothing of another keeper can be overwritten.
pub(super) fn renew(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Result<Vec<RenewOutcome>> {
    const SQL: &str = "UPDATE signer_lease \
         SET expires_at = ?5, renew_seq = renew_seq + 1, updated_at = ?6 \
         WHERE lane_id = ?1 AND owner = ?2 AND incarnation = ?3 AND token = ?4 \
           AND expires_at <> ?7";
    let mut statement = conn.prepare_cached(SQL)?;
    let expires_at = stored(now.plus(lease_request.duration).0)?;
    let mut answers = Vec::with_capacity(lease_grants.len());
    for lease_grant in lease_grants {
        let count = statement.execute(params![
            lease_grant.lane.0,
            lease_request.node.0,
            lease_request.incarnation.0.as_bytes().as_slice(),
            stored(lease_grant.token.0)?,
            expires_at,
            stored(now.0)?,
            stored(Lease::RELEASED.0)?,
        ])?;
        answers.push(if count == 1 {
            RenewOutcome::Renewed
        } else {
            RenewOutcome::Lost
        });
    }
    Ok(answers)
}

pub(super) fn release(
    conn: &Connection,
    now: Timestamp,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Result<()> {
    const SQL: &str = "UPDATE signer_lease SET expires_at = ?5, updated_at = ?6 \
         WHERE lane_id = ?1 AND owner = ?2 AND incarnation = ?3 AND token = ?4 \
           AND EXISTS (SELECT 1 FROM signer_nonce_cursor AS c \
             WHERE c.lane_id = ?1 AND c.fencing_token = ?4 AND c.grant_id = ?7)";
    let mut statement = conn.prepare_cached(SQL)?;
    for lease_grant in lease_grants {
        statement.execute(params![
            lease_grant.lane.0,
            lease_request.node.0,
            lease_request.incarnation.0.as_bytes().as_slice(),
            stored(lease_grant.token.0)?,
            stored(Lease::RELEASED.0)?,
            stored(now.0)?,
            lease_grant.grant.0.as_bytes().as_slice(),
        ])?;
    }
    Ok(())
}

/// Records that a lane agreed with the chain under a history, if that is still the store's.
pub(super) fn mark_reconciled(
    conn: &Connection,
    lease_grant: LeaseGrant,
    history: History,
) -> Result<bool> {
    const SQL: &str = "UPDATE signer_lease SET history = ?4, accepted = NULL \
         WHERE lane_id = ?1 AND token = ?2 AND EXISTS (SELECT 1 FROM signer_nonce_cursor AS c \
           WHERE c.lane_id = ?1 AND c.fencing_token = ?2 AND c.grant_id = ?3)";
    if history::current(conn)? != history {
        return Ok(false);
    }
    let count = conn.prepare_cached(SQL)?.execute(params![
        lease_grant.lane.0,
        stored(lease_grant.token.0)?,
        lease_grant.grant.0.as_bytes().as_slice(),
        history.to_string(),
    ])?;
    Ok(count == 1)
}

/// Releases a lane so that no node gets it until an operator decides.
pub(super) fn halt(conn: &Connection, lease_grant: LeaseGrant, reason: &str) -> Result<bool> {
    const SQL: &str = "UPDATE signer_lease SET halted = ?4, expires_at = ?5 \
         WHERE lane_id = ?1 AND token = ?2 AND EXISTS (SELECT 1 FROM signer_nonce_cursor AS c \
           WHERE c.lane_id = ?1 AND c.fencing_token = ?2 AND c.grant_id = ?3)";
    let count = conn.prepare_cached(SQL)?.execute(params![
        lease_grant.lane.0,
        stored(lease_grant.token.0)?,
        lease_grant.grant.0.as_bytes().as_slice(),
        reason,
        stored(Lease::RELEASED.0)?,
    ])?;
    Ok(count == 1)
}

/// Halts a lane that has fewer commits than a node has seen, whichever node keeps it: the new grant fences that one.
pub(super) fn halt_lost_lane(
    conn: &Connection,
    key: LaneKey,
    batch_seq: u64,
    grant: GrantId,
    reason: &str,
) -> Result<bool> {
    const BATCHES: &str = "SELECT batch_seq FROM signer_nonce_cursor WHERE lane_id = ?1";
    const HALT: &str = "UPDATE signer_lease SET halted = ?2, expires_at = ?3 \
         WHERE lane_id = ?1 AND halted IS NULL";
    const FENCE: &str = "UPDATE signer_nonce_cursor SET grant_id = ?2 WHERE lane_id = ?1";
    let lane = create_lane(conn, key)?;
    let batches = find_row(conn, BATCHES, [lane.0], |row| {
        number(row, 0, "number of batches")
    })?;
    if batches.unwrap_or(0) >= batch_seq {
        return Ok(false);
    }
    let halt = params![lane.0, reason, stored(Lease::RELEASED.0)?];
    if conn.prepare_cached(HALT)?.execute(halt)? == 0 {
        return Ok(false);
    }
    let grant = grant.0.as_bytes().as_slice();
    conn.prepare_cached(FENCE)?
        .execute(params![lane.0, grant])?;
    Ok(true)
}

/// An operator accepts the loss: the lane may be granted again, and is reconciled under no history. Returns whether it was
/// halted.
pub(super) fn accept_loss(conn: &Connection, key: LaneKey) -> Result<bool> {
    const SQL: &str = "UPDATE signer_lease SET halted = NULL, history = '', accepted = ?2 \
         WHERE lane_id = ?1 AND halted IS NOT NULL";
    // A lane that was never granted, because it was lost as a whole, has no row yet.
    const SKIP: &str = "INSERT INTO signer_nonce_cursor \
         (lane_id, next_nonce, event_seq, fencing_token, grant_id, batch_seq, paused, updated_at) \
         VALUES (?1, 0, 0, 0, zeroblob(16), ?2, 0, 0) \
         ON CONFLICT (lane_id) DO UPDATE SET batch_seq = batch_seq + ?2";
    let Some(lane) = find_lane(conn, key)? else {
        return Ok(false);
    };
    let history = history::current(conn)?.to_string();
    let accept = params![lane.0, history];
    if conn.prepare_cached(SQL)?.execute(accept)? == 0 {
        return Ok(false);
    }
    let gap = params![lane.0, stored(ACCEPTED_LOSS_GAP)?];
    conn.prepare_cached(SKIP)?.execute(gap)?;
    Ok(true)
}

/// Why a lane accepts no requests until an operator decides.
pub(super) fn halted(conn: &Connection, lane: LaneId) -> Result<Option<String>> {
    const SQL: &str = "SELECT halted FROM signer_lease WHERE lane_id = ?1";
    let reason: Option<Option<String>> = find_row(conn, SQL, [lane.0], |row| Ok(row.get(0)?))?;
    Ok(reason.flatten())
}

/// The lease of a lane; `None` when it was never held.
pub(super) fn lease(conn: &Connection, lane: LaneId) -> Result<Option<Lease>> {
    const SQL: &str = "SELECT owner, incarnation, token, expires_at FROM signer_lease \
         WHERE lane_id = ?1 AND owner IS NOT NULL";
    find_row(conn, SQL, [lane.0], |row| {
        Ok(Lease {
            owner: NodeName(row.get(0)?),
            incarnation: Incarnation(uuid(row, 1)?),
            token: Token(number(row, 2, "token")?),
            expires_at: time(row, 3)?,
        })
    })
}
