//! Lanes whose chain this node does not hear, while others may: they are given back.

use std::collections::{BTreeMap, BTreeSet};

use domain::{ChainId, LaneKey, Moment};
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

impl Shard {
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
