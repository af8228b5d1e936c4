//! The gate's and the queue's rules as this test understands them: for which faults a write may be
//! refused. With one fault every store must name that one; with several, any of them.

use std::collections::BTreeSet;

use domain::{Nonce, RequestId, Tx, TxId, Writes};
use engine::ports::{CommitOutcome, Conflict, LaneBatch, QueuedRequest, StoreError};

use crate::masks::rows_conflict;
use crate::model::{Lane, Model, place};
use crate::universe;

/// The allowed outcomes of a batch.
pub(crate) fn outcomes(model: &Model, batch: &LaneBatch) -> Vec<CommitOutcome> {
    let Some(lane) = model.lanes.get(place(batch.lease_grant)) else {
        return with_folding_faults(batch, vec![CommitOutcome::Fenced]);
    };
    let known = (lane.batch_seq, lane.event_seq);
    if lane.lease_grant != Some(batch.lease_grant)
        || (batch.batch_seq_before, batch.event_seq_before) != known
    {
        return with_folding_faults(batch, vec![CommitOutcome::Fenced]);
    }
    let mut faults = conflicts(model, lane, batch);
    if faults.is_empty() {
        faults.push(CommitOutcome::Applied);
    }
    faults
}

/// A batch that is invalid by itself may be refused before the fence is checked.
fn with_folding_faults(batch: &LaneBatch, mut faults: Vec<CommitOutcome>) -> Vec<CommitOutcome> {
    let nothing = Lane {
        next_nonce: Nonce(0),
        ..Lane::default()
    };
    faults.extend(keys_twice(&nothing, &batch.writes));
    if is_unfolded(batch) {
        faults.push(rows_conflict());
    }
    faults
}

fn conflicts(model: &Model, lane: &Lane, batch: &LaneBatch) -> Vec<CommitOutcome> {
    let writes = &batch.writes;
    let mut faults = keys_twice(lane, writes);
    let is_off = is_unfolded(batch)
        || has_missing_rows(model, lane, writes)
        || has_wrong_queue_rows(lane, writes)
        || batch.next_nonce < lane.next_nonce;
    if is_off {
        faults.push(rows_conflict());
    }
    faults
}

/// Idempotency keys and nonces that another tx has already.
fn keys_twice(lane: &Lane, writes: &Writes) -> Vec<CommitOutcome> {
    let mut requests: BTreeSet<&RequestId> = BTreeSet::new();
    let mut faults = Vec::new();
    for tx in &writes.inserts {
        let is_taken = lane.has_request(&tx.request.request_id);
        if is_taken || !requests.insert(&tx.request.request_id) {
            faults.push(Conflict::RequestId(tx.request.request_id.clone()));
        }
    }
    faults.extend(nonces_twice(lane, writes).into_iter().map(Conflict::Nonce));
    faults.into_iter().map(CommitOutcome::Conflict).collect()
}

/// Nonces that a batch may be refused for.
fn nonces_twice(lane: &Lane, writes: &Writes) -> Vec<Nonce> {
    let mut written: Vec<Nonce> = txs(writes).filter_map(|tx| tx.nonce).collect();
    written.sort_unstable();
    let twice = written.windows(2).filter(|pair| pair[0] == pair[1]);
    let mut faults: Vec<Nonce> = twice.map(|pair| pair[0]).collect();
    if !nonces_meet(lane, writes) {
        return faults;
    }
    // Where several rows change places, any of those that they leave may be named.
    let gives_up = |id: TxId| {
        let mut updates = writes.updates.iter();
        updates.any(|tx| tx.id == id && tx.nonce.is_none())
    };
    faults.extend(txs(writes).filter_map(|tx| {
        let holder = lane.holder(tx.nonce?)?;
        (holder != tx.id && !gives_up(holder)).then_some(tx.nonce?)
    }));
    faults
}

/// The unique index on nonces, row by row: first nonces that are lost, then changes in the order of the
/// batch, then new txs. Whether a row gets a nonce that is still held.
fn nonces_meet(lane: &Lane, writes: &Writes) -> bool {
    let mut held = lane.nonces();
    for tx in writes.updates.iter().filter(|tx| tx.nonce.is_none()) {
        held.retain(|_, id| *id != tx.id);
    }
    let mut moves = writes.updates.iter().chain(&writes.inserts);
    moves.any(|tx| {
        let Some(nonce) = tx.nonce else {
            return false;
        };
        held.retain(|_, id| *id != tx.id);
        held.insert(nonce, tx.id).is_some()
    })
}

/// More than one write to one row, or events that do not follow.
fn is_unfolded(batch: &LaneBatch) -> bool {
    let writes = &batch.writes;
    let seqs = writes.events.iter().map(|event| event.seq);
    let follows = (batch.event_seq_before + 1..).take(writes.events.len());
    has_repeats(txs(writes).map(|tx| tx.id))
        || has_repeats(writes.attempts.iter().map(|attempt| attempt.hash))
        || has_repeats(writes.queued_added.iter())
        || has_repeats(writes.queued_removed.iter())
        || !seqs.eq(follows)
}

/// Rows that should be there and are not, or the other way round.
fn has_missing_rows(model: &Model, lane: &Lane, writes: &Writes) -> bool {
    let is_new = |id: &TxId| writes.inserts.iter().any(|tx| tx.id == *id);
    let has_attempt = |hash| {
        let mut new = writes.attempts.iter();
        lane.attempts.contains_key(hash) || new.any(|attempt| attempt.hash == *hash)
    };
    writes.inserts.iter().any(|tx| model.has_tx(tx.id))
        || !writes
            .updates
            .iter()
            .all(|tx| lane.txs.contains_key(&tx.id))
        || writes.attempts.iter().any(|attempt| {
            let id = &attempt.tx_id;
            model.has_hash(attempt.hash) || !(lane.txs.contains_key(id) || is_new(id))
        })
        || !writes.first_sent.iter().all(|(hash, _)| has_attempt(hash))
}

fn has_wrong_queue_rows(lane: &Lane, writes: &Writes) -> bool {
    let is_new = |id: &TxId| writes.inserts.iter().any(|tx| tx.id == *id);
    let mut queue_rows = lane.queue_rows.clone();
    let is_done = writes.queued_removed.iter().all(|id| queue_rows.remove(id));
    let is_added = writes
        .queued_added
        .iter()
        .all(|id| (lane.txs.contains_key(id) || is_new(id)) && queue_rows.insert(*id));
    !(is_done && is_added)
}

/// For what a queue may be refused; nothing when it may not.
pub(crate) fn queue_refusals(model: &Model, requests: &[QueuedRequest]) -> Vec<StoreError> {
    let mut refusals = Vec::new();
    let is_known = |new: &QueuedRequest| {
        let lane = &model.lanes[universe::place_of(new.lane)];
        lane.has_request(&new.request.request_id)
    };
    let unknown: Vec<&QueuedRequest> = requests.iter().filter(|new| !is_known(new)).collect();
    let lanes = unknown.iter();
    let lanes = lanes.map(|new| &model.lanes[universe::place_of(new.lane)]);
    let lanes = lanes.filter(|lane| lane.is_known);
    if lanes.clone().any(|lane| lane.is_halted) {
        refusals.push(StoreError::Halted(String::new()));
    }
    if lanes
        .clone()
        .any(|lane| !lane.is_halted && !lane.is_reconciled)
    {
        refusals.push(StoreError::Unreconciled(String::new()));
    }
    let mut keys = BTreeSet::new();
    let firsts = unknown.iter();
    let firsts = firsts.filter(|new| keys.insert((new.lane, &new.request.request_id)));
    let ids: Vec<TxId> = firsts.map(|new| new.request.id).collect();
    if ids.iter().any(|id| model.has_tx(*id)) || has_repeats(ids.iter()) {
        refusals.push(StoreError::Invalid(String::new()));
    }
    refusals
}

fn txs(writes: &Writes) -> impl Iterator<Item = &Tx> {
    writes.inserts.iter().chain(&writes.updates)
}

fn has_repeats<T: Ord>(keys: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    let mut keys = keys;
    keys.any(|key| !seen.insert(key))
}
