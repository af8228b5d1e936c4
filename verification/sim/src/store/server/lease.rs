//! Leases: acquisition, renewal, release, regrants, reconciliation. Lease rows are locked before lane rows,
//! each in lane order.

use std::collections::BTreeMap;

use crate::mutation::{self, Mutation};
use domain::lease::LeaseRequest;
use domain::{GrantId, History, LaneId, LaneKey, LeaseGrant, Timestamp};
use engine::ports::{AcquireOutcome, RegrantOutcome, RenewOutcome, StoreError};
use futures::future::join_all;

use super::{Abort, Row, Server, Transaction};
use crate::store::MemoryStore;
use crate::store::rows::{LaneRow, Rows};

type LaneRequest = (LaneKey, GrantId);

impl Server {
    /// Acquires lanes. Unknown lanes are created, and acquired afterwards.
    pub(in crate::store) async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[LaneRequest],
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        let known = self.read(|rows| {
            let ids = lanes.iter().filter_map(|(key, _)| rows.lane_by_key(*key));
            ids.map(|lane| lane.id).collect::<Vec<_>>()
        });
        self.lock_rows_externally(known.into_iter());
        let mut answers: BTreeMap<LaneKey, AcquireOutcome> = BTreeMap::new();
        let missing = self
            .acquire_known(lease_request, lanes, &mut answers)
            .await?;
        if !missing.is_empty() {
            let mut making = self.begin("make lanes");
            let keys = missing.iter().map(|(key, _)| *key).collect();
            let new = make_lanes(&mut making, keys).await?;
            making.commit(|_, rows| insert_lanes(rows, &new)).await?;
            self.acquire_known(lease_request, &missing, &mut answers)
                .await?;
        }
        let answer = |(key, grant): &LaneRequest| match answers.get(key) {
            // A lane that was requested twice has one of the two grants.
            Some(AcquireOutcome::Granted { lease_grant, .. }) if lease_grant.grant != *grant => {
                AcquireOutcome::Busy
            }
            Some(answer) => answer.clone(),
            None => AcquireOutcome::Busy,
        };
        Ok(lanes.iter().map(answer).collect())
    }

    /// Acquires known lanes; returns the unknown ones.
    async fn acquire_known(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[LaneRequest],
        answers: &mut BTreeMap<LaneKey, AcquireOutcome>,
    ) -> Result<Vec<LaneRequest>, Abort> {
        answers.extend(self.take_over(lease_request, lanes).await?);
        let others = lanes.iter().filter(|(key, _)| !answers.contains_key(key));
        let others: Vec<LaneRequest> = others.copied().collect();
        if others.is_empty() {
            return Ok(others);
        }
        // A later statement shows the keepers of lanes that were not granted.
        self.pause().await;
        let (rows, now) = (self.store.rows(), self.store.now());
        let held = others
            .iter()
            .map(|(key, _)| (*key, rows.holder(lease_request, *key, now)));
        answers.extend(held.filter_map(|(key, holder)| Some((key, holder?))));
        let missing = others.into_iter();
        Ok(missing
            .filter(|(key, _)| !answers.contains_key(key))
            .collect())
    }

    /// Acquires the lanes that are free; locked rows are skipped.
    async fn take_over(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[LaneRequest],
    ) -> Result<Vec<(LaneKey, AcquireOutcome)>, Abort> {
        let mut transaction = self.begin("acquire");
        let now = transaction.now();
        let mut wanted: Vec<(LaneId, LaneRequest)> = transaction.read(|rows| {
            let found = lanes.iter().filter_map(|requested| {
                let lane = rows.lane_by_key(requested.0)?;
                rows.can_acquire(lease_request, lane.id, now)
                    .then_some((lane.id, *requested))
            });
            found.collect()
        });
        wanted.sort_by_key(|(lane, _)| *lane);
        wanted.dedup_by_key(|(lane, _)| *lane);
        self.sort_by_lane(&mut wanted, |(lane, _)| *lane);
        let is_of_another =
            |lane| transaction.read(|rows| rows.is_leased_by_another(lease_request, lane));
        let is_takeover = wanted.iter().any(|(lane, _)| is_of_another(*lane));
        transaction.set_takeover(is_takeover);
        let early = self.read_with(&wanted);
        transaction.step().await?;
        let mut leases: Vec<(LaneId, LaneRequest, Timestamp)> = Vec::new();
        for (lane, requested) in wanted {
            let is_locked = lock_in_order(&mut transaction, Row::Lease(lane)).await?;
            let now = transaction.now();
            if is_locked && transaction.read(|rows| rows.can_acquire(lease_request, lane, now)) {
                leases.push((lane, requested, now));
            }
            transaction.step().await?;
        }
        let mut locked: Vec<(LaneRequest, Timestamp)> = Vec::new();
        for (lane, requested, now) in leases {
            if lock_in_order(&mut transaction, Row::Lane(lane)).await? {
                locked.push((requested, now));
            }
            transaction.step().await?;
        }
        let written = transaction.commit(|store, rows| {
            let grant = |(requested, now): (LaneRequest, Timestamp)| {
                (
                    requested.0,
                    store.acquire_one(rows, lease_request, requested, now),
                )
            };
            let granted: Vec<_> = locked.into_iter().map(grant).collect();
            keep_early_images(store, rows, early);
            granted
        });
        written.await
    }

    /// Renews the leases that the requester still holds; locked rows are skipped.
    pub(in crate::store) async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        self.lock_rows_externally(lease_grants.iter().map(|lease_grant| lease_grant.lane));
        let mut transaction = self.begin("renew");
        let seemed = transaction.read(|rows| {
            let ours = lease_grants
                .iter()
                .map(|lease_grant| rows.is_leased(lease_request, *lease_grant));
            ours.collect::<Vec<bool>>()
        });
        let ours = lease_grants
            .iter()
            .zip(&seemed)
            .filter(|(_, is_ours)| **is_ours);
        let mut ours: Vec<LeaseGrant> = ours.map(|(lease_grant, _)| *lease_grant).collect();
        self.sort_by_lane(&mut ours, |lease_grant| lease_grant.lane);
        transaction.step().await?;
        let mut renewed: Vec<LeaseGrant> = Vec::new();
        for lease_grant in ours {
            let row = Row::Lease(lease_grant.lane);
            let is_locked = if mutation::is_on(Mutation::RenewalWaitsForLocks) {
                transaction.lock(row).await?;
                true
            } else {
                lock_in_order(&mut transaction, row).await?
            };
            if is_locked && transaction.read(|rows| rows.is_leased(lease_request, lease_grant)) {
                renewed.push(lease_grant);
            }
            transaction.step().await?;
        }
        let now = transaction.now();
        let written = transaction.commit(|_, rows| {
            for lease_grant in &renewed {
                rows.renew(lease_request, *lease_grant, now);
            }
        });
        written.await?;
        let answer = |(lease_grant, seemed): (&LeaseGrant, &bool)| match (
            renewed.contains(lease_grant),
            seemed,
        ) {
            (true, _) => RenewOutcome::Renewed,
            (false, true) => RenewOutcome::Busy,
            (false, false) => RenewOutcome::Lost,
        };
        Ok(lease_grants.iter().zip(&seemed).map(answer).collect())
    }

    /// Releases lanes. A locked lane blocks no other one: it is waited for separately.
    pub(in crate::store) async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin("release");
        let mut ours = transaction.read(|rows| {
            let ours = lease_grants
                .iter()
                .filter(|lease_grant| rows.can_release(lease_request, **lease_grant));
            ours.copied().collect::<Vec<LeaseGrant>>()
        });
        ours.sort_by_key(|lease_grant| lease_grant.lane);
        transaction.step().await?;
        let (leases, mut locked): (Vec<LeaseGrant>, Vec<LeaseGrant>) = ours
            .into_iter()
            .partition(|lease_grant| transaction.try_lock(Row::Lease(lease_grant.lane)));
        transaction.step().await?;
        let (free, locked_lanes): (Vec<LeaseGrant>, Vec<LeaseGrant>) = leases
            .into_iter()
            .partition(|lease_grant| transaction.try_lock(Row::Lane(lease_grant.lane)));
        locked.extend(locked_lanes);
        let written = transaction.commit(|store, rows| {
            for lease_grant in free {
                store.release_one(rows, lease_request, lease_grant);
            }
        });
        written.await?;
        let separate = locked
            .into_iter()
            .map(|lease_grant| self.release_one(lease_request, lease_grant));
        let answers = join_all(separate).await;
        answers.into_iter().try_for_each(|answer| answer)?;
        Ok(())
    }

    async fn release_one(
        &self,
        lease_request: &LeaseRequest,
        lease_grant: LeaseGrant,
    ) -> Result<(), Abort> {
        let mut transaction = self.begin("release one");
        if !transaction.read(|rows| rows.can_release(lease_request, lease_grant)) {
            return Ok(());
        }
        transaction.step().await?;
        transaction.lock(Row::Lease(lease_grant.lane)).await?;
        transaction.step().await?;
        transaction.lock(Row::Lane(lease_grant.lane)).await?;
        let written =
            transaction.commit(|store, rows| store.release_one(rows, lease_request, lease_grant));
        written.await
    }

    /// Waits for the holder of the lane row, so that no earlier batch can be applied after the answer.
    pub(in crate::store) async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError> {
        let mut transaction = self.begin("regrant");
        let is_ours = transaction.read(|rows| {
            let lane = rows.lane(lease_grant.lane);
            lane.is_some_and(|lane| lane.may_regrant(lease_grant, grant))
        });
        transaction.step().await?;
        // A fence that failed never passes again, so there is nothing to wait for.
        if is_ours {
            transaction.lock(Row::Lane(lease_grant.lane)).await?;
        }
        let written = transaction.commit(|store, rows| store.regrant_one(rows, lease_grant, grant));
        Ok(written.await?)
    }

    /// Records that a lane is reconciled under this history, if that is still the store's.
    pub(in crate::store) async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError> {
        let transaction = self.as_keeper("mark reconciled", lease_grant).await?;
        let Some(transaction) = transaction else {
            return Ok(false);
        };
        Ok(transaction
            .commit(|_, rows| rows.mark_reconciled(lease_grant, history))
            .await?)
    }

    pub(in crate::store) async fn halt(
        &self,
        lease_grant: LeaseGrant,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let transaction = self.as_keeper("halt", lease_grant).await?;
        let Some(transaction) = transaction else {
            return Ok(false);
        };
        Ok(transaction
            .commit(|_, rows| rows.halt(lease_grant, reason))
            .await?)
    }

    /// A transaction that holds both rows of a lane; `None` when the grant is stale.
    async fn as_keeper(
        &self,
        verb: &'static str,
        lease_grant: LeaseGrant,
    ) -> Result<Option<Transaction>, Abort> {
        let mut transaction = self.begin(verb);
        for row in [Row::Lease(lease_grant.lane), Row::Lane(lease_grant.lane)] {
            if transaction.read(|rows| rows.held_by(lease_grant).is_none()) {
                return Ok(None);
            }
            transaction.step().await?;
            transaction.lock(row).await?;
        }
        let is_held = transaction.read(|rows| rows.held_by(lease_grant).is_some());
        Ok(is_held.then_some(transaction))
    }

    /// A node has seen more commits of a lane than the store has. Both rows are locked, as by a takeover.
    pub(in crate::store) async fn halt_lost_lane(
        &self,
        key: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin("halt lost lane");
        let lane = transaction.read(|rows| rows.lane_by_key(key).map(|lane| lane.id));
        let mut new = Vec::new();
        match lane {
            None => new = make_lanes(&mut transaction, vec![key]).await?,
            Some(lane) => {
                for row in [Row::Lease(lane), Row::Lane(lane)] {
                    transaction.step().await?;
                    transaction.lock(row).await?;
                }
            }
        }
        let halted = transaction.commit(|_, rows| {
            insert_lanes(rows, &new);
            rows.halt_lost_lane(key, batch_seq, grant, reason)
        });
        Ok(halted.await?)
    }

    /// An operator lets a lane continue as it is; returns whether it was halted.
    pub(in crate::store) async fn accept_loss(&self, key: LaneKey) -> Result<bool, StoreError> {
        let mut transaction = self.begin("accept loss");
        let lane = transaction.read(|rows| rows.lane_by_key(key).map(|lane| lane.id));
        let Some(lane) = lane else {
            return Ok(false);
        };
        for row in [Row::Lease(lane), Row::Lane(lane)] {
            transaction.step().await?;
            transaction.lock(row).await?;
        }
        Ok(transaction.commit(|_, rows| rows.accept_loss(key)).await?)
    }

    /// What a takeover that loads in its own statement reads: the state when the statement began.
    fn read_with(&self, wanted: &[(LaneId, LaneRequest)]) -> Vec<(GrantId, LaneRow)> {
        if !mutation::is_on(Mutation::LoadInTakeover) {
            return Vec::new();
        }
        let rows = self.store.rows();
        let read = wanted.iter().filter_map(|(lane, (_, grant))| {
            let lane = rows.lane(*lane)?;
            Some((*grant, lane.clone()))
        });
        read.collect()
    }
}

/// Keeps what takeovers have read for the later load of their lanes. The lane row's own columns are those of
/// the locked row, so they are current.
fn keep_early_images(store: &MemoryStore, rows: &Rows, early: Vec<(GrantId, LaneRow)>) {
    let mut kept = store.read_in_takeover();
    for (grant, read) in early {
        let Some(lane) = rows.lane(read.id) else {
            continue;
        };
        let image = LaneRow {
            txs: read.txs,
            requests: read.requests,
            nonces: read.nonces,
            wakes: read.wakes,
            ..lane.clone()
        };
        kept.insert(grant, image);
    }
}

/// SKIP LOCKED; `Mutation::LockWithoutOrder` waits instead.
async fn lock_in_order(transaction: &mut Transaction, row: Row) -> Result<bool, Abort> {
    if mutation::is_on(Mutation::LockWithoutOrder) {
        transaction.lock(row).await?;
        return Ok(true);
    }
    Ok(transaction.try_lock(row))
}

/// Locks the keys of unknown lanes, for [`insert_lanes`]. A transaction that creates one of them at the same
/// time is waited for.
pub(super) async fn make_lanes(
    transaction: &mut Transaction,
    mut keys: Vec<LaneKey>,
) -> Result<Vec<LaneKey>, Abort> {
    keys.sort_unstable();
    keys.dedup();
    for key in &keys {
        transaction.lock(Row::Key(*key)).await?;
    }
    if !keys.is_empty() {
        transaction.step().await?;
    }
    Ok(keys)
}

pub(super) fn insert_lanes(rows: &mut Rows, keys: &[LaneKey]) {
    for key in keys {
        rows.lane_of(*key);
    }
}
