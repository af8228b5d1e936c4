//! Lanes whose chain this node does not hear, while others may: they are given back. And lanes of which the store was
//! told so and did not answer: it is told again.

use std::collections::{BTreeMap, BTreeSet};

use domain::{ChainId, LaneKey, Moment, Right};
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
    not_before: Moment,
}

/// Lanes that are forgotten here and that the store may still count as ours: nobody else takes them while this node
/// lives.
#[derive(Default)]
pub(super) struct Unreleased {
    rights: BTreeMap<LaneKey, Right>,
    not_before: Moment,
}

impl Shard {
    /// Tells the store that these lanes are anybody's.
    pub(super) async fn let_go(&mut self, rights: BTreeMap<LaneKey, Right>) {
        if rights.is_empty() {
            return;
        }
        let all: Vec<Right> = rights.values().copied().collect();
        let core = &self.core;
        if let Err(error) = core.ports.store.release(&core.ask(), &all).await {
            tracing::warn!(%error, lanes = all.len(), "lanes could not be given back; trying again");
            let now = core.ports.clock.moment();
            self.unreleased.not_before = now.plus(core.config.lease.renew_interval);
            self.unreleased.rights.extend(rights);
        }
    }

    /// What the store is to be told once more: but for lanes that are wanted here again.
    pub(super) fn unreleased(&mut self, now: Moment) -> BTreeMap<LaneKey, Right> {
        if now < self.unreleased.not_before {
            return BTreeMap::new();
        }
        let mut rights = std::mem::take(&mut self.unreleased.rights);
        rights.retain(|lane, _| !self.lanes.contains_key(lane));
        rights
    }

    /// The chains whose lanes are to be given back now.
    pub(super) fn unheard_chains(&mut self, now: Moment) -> BTreeSet<ChainId> {
        let lease = self.core.config.lease.duration;
        let mut unheard = BTreeSet::new();
        for chain in self.core.chains.keys() {
            if !self.core.is_deaf(*chain, now) {
                self.given_back.0.remove(chain);
                continue;
            }
            let is_kept = |(lane, cell): (&LaneKey, &Cell)| {
                lane.chain_id == *chain && matches!(cell, Cell::Ready { .. })
            };
            let again = self.given_back.0.get(chain);
            let is_early = again.is_some_and(|again| now < again.not_before);
            if is_early || !self.lanes.iter().any(is_kept) {
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
