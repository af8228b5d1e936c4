//! Releasing lanes: when the node drains, when a lane was idle for long, and when this node cannot reach the lane's
//! chain while other nodes may. A release that the store did not answer is sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{ChainId, LaneKey, LeaseGrant, MonotonicTime};
use metrics::counter;

use super::lane_cell::answer_released;
use super::{LaneCell, Shard, refuse_creates};
use crate::node::Refusal;

/// How often the wait doubles before the lanes of an unreachable chain are released once more.
const DOUBLED_MAX: u32 = 6;

/// When the lanes of each unreachable chain may be released again. Requests bring lanes back to this node even where
/// no node reaches the chain: without a backoff they would circulate.
#[derive(Default)]
pub(super) struct ReleaseBackoff(BTreeMap<ChainId, ChainBackoff>);

struct ChainBackoff {
    times: u32,
    not_before: MonotonicTime,
}

/// Grants that this node has dropped and that the store may still count as its own: no other node gets those lanes
/// while this one is alive.
#[derive(Default)]
pub(super) struct PendingReleases {
    lease_grants: BTreeMap<LaneKey, LeaseGrant>,
    not_before: MonotonicTime,
}

impl Shard {
    /// Releases every lane, and returns those that have work. Nothing is in flight: a turn ends with its commit.
    pub(super) async fn drain_lanes(&mut self) -> Vec<LaneKey> {
        self.is_draining = true;
        self.store_floors_of_idle_lanes().await;
        let has_work = |cell: &LaneCell| match cell {
            LaneCell::Ready { lane, .. } => !lane.is_idle(),
            LaneCell::Opening { .. } | LaneCell::UnknownCommit { .. } => true,
            LaneCell::Halted { .. } => false,
        };
        let lanes = self.lanes.iter();
        let busy = lanes
            .filter(|(_, cell)| has_work(cell))
            .map(|(key, _)| *key);
        let busy = busy.collect();
        let keys: Vec<LaneKey> = self.lanes.keys().copied().collect();
        self.release_lanes(keys).await;
        let waiting = self.take_waiting_for_balance();
        waiting.into_iter().for_each(answer_released);
        busy
    }

    /// Releases lanes, so that any node may acquire them at once.
    pub(super) async fn release_lanes(&mut self, keys: Vec<LaneKey>) {
        let mut lease_grants = BTreeMap::new();
        for key in keys {
            match self.lanes.remove(&key) {
                Some(LaneCell::Ready { lane, .. }) => {
                    lease_grants.insert(key, lane.lease_grant());
                    self.forget_lane(key);
                }
                Some(LaneCell::Opening { waiting }) => {
                    waiting.into_iter().for_each(answer_released);
                }
                Some(LaneCell::UnknownCommit { batch, waiting, .. }) => {
                    let creates = batch.creates.into_iter().chain(waiting);
                    refuse_creates(creates, &Refusal::OutcomeUnknown);
                }
                Some(LaneCell::Halted { .. }) | None => {}
            }
        }
        self.release_grants(lease_grants).await;
    }

    /// Releases a lane that was granted while the node was draining.
    pub(super) fn release_late_grant(&self, key: LaneKey, lease_grant: LeaseGrant) {
        self.core.leases.forget(key);
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("release late grant", async move {
            core.release_grants(&[lease_grant]).await.ok(); // the lease expires by itself
        });
    }

    pub(super) async fn release_grants(&mut self, lease_grants: BTreeMap<LaneKey, LeaseGrant>) {
        if lease_grants.is_empty() {
            return;
        }
        let all: Vec<LeaseGrant> = lease_grants.values().copied().collect();
        let core = &self.core;
        if let Err(error) = core.release_grants(&all).await {
            tracing::warn!(%error, lanes = all.len(), "lanes could not be released; retrying");
            let now = core.ports.clock.monotonic();
            self.pending_releases.not_before = now.plus(core.config.lease.renew_interval);
            self.pending_releases.lease_grants.extend(lease_grants);
        }
    }

    /// The releases that are due again, without lanes that are open here once more.
    pub(super) fn take_pending_releases(
        &mut self,
        now: MonotonicTime,
    ) -> BTreeMap<LaneKey, LeaseGrant> {
        if now < self.pending_releases.not_before {
            return BTreeMap::new();
        }
        let mut lease_grants = std::mem::take(&mut self.pending_releases.lease_grants);
        lease_grants.retain(|lane, _| !self.lanes.contains_key(lane));
        lease_grants
    }

    /// The unreachable chains whose lanes are to be released now.
    pub(super) fn chains_to_release(&mut self, now: MonotonicTime) -> BTreeSet<ChainId> {
        let lease = self.core.config.lease.duration;
        let mut unreachable = BTreeSet::new();
        for chain in self.core.chains.keys() {
            if !self.core.is_chain_unreachable(*chain, now) {
                self.release_backoff.0.remove(chain);
                continue;
            }
            let is_ready = |(lane, cell): (&LaneKey, &LaneCell)| {
                lane.chain_id == *chain && matches!(cell, LaneCell::Ready { .. })
            };
            let backoff = self.release_backoff.0.get(chain);
            let is_early = backoff.is_some_and(|backoff| now < backoff.not_before);
            if is_early || !self.lanes.iter().any(is_ready) {
                continue;
            }
            let times = backoff.map_or(0, |backoff| backoff.times);
            let wait = lease.saturating_mul(2_u32.saturating_pow(times));
            let backoff = ChainBackoff {
                times: times.saturating_add(1).min(DOUBLED_MAX),
                not_before: now.plus(wait),
            };
            self.release_backoff.0.insert(*chain, backoff);
            tracing::warn!(%chain, "the chain was unreachable for a whole lease; its lanes are released to other nodes");
            counter!("lanekeeper_lanes_given_back_total").increment(1);
            unreachable.insert(*chain);
        }
        unreachable
    }
}
