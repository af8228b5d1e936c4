//! Lanes whose chain this node does not hear, while others may: they are given back. And lanes of which the store was
//! told so and did not answer: it is told again.

use std::collections::{BTreeMap, BTreeSet};

use domain::{ChainId, LaneKey, LeaseGrant, MonotonicTime};
use metrics::counter;

use super::Shard;
use super::cells::Cell;

/// How often a node waits twice as long before it gives the lanes of a chain back once more.
const DOUBLED_MAX: u32 = 6;

/// The chains whose lanes were given back, since nothing was heard of them.
#[derive(Default)]
pub(super) struct GivenBack(BTreeMap<ChainId, Again>);

/// Requests bring lanes back here, also where nobody hears the chain: they do not go around for ever.
struct Again {
    times: u32,
    not_before: MonotonicTime,
}

/// Lanes that are forgotten here and that the store may still count as ours: nobody else takes them while this node
/// lives.
#[derive(Default)]
pub(super) struct Unreleased {
    lease_grants: BTreeMap<LaneKey, LeaseGrant>,
    not_before: MonotonicTime,
}

impl Shard {
    /// Tells the store that these lanes are anybody's.
    pub(super) async fn let_go(&mut self, lease_grants: BTreeMap<LaneKey, LeaseGrant>) {
        if lease_grants.is_empty() {
            return;
        }
        let all: Vec<LeaseGrant> = lease_grants.values().copied().collect();
        let core = &self.core;
        if let Err(error) = core.ports.store.release(&core.lease_request(), &all).await {
            tracing::warn!(%error, lanes = all.len(), "lanes could not be given back; trying again");
            let now = core.ports.clock.monotonic();
            self.unreleased.not_before = now.plus(core.config.lease.renew_interval);
            self.unreleased.lease_grants.extend(lease_grants);
        }
    }

    /// What the store is to be told once more: but for lanes that are wanted here again.
    pub(super) fn unreleased(&mut self, now: MonotonicTime) -> BTreeMap<LaneKey, LeaseGrant> {
        if now < self.unreleased.not_before {
            return BTreeMap::new();
        }
        let mut lease_grants = std::mem::take(&mut self.unreleased.lease_grants);
        lease_grants.retain(|lane, _| !self.lanes.contains_key(lane));
        lease_grants
    }

    /// The chains whose lanes are to be given back now.
    pub(super) fn unheard_chains(&mut self, now: MonotonicTime) -> BTreeSet<ChainId> {
        let lease = self.core.config.lease.duration;
        let mut unheard = BTreeSet::new();
        for chain in self.core.chains.keys() {
            if !self.core.is_deaf(*chain, now) {
                self.given_back.0.remove(chain);
                continue;
            }
            let is_live_for = |(lane, cell): (&LaneKey, &Cell)| {
                lane.chain_id == *chain && matches!(cell, Cell::Ready { .. })
            };
            let again = self.given_back.0.get(chain);
            let is_early = again.is_some_and(|again| now < again.not_before);
            if is_early || !self.lanes.iter().any(is_live_for) {
                continue;
            }
            let times = again.map_or(0, |again| again.times);
            let wait = lease.saturating_mul(2_u32.saturating_pow(times));
            let again = Again {
                times: times.saturating_add(1).min(DOUBLED_MAX),
                not_before: now.plus(wait),
            };
            self.given_back.0.insert(*chain, again);
            tracing::warn!(%chain, "nothing was heard of the chain for a lease; its lanes are given back");
            counter!("lanekeeper_lanes_given_back_total").increment(1);
            unheard.insert(*chain);
        }
        unheard
    }
}
