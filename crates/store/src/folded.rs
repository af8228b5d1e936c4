//! Checks of a batch before it is sent: one write per row, numbers that fit, events in order.
//!
//! PostgreSQL would refuse most violations too, but only after it has rolled back the neighbours; the
//! embedded store would write some rows twice.

use std::collections::BTreeSet;

use domain::{Nonce, RequestId, Tx, Writes};
use engine::ports::{Conflict, LaneBatch};

use crate::encoding::stored;

/// Fails when a batch cannot be sent.
pub(crate) fn check(batch: &LaneBatch) -> Result<(), Conflict> {
    let writes = &batch.writes;
    let mut requests: BTreeSet<&RequestId> = BTreeSet::new();
    for tx in &writes.inserts {
        if !requests.insert(&tx.request.request_id) {
            return Err(Conflict::RequestId(tx.request.request_id.clone()));
        }
    }
    let mut nonces: BTreeSet<Nonce> = BTreeSet::new();
    for nonce in written_txs(writes).filter_map(|tx| tx.nonce) {
        if !nonces.insert(nonce) {
            return Err(Conflict::Nonce(nonce));
        }
    }
    check_unique("tx", written_txs(writes).map(|tx| tx.id))?;
    check_unique(
        "attempt",
        writes.attempts.iter().map(|attempt| attempt.hash),
    )?;
    check_unique("queue row", writes.queued_added.iter())?;
    check_unique("queue row", writes.queued_removed.iter())?;
    let follows = batch.event_seq_before.saturating_add(1)..;
    if !writes
        .events
        .iter()
        .map(|event| event.seq)
        .eq(follows.take(writes.events.len()))
    {
        return Err(rows("the events do not follow the lane's last one".into()));
    }
    for number in ordered_numbers(batch) {
        stored(number).map_err(|too_large| rows(too_large.to_string()))?;
    }
    Ok(())
}

fn check_unique<T: Ord + std::fmt::Debug>(
    what: &str,
    keys: impl Iterator<Item = T>,
) -> Result<(), Conflict> {
    let mut seen = BTreeSet::new();
    for key in keys {
        if seen.contains(&key) {
            return Err(rows(format!("{what} {key:?} twice in one batch")));
        }
        seen.insert(key);
    }
    Ok(())
}

fn written_txs(writes: &Writes) -> impl Iterator<Item = &Tx> {
    writes.inserts.iter().chain(&writes.updates)
}

/// Every number whose order matters: the columns have 63 bits.
fn ordered_numbers(batch: &LaneBatch) -> impl Iterator<Item = u64> {
    let writes = &batch.writes;
    let of_lane = [
        batch.lease_grant.token.0,
        batch.batch_seq_before,
        batch.event_seq_before,
        batch.next_nonce.0,
        batch.floor_nonce.0,
        batch.at.0,
    ];
    let of_txs = written_txs(writes).flat_map(|tx| {
        [
            tx.nonce.map_or(0, |nonce| nonce.0),
            tx.written.token.0,
            tx.request.created_at.0,
            tx.written.at.0,
            tx.confirmed_at.map_or(0, |at| at.0),
        ]
    });
    let of_attempts = writes.attempts.iter().flat_map(|attempt| {
        [
            attempt.nonce.0,
            attempt.signed_at.0,
            attempt.first_sent_at.map_or(0, |at| at.0),
        ]
    });
    let of_sent = writes.first_sent.iter().map(|(_, at)| at.0);
    of_lane
        .into_iter()
        .chain(of_txs)
        .chain(of_attempts)
        .chain(of_sent)
}

fn rows(text: String) -> Conflict {
    Conflict::Rows(text)
}
