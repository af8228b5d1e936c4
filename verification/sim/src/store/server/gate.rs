//! The gate: the batches of many lanes in one call of one function (`lanekeeper_gate`), and how its caller handles
//! the answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::mutation::{self, Mutation};
use domain::LaneId;
use engine::ports::{CommitOutcome, LaneBatch};
use futures::future::join_all;

use super::{Abort, Row, Server, Transaction};

/// A batch with its index in the caller's list.
type IndexedBatch = (usize, Arc<LaneBatch>);
type Outcome = (usize, CommitOutcome);

impl Server {
    /// Applies every batch completely or not at all, each independently.
    pub(in crate::store) async fn commit(
        &self,
        batches: Vec<Arc<LaneBatch>>,
    ) -> Vec<CommitOutcome> {
        // The worst time for the promotion of a standby that lacks commits.
        if batches.iter().any(|batch| self.store.would_miss(batch)) {
            self.store.fail_over();
        }
        self.lock_rows_externally(batches.iter().map(|batch| batch.lease_grant.lane));
        let mut outcomes: Vec<Option<CommitOutcome>> = vec![None; batches.len()];
        let mut waiting: Vec<IndexedBatch> = batches.into_iter().enumerate().collect();
        self.sort_by_lane(&mut waiting, |(_, batch)| batch.lease_grant.lane);
        while !waiting.is_empty() {
            let (now, later) = one_per_lane(waiting);
            for (place, outcome) in self.commit_together(now).await {
                outcomes[place] = Some(outcome);
            }
            waiting = later;
        }
        let recorded = outcomes.into_iter();
        recorded
            .map(|outcome| outcome.expect("every batch is in exactly one call"))
            .collect()
    }

    async fn commit_together(&self, call: Vec<IndexedBatch>) -> Vec<Outcome> {
        match self.call_gate(&call).await {
            Ok(applied) => {
                let (done, missing): (Vec<_>, Vec<_>) = call
                    .into_iter()
                    .partition(|(_, batch)| applied.contains(&batch.lease_grant.lane));
                let done = done.into_iter().map(|(n, _)| (n, CommitOutcome::Applied));
                let mut outcomes: Vec<Outcome> = done.collect();
                outcomes.extend(self.fenced_or_locked(missing).await);
                outcomes
            }
            // Rolled back because of one batch: only that one fails.
            Err(Abort::LockTimeout(_) | Abort::Conflict(_)) if call.len() > 1 => {
                let separate = |placed| Box::pin(self.commit_together(vec![placed]));
                let calls = join_all(call.into_iter().map(separate)).await;
                calls.into_iter().flatten().collect()
            }
            Err(abort) => {
                let outcome = match abort {
                    Abort::LockTimeout(_) => CommitOutcome::Locked,
                    Abort::Conflict(conflict) => CommitOutcome::Conflict(conflict),
                    Abort::StatementTimeout => CommitOutcome::NotApplied(abort.text()),
                    Abort::Lost(why) => CommitOutcome::Unknown(why.to_owned()),
                };
                self.record_all(&call, &outcome);
                let same = |(place, _)| (place, outcome.clone());
                call.into_iter().map(same).collect()
            }
        }
    }

    /// One call; returns the lanes that it applied.
    async fn call_gate(&self, call: &[IndexedBatch]) -> Result<BTreeSet<LaneId>, Abort> {
        let mut transaction = self.begin("gate");
        let ours = fence(&mut transaction, call).await?;
        if ours.is_empty() {
            return Ok(BTreeSet::new());
        }
        transaction.step().await?;
        let batches = || call.iter().map(|(_, batch)| batch);
        let (passed, others): (Vec<_>, Vec<_>) = batches()
            .cloned()
            .partition(|batch| ours.contains(&batch.lease_grant.lane));
        insert_keys(&mut transaction, &passed).await?;
        let checked = transaction.read(|rows| passed.iter().try_for_each(|it| rows.check(it)));
        checked.map_err(|conflict| transaction.aborted(Abort::Conflict(conflict)))?;
        // An id from a sequence is assigned when a row is inserted, not when it is committed.
        let by_id = mutation::is_on(Mutation::ReadEventsByGlobalId);
        let places: Vec<Option<usize>> = passed
            .iter()
            .map(|batch| by_id.then(|| self.store.rows().reserve_feed_positions(batch)))
            .collect();
        transaction.step().await?;
        let committed = transaction.commit(|store, rows| {
            for (batch, place) in passed.into_iter().zip(places) {
                rows.apply(&batch);
                if let Some(place) = place {
                    rows.fill_feed_positions(batch.lease_grant.lane, place);
                }
                store.record_commit(rows, batch, &CommitOutcome::Applied);
            }
            if mutation::is_on(Mutation::InsertFencedRows) {
                others.iter().for_each(|batch| rows.insert_only(batch));
            }
        });
        committed.await?;
        Ok(ours)
    }

    /// Lanes whose row was not locked are fenced, or another transaction holds their row: a later statement
    /// decides, and its refusal is certain.
    async fn fenced_or_locked(&self, missing: Vec<IndexedBatch>) -> Vec<Outcome> {
        if missing.is_empty() {
            return Vec::new();
        }
        self.pause().await;
        let mut outcomes = Vec::with_capacity(missing.len());
        for (place, batch) in missing {
            let outcome = match self.read(|rows| rows.passes(&batch)) {
                true => CommitOutcome::Locked,
                false => CommitOutcome::Fenced,
            };
            self.record_all(&[(place, batch)], &outcome);
            outcomes.push((place, outcome));
        }
        outcomes
    }

    fn record_all(&self, call: &[IndexedBatch], outcome: &CommitOutcome) {
        let rows = self.store.rows();
        for (_, batch) in call {
            self.store.record_commit(&rows, Arc::clone(batch), outcome);
        }
    }
}

/// The fence: selects the lane rows that still belong to the caller, and locks those that are free.
async fn fence(
    transaction: &mut Transaction,
    call: &[IndexedBatch],
) -> Result<BTreeSet<LaneId>, Abort> {
    let passes =
        |transaction: &Transaction, batch: &LaneBatch| transaction.read(|rows| rows.passes(batch));
    let batches = call.iter().map(|(_, batch)| batch);
    let picked: Vec<_> = batches.filter(|it| passes(transaction, it)).collect();
    let now = transaction.now();
    let is_over = |it: &&Arc<LaneBatch>| {
        transaction.read(|rows| rows.is_lease_over(it.lease_grant.lane, now))
    };
    let is_takeover = picked.iter().any(is_over);
    transaction.set_takeover(is_takeover);
    let mut ours = BTreeSet::new();
    transaction.step().await?;
    for batch in picked {
        let lane = batch.lease_grant.lane;
        let is_locked = if mutation::is_on(Mutation::LockWithoutOrder) {
            transaction.lock(Row::Lane(lane)).await?;
            true
        } else {
            transaction.try_lock(Row::Lane(lane))
        };
        // Values read before the lock may be stale.
        let trusts_it = mutation::is_on(Mutation::SkipFenceLock);
        if is_locked && (trusts_it || passes(transaction, batch)) {
            ours.insert(lane);
        }
        if call.len() > 1 {
            transaction.step().await?;
        }
    }
    Ok(ours)
}

/// Inserts in the order of the queue, so that the two never deadlock. A transaction that has inserted the same
/// key and is not finished is waited for.
async fn insert_keys(
    transaction: &mut Transaction,
    batches: &[Arc<LaneBatch>],
) -> Result<(), Abort> {
    for batch in batches {
        let mut inserts: Vec<_> = batch.writes.inserts.iter().collect();
        if inserts.is_empty() {
            continue;
        }
        inserts.sort_by(|one, other| one.request.request_id.cmp(&other.request.request_id));
        let lane = transaction.read(|rows| rows.lane(batch.lease_grant.lane).map(|lane| lane.key));
        let lane = lane.expect("the fence found its row");
        for tx in inserts {
            transaction.lock(Row::Tx(tx.id)).await?;
            let key = Row::RequestKey(lane, tx.request.request_id.clone());
            transaction.lock(key).await?;
        }
        transaction.step().await?;
    }
    Ok(())
}

/// The first batch of each lane, and the rest: a lane has one lane row, so one batch per call.
fn one_per_lane(batches: Vec<IndexedBatch>) -> (Vec<IndexedBatch>, Vec<IndexedBatch>) {
    let mut lanes = BTreeSet::new();
    batches
        .into_iter()
        .partition(|(_, batch)| lanes.insert(batch.lease_grant.lane))
}
