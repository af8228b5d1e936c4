//! The gate: everything that a turn writes, in one call of one function inside the database.
//!
//! A call takes the batches of many lanes and applies those whose lane row is unlocked and matches the fence. It
//! never waits: a lane that is missing from its answer is fenced when its row does not match, and locked otherwise; the
//! engine waits for that one apart from the others. A call that was rolled back because of one row is repeated lane by
//! lane, so that only the batch with that row fails.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use domain::{GrantId, LaneId, LeaseGrant, Nonce, Tx};
use engine::ports::{CommitOutcome, Conflict, LaneBatch, RegrantOutcome};
use futures::StreamExt as _;
use postgres_client::QueryError;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::arguments::{Arguments, items};
use super::fault::Result;
use super::pool::Db;
use super::rows::number;
use crate::commit_metrics::{count_txs, record_commit};
use crate::encoding::{bound, stored};
use crate::folded;

/// How many txs one call writes, unless a single lane has more. Beyond this a call gets slower and not
/// more efficient.
const CALL_ITEMS_MAX: usize = 200;

/// The unique index of nonces. A nonce that one row of a batch leaves to another looks taken too, when the
/// batch was rolled back for another reason.
const NONCE_INDEX: &str = "managed_tx_nonce";

/// A row count was off (see the function).
const COUNT_OFF: &str = "LK001";

/// Calls the gate. Its parameters are those of [`Arguments`].
pub const GATE: &str = "SELECT lanekeeper_gate(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
    $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, \
    $41, $42, $43, $44, $45, $46, $47, $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, \
    $60, $61, $62, $63, $64, $65, $66, $67, $68, $69, $70, $71, $72, $73, $74, $75, $76)";

/// A batch with its place in the caller's list.
type PlacedBatch<'a> = (usize, &'a LaneBatch);
type Outcome = (usize, CommitOutcome);

/// Applies every batch whole or not at all, each on its own.
pub(super) async fn commit(db: &Db, batches: &[Arc<LaneBatch>]) -> Vec<CommitOutcome> {
    let began = Instant::now();
    let mut outcomes: Vec<Option<CommitOutcome>> = vec![None; batches.len()];
    let mut waiting: Vec<PlacedBatch<'_>> = Vec::with_capacity(batches.len());
    for (place, batch) in batches.iter().enumerate() {
        match folded::check(batch) {
            Ok(()) => waiting.push((place, &**batch)),
            Err(conflict) => outcomes[place] = Some(CommitOutcome::Conflict(conflict)),
        }
    }
    // Rows are locked in this order, here and everywhere.
    waiting.sort_by_key(|(_, batch)| batch.lease_grant.lane);
    while !waiting.is_empty() {
        let (now, later) = one_per_lane(waiting);
        let mut calls = Vec::new();
        for call in chunks(now) {
            calls.push(commit_together(db, call));
        }
        let mut answers = futures::stream::iter(calls).buffer_unordered(db.writes.capacity());
        while let Some(answered) = answers.next().await {
            for (place, outcome) in answered {
                outcomes[place] = Some(outcome);
            }
        }
        waiting = later;
    }
    record_commit(count_txs(batches), began);
    outcomes
        .into_iter()
        .map(|outcome| outcome.expect("every batch is refused, or in exactly one call"))
        .collect()
}

/// The first batch of each lane, and the rest: a lane has one lane row, so one batch per call.
fn one_per_lane(sorted: Vec<PlacedBatch<'_>>) -> (Vec<PlacedBatch<'_>>, Vec<PlacedBatch<'_>>) {
    let (mut first, mut rest): (Vec<PlacedBatch<'_>>, Vec<PlacedBatch<'_>>) =
        (Vec::new(), Vec::new());
    for placed in sorted {
        let lane = placed.1.lease_grant.lane;
        match first.last() {
            Some((_, batch)) if batch.lease_grant.lane == lane => rest.push(placed),
            Some(_) | None => first.push(placed),
        }
    }
    (first, rest)
}

/// Calls of bounded size. One lane's batch is never split: it is applied whole.
fn chunks(batches: Vec<PlacedBatch<'_>>) -> Vec<Vec<PlacedBatch<'_>>> {
    let mut calls: Vec<Vec<PlacedBatch<'_>>> = Vec::new();
    let mut room: usize = 0;
    for placed in batches {
        let size = items(placed.1);
        match calls.last_mut() {
            Some(call) if size <= room => call.push(placed),
            Some(_) | None => {
                calls.push(vec![placed]);
                room = CALL_ITEMS_MAX;
            }
        }
        room = room.saturating_sub(size);
    }
    calls
}

async fn commit_together(db: &Db, call: Vec<PlacedBatch<'_>>) -> Vec<Outcome> {
    let batches = call.iter().map(|(_, batch)| *batch);
    match call_gate(db, batches).await {
        Ok(applied) => {
            let (done, missing): (Vec<_>, Vec<_>) = call
                .into_iter()
                .partition(|(_, batch)| applied.contains(&batch.lease_grant.lane));
            let done = done.into_iter().map(|(n, _)| (n, CommitOutcome::Applied));
            let mut outcomes: Vec<Outcome> = done.collect();
            outcomes.extend(fenced_or_locked(db, missing).await);
            outcomes
        }
        Err(error) if is_about_rows(&error) => match call[..] {
            [(place, batch)] => vec![(place, rolled_back_outcome(db, batch, error).await)],
            [..] => commit_separately(db, call).await,
        },
        Err(error) => {
            let outcome = failed_outcome(error);
            let same = |(place, _)| (place, outcome.clone());
            call.into_iter().map(same).collect()
        }
    }
}

/// Repeats the batches of a call that was rolled back one by one: only the one at fault fails.
async fn commit_separately(db: &Db, batches: Vec<PlacedBatch<'_>>) -> Vec<Outcome> {
    let mut calls = Vec::new();
    for (place, batch) in batches {
        calls.push(Box::pin(commit_together(db, vec![(place, batch)])));
    }
    let answers = futures::stream::iter(calls).buffer_unordered(db.writes.capacity());
    answers.flat_map(futures::stream::iter).collect().await
}

/// Lanes that were not applied: fenced, or their row is locked.
async fn fenced_or_locked(db: &Db, missing: Vec<PlacedBatch<'_>>) -> Vec<Outcome> {
    if missing.is_empty() {
        return Vec::new();
    }
    let ours = lanes_with_held_fence(db, &missing).await;
    let outcome = |(place, batch): PlacedBatch<'_>| {
        let outcome = match &ours {
            Ok(ours) if ours.contains(&batch.lease_grant.lane) => CommitOutcome::Locked,
            Ok(_) => CommitOutcome::Fenced,
            // The gate did not apply it, so this is certain.
            Err(why) => CommitOutcome::NotApplied(why.clone()),
        };
        (place, outcome)
    };
    missing.into_iter().map(outcome).collect()
}

/// Which lanes' fences hold. Parameters: lanes, tokens, grants, numbers of batches and of events.
pub const FENCE_HOLDS: &str = "SELECT c.lane_id FROM \
     unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[]) \
       AS w(lane_id, token, grant_id, batch, seq) \
     JOIN signer_nonce_cursor AS c ON c.lane_id = w.lane_id \
     WHERE c.fencing_token = w.token AND c.grant_id = w.grant_id \
       AND c.batch_seq = w.batch AND c.event_seq = w.seq";

/// The lanes whose fence still holds, as far as is committed. (A fence that does not hold never does
/// again, so *not* being here is certain; being here is not.)
async fn lanes_with_held_fence(
    db: &Db,
    batches: &[PlacedBatch<'_>],
) -> Result<BTreeSet<LaneId>, String> {
    let column = |value: fn(&LaneBatch) -> u64| -> Vec<i64> {
        let values = batches.iter().map(|(_, batch)| bound(value(batch)));
        values.collect()
    };
    let lanes: Vec<i64> = batches
        .iter()
        .map(|(_, batch)| batch.lease_grant.lane.0)
        .collect();
    let grants: Vec<Uuid> = batches.iter().map(|(_, b)| b.lease_grant.grant.0).collect();
    let tokens = column(|batch| batch.lease_grant.token.0);
    let counts = column(|batch| batch.batch_seq_before);
    let events = column(|batch| batch.event_seq_before);
    let params = [
        (&lanes as _, Type::INT8_ARRAY),
        (&tokens as _, Type::INT8_ARRAY),
        (&grants as _, Type::UUID_ARRAY),
        (&counts as _, Type::INT8_ARRAY),
        (&events as _, Type::INT8_ARRAY),
    ];
    let rows = db.writes.query(FENCE_HOLDS, &params).await;
    let rows = rows.map_err(|error| error.to_string())?;
    let lane = |row: &tokio_postgres::Row| row.try_get(0).map(LaneId);
    let ours: Result<BTreeSet<LaneId>, _> = rows.iter().map(lane).collect();
    ours.map_err(|error| error.to_string())
}

/// Why the call of one lane alone was rolled back.
async fn rolled_back_outcome(db: &Db, batch: &LaneBatch, error: QueryError) -> CommitOutcome {
    if error.is_lock_conflict() {
        return CommitOutcome::Locked;
    }
    if !error.is_duplicate() {
        return CommitOutcome::Conflict(Conflict::Rows(error.to_string()));
    }
    match find_duplicate(db, batch, &error).await {
        Ok(conflict) => CommitOutcome::Conflict(conflict),
        // The batch itself was rolled back, so this is certain.
        Err(fault) => CommitOutcome::NotApplied(fault.to_string()),
    }
}

/// Calls the function and returns the lanes that it applied. The driver returns at the very end of the answer: its
/// first row comes before the commit.
async fn call_gate<'a>(
    db: &Db,
    batches: impl Iterator<Item = &'a LaneBatch>,
) -> Result<BTreeSet<LaneId>, QueryError> {
    let arguments = Arguments::of(batches);
    let rows = db.writes.query(GATE, &arguments.params()).await?;
    let row = rows
        .first()
        .ok_or_else(|| QueryError::Unknown("the gate returned no row".into()))?;
    // It was committed: an answer that cannot be read does not undo that.
    let applied: Vec<i64> = row
        .try_get(0)
        .map_err(|error| QueryError::Unknown(error.to_string()))?;
    Ok(applied.into_iter().map(LaneId).collect())
}

fn failed_outcome(error: QueryError) -> CommitOutcome {
    match error {
        QueryError::Unknown(text) => CommitOutcome::Unknown(text),
        QueryError::Refused(_)
        | QueryError::NotSent(_)
        | QueryError::Busy(_)
        | QueryError::Malformed(_) => CommitOutcome::NotApplied(error.to_string()),
    }
}

/// Whether a call was rolled back because of one of its rows.
fn is_about_rows(error: &QueryError) -> bool {
    const DATA: &str = "22";
    const CONSTRAINT: &str = "23";
    let about = |code: &SqlState| {
        let code = code.code();
        code == COUNT_OFF || code.starts_with(DATA) || code.starts_with(CONSTRAINT)
    };
    error.code().is_some_and(about) || error.is_lock_conflict()
}

pub(super) const BY_REQUEST: &str = "SELECT tx.request_id FROM \
     unnest($2::text[], $3::uuid[]) AS new(request_id, tx_id) \
     JOIN managed_tx AS tx ON tx.lane_id = $1 AND tx.request_id = new.request_id \
     WHERE tx.tx_id <> new.tx_id LIMIT 1";

pub(super) const BY_NONCE: &str = "SELECT tx.nonce FROM \
     unnest($2::bigint[], $3::uuid[]) AS new(nonce, tx_id) \
     JOIN managed_tx AS tx ON tx.lane_id = $1 AND tx.nonce = new.nonce \
     WHERE tx.tx_id <> new.tx_id AND tx.tx_id <> ALL ($4::uuid[]) LIMIT 1";

/// Which key of a batch another tx has.
async fn find_duplicate(db: &Db, batch: &LaneBatch, error: &QueryError) -> Result<Conflict> {
    let writes = &batch.writes;
    let lane = (&batch.lease_grant.lane.0 as _, Type::INT8);
    let (requests, ids): (Vec<&str>, Vec<_>) = writes
        .inserts
        .iter()
        .map(|tx| (tx.request.request_id.as_str(), tx.id.0))
        .unzip();
    let by_request = [
        lane.clone(),
        (&requests as _, Type::TEXT_ARRAY),
        (&ids as _, Type::UUID_ARRAY),
    ];
    if let Some(row) = db.writes.query(BY_REQUEST, &by_request).await?.first() {
        let taken: &str = row.try_get(0)?;
        let named = writes
            .inserts
            .iter()
            .find(|tx| tx.request.request_id.as_str() == taken);
        let tx = named.expect("the statement compares with these texts");
        return Ok(Conflict::RequestId(tx.request.request_id.clone()));
    }
    let key = error.constraint().unwrap_or("a key");
    if key != NONCE_INDEX {
        return Ok(Conflict::Rows(format!("{key}: duplicate")));
    }
    let written = || writes.inserts.iter().chain(&writes.updates);
    let with_nonce = |tx: &Tx| tx.nonce.map(|nonce| (bound(nonce.0), tx.id.0));
    let (nonces, ids): (Vec<i64>, Vec<_>) = written().filter_map(with_nonce).unzip();
    let without_nonce = written().filter(|tx| tx.nonce.is_none());
    let without_nonce: Vec<_> = without_nonce.map(|tx| tx.id.0).collect();
    let by_nonce = [
        lane,
        (&nonces as _, Type::INT8_ARRAY),
        (&ids as _, Type::UUID_ARRAY),
        (&without_nonce as _, Type::UUID_ARRAY),
    ];
    if let Some(row) = db.writes.query(BY_NONCE, &by_nonce).await?.first() {
        return Ok(Conflict::Nonce(Nonce(number(row, 0, "nonce")?)));
    }
    Ok(Conflict::Rows(format!("{key}: duplicate")))
}

/// Waits for the transaction that has the lane row locked, so that no earlier batch can commit after the
/// answer. The new grant may be there already, when the answer to the first call was lost.
pub const REGRANT: &str = "UPDATE signer_nonce_cursor SET grant_id = $4 \
     WHERE lane_id = $1 AND fencing_token = $2 AND grant_id IN ($3, $4) RETURNING batch_seq";

/// Grants a lane anew. Fails, and must be repeated, while the lane row is locked.
pub(super) async fn regrant(
    db: &Db,
    lease_grant: LeaseGrant,
    grant: GrantId,
) -> Result<RegrantOutcome> {
    let token = stored(lease_grant.token.0)?;
    let params = [
        (&lease_grant.lane.0 as _, Type::INT8),
        (&token as _, Type::INT8),
        (&lease_grant.grant.0 as _, Type::UUID),
        (&grant.0 as _, Type::UUID),
    ];
    match db.writes.query(REGRANT, &params).await?.first() {
        Some(row) => Ok(RegrantOutcome::Held {
            lease_grant: LeaseGrant {
                grant,
                ..lease_grant
            },
            batch_seq: number(row, 0, "count of batches")?,
        }),
        None => Ok(RegrantOutcome::Fenced),
    }
}
