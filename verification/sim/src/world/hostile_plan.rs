//! What a seed decides about a hostile world: requests, endpoints and readers that could harm others. In one without other
//! faults they have a lane of their own, and all other lanes must not be delayed.

use alloy_primitives::Address;
use domain::LaneKey;
use engine::node::NonKeeper;

use super::chain_plan::{FEE, FEE_HIGH};
use super::features::{Feature, FeatureSet};
use super::options::Options;
use super::plan::{CHAIN, Plan};
use super::workload_plan::WORKLOADS_WITH_POISON;
use crate::chain::FeeReport;
use crate::rng::Rng;

/// How often a hostile world has each of them, per thousand worlds.
const ACTORS: [(Feature, u64); 8] = [
    (Feature::PoisonedRequests, 500),
    (Feature::HungMethods, 400),
    (Feature::FalseFees, 400),
    (Feature::FeeLimits, 500),
    (Feature::RepeatFloods, 400),
    (Feature::RevertFloods, 200),
    (Feature::ReaderFloods, 500),
    (Feature::LateReleases, 300),
];

/// The account of the lane that is harmed where nothing else goes wrong.
const OWN_ACCOUNT: Address = Address::repeat_byte(0x77);

/// The configured cap of fees: enough for what is quoted at the high price.
const FEE_CAP: u128 = 4 * FEE_HIGH;
/// How many worlds per thousand with limited fees have one; all do where fees are reported wrongly to nodes that start.
const FEE_CAP_PERMILLE: u64 = 500;
/// How many worlds per thousand take type 0 only.
const LEGACY_PERMILLE: u64 = 150;
/// A node of a world with late releases soon gives up idle lanes.
const IDLE_RELEASE_MS: (u64, u64) = (300, 2_000);
/// How much more than the highest recent price the default cap allows.
const DEFAULT_CAP_FACTOR: u128 = domain::fee::DEFAULT_CAP_FACTOR;

/// What harms others, and on which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostilePlan {
    /// The account of a lane of their own, where nothing else goes wrong.
    pub own_account: Option<Address>,
    /// What an endpoint reports as fees, at times.
    pub fee_report: FeeReport,
}

impl HostilePlan {
    /// The lane of their own.
    #[must_use]
    pub fn own_lane(self) -> Option<LaneKey> {
        self.own_account.map(|signer| LaneKey {
            chain_id: CHAIN,
            signer,
        })
    }
}

impl Plan {
    /// Draws what harms others. A world with a poisoned lane stays as it is.
    pub(super) fn make_hostile(&mut self, rng: &Rng, options: &Options) {
        let drawn = ACTORS.iter().filter(|(_, chance)| rng.permille(*chance));
        let mut actors: FeatureSet = drawn.map(|(feature, _)| *feature).collect();
        let (has_cap, is_legacy) = (
            rng.permille(FEE_CAP_PERMILLE),
            rng.permille(LEGACY_PERMILLE),
        );
        let fee_report = *rng.pick(&FeeReport::WRONG);
        let idle_release = rng.millis(IDLE_RELEASE_MS.0, IDLE_RELEASE_MS.1);
        if self.poison.is_some() {
            return;
        }
        if options.calm {
            self.leave_other_lanes_alone();
            if actors.contains(Feature::FalseFees) {
                // What may not pay the reported price is refused as long as it is reported: no fault of ours.
                actors = actors.without(Feature::FeeLimits);
            }
            if self.chain.endpoints == 1 {
                actors = actors.without(Feature::HungMethods);
            }
        }
        self.hostile = Some(HostilePlan {
            own_account: options.calm.then_some(OWN_ACCOUNT),
            fee_report: self.healable_report(fee_report),
        });
        self.workloads = actors.iter().fold(self.workloads, FeatureSet::with);
        let has_false_fees = actors.contains(Feature::FalseFees);
        if has_false_fees {
            // A jump that no chain makes is followed slowly.
            self.chain.stays_expensive = false;
        }
        // Where nodes start while wrong fees are reported, only a configured cap protects.
        let needs_cap = has_false_fees && !options.calm;
        if needs_cap || (actors.contains(Feature::FeeLimits) && has_cap) {
            self.lane.fee.cap = Some(FEE_CAP);
        }
        self.lane.fee.legacy = is_legacy && actors.contains(Feature::FeeLimits);
        if actors.contains(Feature::LateReleases) {
            self.lease.idle_release = idle_release;
        }
    }

    fn leave_other_lanes_alone(&mut self) {
        let beside = WORKLOADS_WITH_POISON.iter().copied();
        let workloads = self.workloads;
        self.workloads = beside
            .filter(|feature| workloads.contains(*feature))
            .collect();
        self.newcomers.clear();
        self.reservations = None;
        // Otherwise clients try node after node until they find the keeper.
        self.non_keeper = NonKeeper::Forward;
    }

    /// A report of no fees makes attempts that are never mined, unless they are replaced: where attempts are limited, an
    /// operator decides when they are used up.
    fn healable_report(&self, report: FeeReport) -> FeeReport {
        match report {
            FeeReport::Zero if self.lane.resubmit.max_attempts.is_some() => FeeReport::Thousandfold,
            FeeReport::Zero | FeeReport::Right | FeeReport::Thousandfold | FeeReport::NoBaseFee => {
                report
            }
        }
    }

    /// A limit that some price of the world fits into.
    pub(super) fn pick_fee_limit(&self, rng: &Rng) -> u128 {
        match self.chain.stays_expensive {
            true => FEE_CAP,
            false => *rng.pick(&[3 * FEE, 5 * FEE, 20 * FEE, FEE_CAP]),
        }
    }

    /// The most that anything without a limit of its own may offer: the cap of fees, or what the default cap allows at
    /// the highest price of this world.
    pub(super) fn price_max(&self) -> u128 {
        let can_rise = self.chain.fault_interval.is_some();
        let fee = if can_rise { FEE_HIGH } else { FEE };
        // Where all fees are right, the quote for a new transaction, twice the base fee and the tip, limits a bump.
        let highest = match self.has_workload(Feature::FalseFees) {
            true => 2 * fee,
            false => 3 * fee,
        };
        self.lane.fee.cap.unwrap_or(highest * DEFAULT_CAP_FACTOR)
    }
}
