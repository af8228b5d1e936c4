//! Requests that the account can or cannot pay for.

use std::sync::Arc;

use alloy_primitives::U256;

use crate::admission::AdmissionError;
use crate::lane::{
    AccountBalance, AdmittedRequest, BalanceCheck, CapacityRules, FundsDecision, Input, LaneRules,
};
use crate::window::MempoolDepth;
use crate::{MonotonicTime, Nonce};

use super::world::World;
use super::{request, rules};

/// What every request of these tests costs.
const COST: u64 = 30_000;
const GAS: u64 = 21_000;

/// A request that costs [`COST`] at most.
fn priced(number: u64) -> AdmittedRequest {
    let mut request = request(number);
    request.payload.value = U256::from(COST - GAS);
    request.payload.max_fee_per_gas = Some(1);
    request.gas = GAS;
    request
}

fn second(seconds: u64) -> MonotonicTime {
    MonotonicTime(seconds * 1_000_000)
}

impl World {
    /// An endpoint answers a query of this time.
    fn report_balance(&mut self, at: MonotonicTime, nonce: u64, balance: u64) {
        let answer = Some(AccountBalance {
            block: self.chain.height(),
            nonce: Nonce(nonce),
            balance: U256::from(balance),
        });
        let queried_at = at;
        self.input(Input::Balance { queried_at, answer });
    }

    fn decide(&self, arrived_at: MonotonicTime) -> FundsDecision {
        self.lane.check_funds(&priced(900), arrived_at)
    }

    fn accept_priced(&mut self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.input(Input::Accept(priced(number)));
        }
    }
}

/// The refusal of a request of these tests: what is missing, and what open txs can cost.
fn missing(decision: FundsDecision) -> (U256, U256) {
    let FundsDecision::Refuse(AdmissionError::Underfunded(shortfall)) = decision else {
        panic!("{decision:?}")
    };
    (shortfall.missing, shortfall.committed)
}

/// A head without a base fee quotes one price in full, below the limit with which the request is counted once accepted.
#[test]
fn named_limit_counts_in_full_whatever_the_head_quotes() {
    let mut world = World::ready(rules());
    let mut view = (*world.chain.view()).clone();
    view.fee.base_fee = None;
    view.fee.tip = 0;
    world.input(Input::Head(Arc::new(view)));
    world.report_balance(second(1), 0, COST - 1);
    let refused = world.decide(second(1));
    assert_eq!(missing(refused), (U256::from(1), U256::ZERO));
}

/// A tip that is named alone is counted on top of the chain's price, of which the chain's own tip is a part.
#[test]
fn request_needs_what_it_is_counted_with_once_it_is_open() {
    let mut world = World::ready(rules());
    let mut view = (*world.chain.view()).clone();
    view.fee.base_fee = Some(10);
    view.fee.tip = 1;
    world.input(Input::Head(Arc::new(view)));
    let mut request = priced(1);
    request.payload.value = U256::ZERO;
    request.payload.max_fee_per_gas = None;
    request.payload.max_priority_fee_per_gas = Some(5);
    let counted = (5 + 2 * 10 + 1) * GAS;
    world.report_balance(second(1), 0, counted - 1);
    let refused = world.lane.check_funds(&request, second(1));
    assert_eq!(missing(refused), (U256::from(1), U256::ZERO));
    world.report_balance(second(2), 0, counted);
    let accepted = world.lane.check_funds(&request, second(2));
    assert_eq!(accepted, FundsDecision::Accept);
}

#[test]
fn request_is_refused_only_by_a_balance_that_is_younger() {
    let mut world = World::ready(rules());
    assert_eq!(world.decide(second(1)), FundsDecision::QueryBalance);
    world.report_balance(second(1), 0, 2 * COST);
    assert_eq!(world.decide(second(2)), FundsDecision::Accept);
    world.accept_priced(100..102);
    let refused = world.decide(second(1));
    assert_eq!(
        missing(refused),
        (U256::from(COST), U256::from(2 * COST)),
        "the other two take it all"
    );
    let later = world.decide(second(2));
    assert_eq!(later, FundsDecision::QueryBalance, "perhaps funded since");
    world.report_balance(second(3), 0, 3 * COST);
    assert_eq!(world.decide(second(2)), FundsDecision::Accept);
    let old = world.decide(second(60));
    assert_eq!(old, FundsDecision::QueryBalance, "too old to serve");
}

#[test]
fn txs_that_wait_in_the_store_count_right_after_a_takeover() {
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            mempool_depth: MempoolDepth::Fixed(1),
            ..rules().capacity
        },
        ..rules()
    });
    world.accept_priced(100..105);
    world.deliver_all();
    assert_eq!(world.lane.in_flight().count(), 1, "the others wait");
    world.crash();
    world.follow();
    world.report_balance(second(1), 0, 5 * COST);
    let refused = world.decide(second(1));
    assert_eq!(missing(refused), (U256::from(COST), U256::from(5 * COST)));
}

#[test]
fn request_from_elsewhere_counts_once_it_is_adopted() {
    let mut world = World::ready(rules());
    let id = world.queue_elsewhere();
    world.deliver_all();
    assert!(world.lane.open_cost().wei.is_zero());
    world.input(Input::QueueChanged);
    world.deliver_all();
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(0)), "never refused");
    assert!(world.lane.open_cost().wei > U256::from(GAS), "signed");
}

#[test]
fn mined_txs_are_paid_for_once() {
    let mut world = World::ready(rules());
    world.report_balance(second(1), 0, 3 * COST);
    world.accept_priced(100..102);
    world.deliver_all();
    world.mine(2, true);
    world.deliver_all();
    // The balance before their block has not paid for them, that after it has.
    assert_eq!(world.decide(second(1)), FundsDecision::Accept);
    world.accept_priced(102..103);
    assert_eq!(
        missing(world.decide(second(1))),
        (U256::from(COST), U256::from(3 * COST))
    );
    world.report_balance(second(2), 2, 2 * COST);
    assert_eq!(world.decide(second(2)), FundsDecision::Accept);
    // They are final and leave memory: neither balance has more free money.
    world.mine(0, true);
    world.mine(0, true);
    world.deliver_all();
    assert_eq!(world.decide(second(2)), FundsDecision::Accept);
    world.accept_priced(103..104);
    assert_eq!(
        missing(world.decide(second(2))),
        (U256::from(COST), U256::from(2 * COST))
    );
}

#[test]
fn txs_that_became_final_since_are_no_free_money() {
    let mut world = World::ready(rules());
    world.report_balance(second(1), 0, COST);
    world.accept_priced(100..101);
    world.deliver_all();
    world.mine(1, true);
    world.mine(0, true);
    world.mine(0, true);
    world.deliver_all();
    assert_eq!(world.lane.in_flight().count(), 0);
    assert!(world.lane.open_cost().wei.is_zero());
    let refused = world.decide(second(1));
    assert_eq!(missing(refused), (U256::from(COST), U256::from(COST)));
    // An endpoint that is behind would show that money again: its answer does not count.
    world.report_balance(second(2), 0, COST);
    assert_eq!(world.decide(second(2)), FundsDecision::QueryBalance);
}

#[test]
fn reorg_makes_the_balance_unknown() {
    let mut world = World::ready(rules());
    world.accept_priced(100..101);
    world.deliver_all();
    world.mine(1, true);
    world.deliver_all();
    world.report_balance(second(1), 1, 9 * COST);
    assert_eq!(world.decide(second(1)), FundsDecision::Accept);
    world.fork(1, 0, 0, true);
    world.deliver_all();
    assert_eq!(world.decide(second(1)), FundsDecision::QueryBalance);
}

#[test]
fn without_an_answer_requests_are_accepted_for_a_while() {
    let mut world = World::ready(rules());
    let in_vain = |at| Input::Balance {
        queried_at: at,
        answer: None,
    };
    world.input(in_vain(second(10)));
    assert_eq!(world.decide(second(9)), FundsDecision::Accept);
    assert_eq!(world.decide(second(14)), FundsDecision::Accept);
    assert_eq!(world.decide(second(15)), FundsDecision::QueryBalance);
    world.report_balance(second(16), 0, 0);
    assert_eq!(missing(world.decide(second(14))).0, U256::from(COST));
    world.input(in_vain(second(17)));
    assert_eq!(world.decide(second(17)), FundsDecision::Accept);
}

#[test]
fn balance_is_refreshed_once_per_block_and_second() {
    let mut world = World::ready(rules());
    world.report_balance(second(1), 0, COST);
    assert!(!world.lane.is_balance_due(second(9)), "no new block");
    world.mine(0, true);
    world.deliver_all();
    assert!(world.lane.is_balance_due(second(2)));
    assert!(!world.lane.is_balance_due(MonotonicTime(1_999_999)));
}

#[test]
fn lane_that_does_not_check_accepts_everything() {
    let world = World::ready(LaneRules {
        balance: BalanceCheck::Off,
        ..rules()
    });
    assert_eq!(world.decide(second(1)), FundsDecision::Accept);
}
