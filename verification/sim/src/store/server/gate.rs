//! The gate: the batches of many lanes in one call of one function (`lk_gate_2`), and what its caller does
//! with the answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::LaneId;
use domain::mutation::{self, Mutation};
use engine::ports::{CommitOutcome, LaneBatch};
use futures::future::join_all;

use super::{Abort, Row, Server, Transaction};

/// A batch with its place in the caller's list.
type Placed = (usize, Arc<LaneBatch>);
type Outcome = (usize, CommitOutcome);

impl Server {
    /// Applies every batch whole or not at all, each on its own.
    pub(in crate::store) async fn commit(&self, batches: Vec<LaneBatch>) -> Vec<CommitOutcome> {
        // The worst moment for a standby that lacks something to take over.
        if batches.iter().any(|batch| self.store.would_miss(batch)) {
            self.store.fail_over();
        }
        self.let_strangers_in(batches.iter().map(|batch| batch.lease_grant.lane));
        let mut outcomes: Vec<Option<CommitOutcome>> = vec![None; batches.len()];
        let placed = batches.into_iter().map(Arc::new).enumerate();
        let mut waiting: Vec<Placed> = placed.collect();
        self.put_in_order(&mut waiting, |(_, batch)| batch.lease_grant.lane);
        while !waiting.is_empty() {
            let (now, later) = one_per_lane(waiting);
            for (place, outcome) in self.commit_together(now).await {
                outcomes[place] = Some(outcome);
            }
            waiting = later;
        }
        let told = outcomes.into_iter();
        told.map(|outcome| outcome.expect("every batch is in exactly one call"))
            .collect()
    }

    async fn commit_together(&self, call: Vec<Placed>) -> Vec<Outcome> {
        match self.pass(&call).await {
            Ok(applied) => {
                let (done, missing): (Vec<_>, Vec<_>) = call
                    .into_iter()
                    .partition(|(_, batch)| applied.contains(&batch.lease_grant.lane));
                let done = done.into_iter().map(|(n, _)| (n, CommitOutcome::Applied));
                let mut outcomes: Vec<Outcome> = done.collect();
                outcomes.extend(self.fenced_or_locked(missing).await);
                outcomes
            }
            // Rolled back because of one item: only the guilty sees it.
            Err(Abort::Waited(_) | Abort::Conflict(_)) if call.len() > 1 => {
                let alone = |placed| Box::pin(self.commit_together(vec![placed]));
                let calls = join_all(call.into_iter().map(alone)).await;
                calls.into_iter().flatten().collect()
            }
            Err(abort) => {
                let outcome = match abort {
                    Abort::Waited(_) => CommitOutcome::Locked,
                    Abort::Conflict(conflict) => CommitOutcome::Conflict(conflict),
                    Abort::TooLong => CommitOutcome::NotApplied(abort.text()),
                    Abort::Lost(why) => CommitOutcome::Unknown(why.to_owned()),
                };
                self.tell_all(&call, &outcome);
                let same = |(place, _)| (place, outcome.clone());
                call.into_iter().map(same).collect()
            }
        }
    }

    /// One call; the lanes that it applied.
    async fn pass(&self, call: &[Placed]) -> Result<BTreeSet<LaneId>, Abort> {
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
        // An id from a sequence is given when a row is inserted, and not when it is committed.
        let by_id = mutation::is_on(Mutation::ReadEventsByGlobalId);
        let places: Vec<Option<usize>> = passed
            .iter()
            .map(|batch| by_id.then(|| self.store.rows().deal_places(batch)))
            .collect();
        transaction.step().await?;
        let committed = transaction.commit(|store, rows| {
            for (batch, place) in passed.into_iter().zip(places) {
                rows.apply(&batch);
                if let Some(place) = place {
                    rows.take_places(batch.lease_grant.lane, place);
                }
                store.tell_commit(rows, batch, &CommitOutcome::Applied);
            }
            if mutation::is_on(Mutation::InsertFencedRows) {
                others.iter().for_each(|batch| rows.insert_only(batch));
            }
        });
        committed.await?;
        Ok(ours)
    }

    /// Lanes whose row was not taken are not the caller's any more, or somebody holds their row: a later
    /// statement tells, and its no is certain.
    async fn fenced_or_locked(&self, missing: Vec<Placed>) -> Vec<Outcome> {
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
            self.tell_all(&[(place, batch)], &outcome);
            outcomes.push((place, outcome));
        }
        outcomes
    }

    fn tell_all(&self, call: &[Placed], outcome: &CommitOutcome) {
        let rows = self.store.rows();
        for (_, batch) in call {
            self.store.tell_commit(&rows, Arc::clone(batch), outcome);
        }
    }
}

/// The fence: picks the lane rows that are still the caller's, and locks those that nobody else has.
async fn fence(transaction: &mut Transaction, call: &[Placed]) -> Result<BTreeSet<LaneId>, Abort> {
    let passes =
        |transaction: &Transaction, batch: &LaneBatch| transaction.read(|rows| rows.passes(batch));
    let batches = call.iter().map(|(_, batch)| batch);
    let picked: Vec<_> = batches.filter(|it| passes(transaction, it)).collect();
    let now = transaction.now();
    let is_over =
        |it: &&Arc<LaneBatch>| transaction.read(|rows| rows.is_over(it.lease_grant.lane, now));
    let is_in_trouble = picked.iter().any(is_over);
    transaction.expect_trouble(is_in_trouble);
    let mut ours = BTreeSet::new();
    transaction.step().await?;
    for batch in picked {
        let lane = batch.lease_grant.lane;
        let is_taken = if mutation::is_on(Mutation::LockInNoOrder) {
            transaction.take(Row::Lane(lane)).await?;
            true
        } else {
            transaction.take_free(Row::Lane(lane))
        };
        // What was read before the lock may be old by now.
        let trusts_it = mutation::is_on(Mutation::SkipFenceLock);
        if is_taken && (trusts_it || passes(transaction, batch)) {
            ours.insert(lane);
        }
        if call.len() > 1 {
            transaction.step().await?;
        }
    }
    Ok(ours)
}

/// Inserts in the order of the queue, so that the two never wait for each other in a circle. Whoever has
/// inserted the same key and is not done is waited for.
async fn insert_keys(
    transaction: &mut Transaction,
    batches: &[Arc<LaneBatch>],
) -> Result<(), Abort> {
    for batch in batches {
        let mut inserts: Vec<_> = batch.writes.inserts.iter().collect();
        if inserts.is_empty() {
            continue;
        }
        inserts.sort_by(|one, other| one.request_id.cmp(&other.request_id));
        let lane = transaction.read(|rows| rows.lane(batch.lease_grant.lane).map(|lane| lane.key));
        let lane = lane.expect("the fence found its row");
        for tx in inserts {
            transaction.take(Row::Tx(tx.id)).await?;
            let key = Row::AdmittedRequest(lane, tx.request_id.clone());
            transaction.take(key).await?;
        }
        transaction.step().await?;
    }
    Ok(())
}

/// The first batch of each lane, and the rest: a lane has one lane row, so one batch per call.
fn one_per_lane(batches: Vec<Placed>) -> (Vec<Placed>, Vec<Placed>) {
    let mut lanes = BTreeSet::new();
    batches
        .into_iter()
        .partition(|(_, batch)| lanes.insert(batch.lease_grant.lane))
}
