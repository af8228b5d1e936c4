//! Which promises are checked in a world: those of all worlds, and those that depend on its rules.

use domain::lane::BalanceCheck;

use super::chain_plan::{LAG_MAX, PRICE_MIN};
use super::features::Feature;
use super::hostile_plan::HostilePlan;
use super::plan::Plan;
use crate::chain::FeeReport;
use crate::checkers::{
    self, AcceptsWithinBalance, BoundedMemory, Checker, FinalDepth, GapsClose, LaneNeverWedged,
    LanesStayOpen, NothingOverpays, OnlyHeadsGivenUp, OtherLanesNotDelayed, ReadersSkipNothing,
    ReservationHasOneHolder, StuckByPolicy,
};

/// A block this deep is known to every endpoint, also to one that lags and whose answers are late.
const KNOWN_DEPTH: u64 = 2 * LAG_MAX;
/// The same without faults: the delay of an answer only.
const KNOWN_DEPTH_CALM: u64 = 3;

/// The checkers of a world.
pub(super) fn build_checkers(plan: &Plan) -> Vec<Box<dyn Checker>> {
    let mut checkers = checkers::all();
    checkers.push(Box::new(StuckByPolicy::new(
        plan.lane,
        plan.lossy_failover.is_some() || plan.chain.staleness.without_old_blocks > 0,
    )));
    let timeout = plan.lane.blocked_timeout;
    checkers.push(Box::new(OnlyHeadsGivenUp::with_timeout(timeout)));
    let required = plan.final_depth();
    if plan.chain.fork_max <= required {
        checkers.push(Box::new(FinalDepth::new(move |_| required)));
    }
    checkers.push(Box::new(ReadersSkipNothing::default()));
    checkers.push(Box::new(GapsClose::with_bound(plan.gaps_within())));
    checkers.push(Box::new(BoundedMemory::with_limits(plan.limits())));
    if let Some(reservations) = plan.reservations {
        let deep = match plan.chain.fault_interval {
            None => KNOWN_DEPTH_CALM,
            Some(_) => KNOWN_DEPTH,
        };
        checkers.push(Box::new(ReservationHasOneHolder::for_lane(
            reservations.lane(),
            deep,
        )));
    }
    if plan.lane.balance == BalanceCheck::Check {
        let has_false_fees = plan.has_workload(Feature::FalseFees);
        let reported = plan.hostile.map(|hostile| hostile.fee_report);
        // Where no fees are reported, what moves nothing costs nothing.
        if !has_false_fees || reported != Some(FeeReport::Zero) {
            let price_min = if has_false_fees { 0 } else { PRICE_MIN };
            checkers.push(Box::new(AcceptsWithinBalance::at_price(price_min)));
        }
    }
    let own_lane = plan.hostile.and_then(HostilePlan::own_lane);
    let poisoned = plan.poison.map(|poison| poison.lane()).or(own_lane);
    if let Some(poisoned) = poisoned {
        checkers.push(Box::new(OtherLanesNotDelayed::for_poisoned_lane(poisoned)));
    }
    // A node whose release is late acquires again what the store still counts as its own.
    if own_lane.is_some() && !plan.has_workload(Feature::LateReleases) {
        checkers.push(Box::new(LanesStayOpen::default()));
    }
    checkers.push(Box::new(LaneNeverWedged::with_bound(
        plan.lanes().into_iter().chain(own_lane).collect(),
        plan.progress_within(),
        plan.chain.block_room,
    )));
    checkers.push(Box::new(NothingOverpays::new(plan.lane, plan.price_max())));
    checkers
}
