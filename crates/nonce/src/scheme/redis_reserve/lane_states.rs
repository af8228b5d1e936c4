//! What this process knows of each lane's generation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{LaneKey, MonotonicTime, Nonce};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use super::super::write_behind::BlockLease;
use super::scripts::UnrecordedReservation;

#[derive(Default)]
pub(super) struct LaneStates {
    lanes: Mutex<BTreeMap<LaneKey, LaneState>>,
}

#[derive(Default)]
pub(super) struct LaneState {
    /// The generation's lease, and the server to which it belongs.
    pub(super) lease: Option<(BlockLease, Arc<str>)>,
    /// A generation whose state in Redis is lost.
    pub(super) broken: Option<Uuid>,
    /// The ledger has recyclable nonces that Redis should issue first.
    pub(super) has_free: bool,
    /// Nonces were taken, or may have been, and are not pushed to Redis.
    pub(super) has_unpushed: bool,
    /// The chain's nonce at the last refill.
    pub(super) at_least: Nonce,
    /// Reservations that were unrecorded at the last pass.
    pub(super) unwritten: BTreeSet<UnrecordedReservation>,
    refill_lock: Arc<tokio::sync::Mutex<()>>,
}

impl LaneStates {
    pub(super) fn with<T>(&self, lane: LaneKey, f: impl FnOnce(&mut LaneState) -> T) -> T {
        f(self.lanes.lock().entry(lane).or_default())
    }

    /// The lease, if it needs no renewal, belongs to this server and allows such a reservation.
    pub(super) fn current_lease(
        &self,
        lane: LaneKey,
        server: &str,
        reservation_max: std::time::Duration,
        now: MonotonicTime,
    ) -> Option<BlockLease> {
        let lanes = self.lanes.lock();
        let (lease, of) = lanes.get(&lane)?.lease.as_ref()?;
        let is_good = &**of == server
            && !lease.needs_renewal(now)
            && lease.reservation_max >= reservation_max;
        is_good.then_some(*lease)
    }

    /// The state of this generation in Redis is lost.
    pub(super) fn mark_broken(&self, lane: LaneKey, token: Uuid) {
        self.with(lane, |state| {
            state.broken = Some(token);
            state.lease = None;
        });
    }

    /// The nonces of this generation are returned.
    pub(super) fn clear_lease(&self, lane: LaneKey, token: Uuid) {
        self.with(lane, |state| {
            state.lease.take_if(|(lease, _)| lease.token == token);
        });
    }

    /// Serialises the refills of a lane.
    pub(super) async fn lock_refill(&self, lane: LaneKey) -> OwnedMutexGuard<()> {
        let refill_lock = self.with(lane, |state| Arc::clone(&state.refill_lock));
        refill_lock.lock_owned().await
    }

    /// The same without waiting.
    pub(super) fn try_lock_refill(&self, lane: LaneKey) -> Option<OwnedMutexGuard<()>> {
        let refill_lock = self.with(lane, |state| Arc::clone(&state.refill_lock));
        refill_lock.try_lock_owned().ok()
    }

    /// All leases that are known here.
    pub(super) fn leases(&self) -> Vec<(LaneKey, BlockLease, Arc<str>)> {
        let lanes = self.lanes.lock();
        let all = lanes.iter().filter_map(|(lane, state)| {
            let (lease, server) = state.lease.as_ref()?;
            Some((*lane, *lease, Arc::clone(server)))
        });
        all.collect()
    }
}
