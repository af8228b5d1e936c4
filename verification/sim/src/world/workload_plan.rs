//! What a seed decides beyond the faults: the workloads beside single requests; and the changes from the
//! command line.

use alloy_primitives::Address;
use domain::NodeName;
use engine::node::NonKeeper;

use super::features::{Feature, FeatureSet};
use super::options::{Changes, Options};
use super::plan::{Plan, RestorePlan};
use super::poison::{Poison, PoisonKind};
use super::reservation_plan::ReservationPlan;
use crate::chain::Staleness;
use crate::network::LinkFaults;
use crate::rng::Rng;

/// How often a busy world has each workload, per thousand worlds.
const WORKLOADS: [(Feature, u64); 8] = [
    (Feature::Batches, 500),
    (Feature::Readers, 700),
    (Feature::Queries, 400),
    (Feature::Restarts, 300),
    (Feature::Newcomers, 300),
    (Feature::Departures, 300),
    (Feature::Operator, 500),
    (Feature::NodeClocks, 400),
];

/// How often a calm world has a poisoned lane: only where there are no other faults is it known how
/// long the other lanes may take.
const POISON_PERMILLE: u64 = 600;

/// How often a busy world has an account whose nonces are reserved by clients.
const RESERVATIONS: u64 = 600;

/// How often a busy world, that is not calm, has endpoints that hang on sends.
const HUNG_SENDS_PERMILLE: u64 = 400;

/// How often all mempools are lost at the end, in worlds that are not calm.
const POOL_LOSS_PERMILLE: u64 = 300;

/// The workloads of a world with a poisoned lane: none that could delay a request by itself.
pub(super) const WORKLOADS_WITH_POISON: [Feature; 3] =
    [Feature::Batches, Feature::Readers, Feature::Queries];

/// How often what loses commits in a busy lossy world is a restored backup, per thousand worlds.
const RESTORE_PERMILLE: u64 = 500;
/// How old the backup is at most.
const RESTORE_AGE_MS_MAX: u64 = 40_000;

/// The account of the poisoned lane.
const POISONED_ACCOUNT: Address = Address::repeat_byte(0x66);

/// The number of requests for one lane in a few worlds: more than a lane loads into memory at once.
const LARGE_WORLD_REQUESTS: (u64, u64) = (600, 1_000);
/// In how many worlds per thousand.
const LARGE_WORLD_PERMILLE: u64 = 5;

/// The maximum drift of a node's clock, in millionths. Far worse than any real one.
pub(super) const DRIFT_PPM_MAX: u64 = 10_000;

impl Plan {
    /// Gives the world its workloads.
    pub(super) fn make_busy(&mut self, rng: &Rng, options: &Options) {
        let drawn = WORKLOADS.iter().filter(|(_, chance)| rng.permille(*chance));
        self.workloads = drawn
            .map(|(workload_feature, _)| *workload_feature)
            .collect();
        let newcomers = usize::try_from(rng.between(1, 2)).unwrap_or(1);
        if self.workloads.contains(Feature::Newcomers) {
            let names = ["d", "e"][..newcomers].iter();
            self.newcomers = names.map(|name| NodeName((*name).to_owned())).collect();
        }
        if rng.permille(LARGE_WORLD_PERMILLE) {
            self.request_plan.requests =
                rng.between(LARGE_WORLD_REQUESTS.0, LARGE_WORLD_REQUESTS.1);
            self.signers.truncate(1);
        }
        if options.lossy && rng.permille(RESTORE_PERMILLE) {
            self.restore = Some(RestorePlan {
                age: rng.millis(500, RESTORE_AGE_MS_MAX),
                restarts_nodes: rng.permille(500),
            });
        }
        if options.lossy && options.accept_loss {
            self.workloads = self.workloads.with(Feature::Operator);
        } else if options.lossy {
            self.workloads = self.workloads.without(Feature::Operator);
        }
        if options.calm && rng.permille(POISON_PERMILLE) {
            self.poison(rng);
        }
        self.chain.forgets = !options.calm && rng.permille(POOL_LOSS_PERMILLE);
        // A store that loses commits loses reservations, and the answers about them promise nothing any more.
        if rng.permille(RESERVATIONS) && !options.lossy && self.poison.is_none() {
            self.workloads = self.workloads.with(Feature::Reservations);
            self.reservations = Some(ReservationPlan::new(rng));
        }
        if !options.calm && rng.permille(HUNG_SENDS_PERMILLE) {
            self.workloads = self.workloads.with(Feature::HungSends);
        }
    }

    fn poison(&mut self, rng: &Rng) {
        let beside = WORKLOADS_WITH_POISON.iter().copied();
        let beside: FeatureSet = beside
            .filter(|workload_feature| self.workloads.contains(*workload_feature))
            .collect();
        self.workloads = beside.with(Feature::Poison);
        self.newcomers.clear();
        // Otherwise clients try node after node until they find the keeper.
        self.non_keeper = NonKeeper::Forward;
        self.poison = Some(Poison {
            account: POISONED_ACCOUNT,
            kind: *rng.pick(&PoisonKind::ALL),
        });
    }

    /// Applies the changes from the command line.
    pub(super) fn change(&mut self, changes: &Changes) {
        let Changes {
            without,
            requests,
            lanes,
            nodes,
            faults,
        } = *changes;
        self.disable_features(without);
        self.requests_max = requests;
        self.lanes_max = lanes.or(self.lanes_max);
        self.faults_max = faults;
        self.nodes.truncate(nodes.unwrap_or(usize::MAX).max(1));
    }

    fn disable_features(&mut self, without: FeatureSet) {
        self.without = without;
        let lines = [
            (Feature::StoreLink, &mut self.store_link),
            (Feature::PeerLink, &mut self.peer_link),
            (Feature::ChainLink, &mut self.chain.link),
        ];
        for (feature, line) in lines {
            if without.contains(feature) {
                *line = LinkFaults::healthy(line.travel_ms_max);
            }
        }
        self.clock_jumps &= !without.contains(Feature::ClockJumps);
        self.failovers &= !without.contains(Feature::Failovers);
        self.lossy_failover = self
            .lossy_failover
            .filter(|_| !without.contains(Feature::Loss));
        self.restore = self
            .restore
            .filter(|_| !without.contains(Feature::Restores));
        self.poison = self.poison.filter(|_| !without.contains(Feature::Poison));
        self.lane.fee.cap = self
            .lane
            .fee
            .cap
            .filter(|_| !without.contains(Feature::FeeLimits));
        self.reservations = self
            .reservations
            .filter(|_| !without.contains(Feature::Reservations));
        let numbers = [
            (Feature::Foreign, &mut self.chain.foreign_max),
            (Feature::Lag, &mut self.chain.lag_for_good),
            (Feature::SignerUnavailable, &mut self.unsigned),
            (Feature::BadRequests, &mut self.request_plan.reverting),
            (Feature::BadRequests, &mut self.request_plan.unsignable),
            (Feature::BadRequests, &mut self.request_plan.rejected),
            (Feature::BadRequests, &mut self.request_plan.disputed),
            (
                Feature::BadRequests,
                &mut self.request_plan.sometimes_rejected,
            ),
        ];
        for (feature, number) in numbers {
            if without.contains(feature) {
                *number = 0;
            }
        }
        if without.contains(Feature::Stale) {
            self.chain.staleness = Staleness::NONE;
        }
        if without.contains(Feature::Newcomers) {
            self.newcomers.clear();
        }
    }

    /// Whether the world has this workload.
    #[must_use]
    pub fn has_workload(&self, workload_feature: Feature) -> bool {
        self.workloads.contains(workload_feature) && self.allows(workload_feature)
    }

    /// Whether this feature is enabled.
    #[must_use]
    pub fn allows(&self, feature: Feature) -> bool {
        !self.without.contains(feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(seed: u64, options: Options) -> Plan {
        let rng = Rng::new(seed);
        let mut plan = Plan::stormy(&rng);
        plan.make_busy(&rng, &options);
        plan
    }

    #[test]
    fn every_workload_occurs_and_poison_excludes_faults() {
        let calm = Options {
            calm: true,
            busy: true,
            ..Options::default()
        };
        let plans: Vec<Plan> = (0..200).map(|seed| busy(seed, calm)).collect();
        for (workload_feature, _) in WORKLOADS {
            assert!(
                plans.iter().any(|plan| plan.has_workload(workload_feature)),
                "{workload_feature:?}"
            );
        }
        let poisoned: Vec<&Plan> = plans.iter().filter(|plan| plan.poison.is_some()).collect();
        assert!(poisoned.len() > 50);
        for plan in poisoned {
            assert!(plan.has_workload(Feature::Poison) && !plan.has_workload(Feature::Restarts));
        }
    }

    #[test]
    fn disabled_features_are_absent() {
        let without: FeatureSet = super::super::features::FEATURES
            .iter()
            .map(|(feature, _)| *feature)
            .collect();
        let changes = Changes {
            without,
            nodes: Some(1),
            ..Changes::default()
        };
        for seed in 0..50 {
            let mut plan = busy(seed, Options::default());
            plan.change(&changes);
            assert_eq!((plan.nodes.len(), plan.newcomers.len()), (1, 0));
            assert_eq!((plan.chain.foreign_max, plan.unsigned), (0, 0));
            assert_eq!(plan.store_link.response_lost, 0);
            assert!(!plan.failovers && !plan.has_workload(Feature::Readers));
        }
    }
}
