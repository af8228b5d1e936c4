//! The leases that this node holds, and how long it may trust them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use domain::lease::LeaseTrust;
use domain::{History, LaneKey, LeaseGrant, MonotonicTime, Token};

use crate::core::lock;

#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<LaneKey, HeldLease>>,
}

#[derive(Clone, Copy)]
struct HeldLease {
    lease_grant: LeaseGrant,
    /// The store's history as of the grant.
    history: History,
    trust: LeaseTrust,
}

impl Leases {
    /// For how long bytes of this lane may be sent from now on; zero when they may not. The chain cannot
    /// check a fence, so this is read immediately before every send, and the send ends with it.
    pub(crate) fn trusted_for(&self, lane: LaneKey, now: MonotonicTime) -> Duration {
        lock(&self.held)
            .get(&lane)
            .map_or(Duration::ZERO, |held| held.trust.left(now))
    }

    /// The token under which this node holds the lane.
    pub(crate) fn token(&self, lane: LaneKey) -> Option<Token> {
        let held = lock(&self.held);
        held.get(&lane).map(|held| held.lease_grant.token)
    }

    /// Whether this node holds the lane, as far as it knows.
    pub(crate) fn holds(&self, lane: LaneKey) -> bool {
        lock(&self.held).contains_key(&lane)
    }

    /// Whether exactly this grant is held.
    pub(crate) fn holds_grant(&self, lane: LaneKey, lease_grant: LeaseGrant) -> bool {
        lock(&self.held)
            .get(&lane)
            .is_some_and(|held| held.lease_grant == lease_grant)
    }

    pub(crate) fn lanes(&self) -> Vec<LaneKey> {
        lock(&self.held).keys().copied().collect()
    }

    pub(crate) fn forget(&self, lane: LaneKey) {
        lock(&self.held).remove(&lane);
    }

    /// Forgets exactly this grant; a newer one stays.
    pub(crate) fn forget_grant(&self, lane: LaneKey, lease_grant: LeaseGrant) {
        let mut held = lock(&self.held);
        if held
            .get(&lane)
            .is_some_and(|held| held.lease_grant == lease_grant)
        {
            held.remove(&lane);
        }
    }

    /// The store's history as of exactly this grant; `None` when it is not held any more.
    pub(crate) fn history_of(&self, lane: LaneKey, lease_grant: LeaseGrant) -> Option<History> {
        let held = lock(&self.held).get(&lane).copied();
        let held = held.filter(|held| held.lease_grant == lease_grant);
        held.map(|held| held.history)
    }

    pub(super) fn record_grant(
        &self,
        lane: LaneKey,
        lease_grant: LeaseGrant,
        history: History,
        trust: LeaseTrust,
    ) {
        let held = HeldLease {
            lease_grant,
            history,
            trust,
        };
        lock(&self.held).insert(lane, held);
    }

    pub(super) fn record_renewal(&self, lane: LaneKey, lease_grant: LeaseGrant, trust: LeaseTrust) {
        if let Some(held) = lock(&self.held).get_mut(&lane)
            && held.lease_grant == lease_grant
        {
            held.trust = trust;
        }
    }

    pub(super) fn grants(&self) -> Vec<(LaneKey, LeaseGrant)> {
        lock(&self.held)
            .iter()
            .map(|(lane, held)| (*lane, held.lease_grant))
            .collect()
    }
}
