//! Endpoints that report nonces above the lane's own, truly or not.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::rules;
use super::world::{Job, World, answered};
use crate::lane::{AccountNonces, Agreement, ChainQuery, EndpointNonces, Input, NonceConsumer};
use crate::{EventKind, Nonce};

/// A lane behind endpoints of which the first may report too much.
struct Endpoints {
    world: World,
    count: usize,
    /// How much higher than the truth the first one reports every nonce.
    lie: u64,
    /// Whether no endpoint shows which transaction consumed a nonce.
    hides_blocks: bool,
}

impl Endpoints {
    fn new(count: usize) -> Self {
        Self {
            world: World::ready(rules()),
            count,
            lie: 0,
            hides_blocks: false,
        }
    }

    fn report(&self) -> EndpointNonces {
        let mut truth = self.world.chain.nonces();
        if self.world.rules.nonce.chain_query == ChainQuery::Latest {
            truth.pending = truth.latest;
        }
        let lie = AccountNonces {
            latest: Nonce(truth.latest.0 + self.lie),
            pending: Nonce(truth.pending.0 + self.lie),
        };
        let is_twice = self.world.lane.chain.was_queried_with_quorum();
        match self.count {
            1 => EndpointNonces::new(lie, None, Agreement::Quorum),
            _ if !is_twice => EndpointNonces::new(lie, None, Agreement::One),
            count => {
                let mut nonces = EndpointNonces::new(lie, Some(truth), Agreement::Quorum);
                nonces.third = (count > 2 && nonces.is_contradictory()).then_some(truth);
                nonces
            }
        }
    }

    /// Answers all that is under way.
    fn answer_all(&mut self) {
        self.world.commit();
        for _ in 0..200 {
            let Some(job) = self.world.jobs.first() else {
                if !self.world.follow() {
                    return;
                }
                self.world.commit();
                continue;
            };
            if let Job::QueryNonces(_) = job {
                self.world.jobs.remove(0);
                let report = self.report();
                self.world.input(answered(report));
            } else if let Job::FindConsumer { nonce, up_to, .. } = job
                && self.hides_blocks
            {
                let (nonce, up_to) = (*nonce, up_to.number);
                self.world.jobs.remove(0);
                self.world.input(Input::Consumed {
                    nonce,
                    up_to,
                    by: Some(NonceConsumer::Unattributed),
                    hashes: Vec::new(),
                    is_named: false,
                });
            } else {
                self.world.answer(0, 0);
            }
            self.world.commit();
        }
        panic!("answers make questions without end: {:?}", self.world.jobs);
    }

    fn pass_seconds(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.world.tick(1_000);
            self.answer_all();
            self.world.mine(usize::MAX, true);
            self.answer_all();
        }
    }

    /// Has the chain queried, as a send with an unclear outcome does.
    fn query(&mut self) {
        let report = match self.count {
            1 => self.report(),
            _ => EndpointNonces::new(self.report().first, None, Agreement::One),
        };
        self.world.input(answered(report));
        self.answer_all();
    }

    /// Whether a new request is in a block within so many seconds.
    fn pays_within(&mut self, seconds: u64) -> bool {
        let id = self.world.accept();
        self.answer_all();
        self.pass_seconds(seconds);
        self.world.store.rows[&id].inclusion.is_some()
    }
}

#[test]
fn claim_that_two_endpoints_contradict_does_not_stop_the_lane() {
    let mut endpoints = Endpoints::new(3);
    assert!(endpoints.pays_within(2));
    endpoints.lie = 5;
    endpoints.query();
    assert_eq!(endpoints.world.lane.waiting_for(), None);
    assert!(endpoints.pays_within(1));
    assert_eq!(endpoints.world.lane.next_nonce(), Nonce(2));
    endpoints.world.heal();
}

#[test]
fn claim_that_one_endpoint_contradicts_delays_the_lane_by_seconds_once() {
    let mut endpoints = Endpoints::new(2);
    assert!(endpoints.pays_within(2));
    endpoints.lie = 5;
    endpoints.query();
    let why = endpoints.world.lane.waiting_for();
    assert!(why.is_some_and(|why| why.contains("second endpoint")));
    assert!(endpoints.pays_within(5));
    endpoints.query();
    assert!(endpoints.pays_within(1), "once");
    assert_eq!(endpoints.world.lane.next_nonce(), Nonce(3));
    endpoints.world.heal();
}

#[test]
fn endpoint_behind_the_lanes_own_receipts_contradicts_nothing() {
    let mut endpoints = Endpoints::new(2);
    assert!(endpoints.pays_within(2));
    let report = |latest: u64| AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(latest),
    };
    endpoints.world.accept();
    for _ in 0..10 {
        endpoints.world.tick(1_000);
        let answer = EndpointNonces::new(report(5), Some(report(0)), Agreement::Quorum);
        endpoints.world.input(answered(answer));
        endpoints.world.commit();
    }
    assert!(endpoints.world.lane.is_halted());
    endpoints.world.heal();
}

#[test]
fn nonce_that_two_of_three_endpoints_claim_moves_the_cursor_to_what_both_report() {
    let mut endpoints = Endpoints::new(3);
    assert!(endpoints.pays_within(2));
    let report = |latest: u64| AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(latest),
    };
    let mut answer = EndpointNonces::new(report(400), Some(report(3)), Agreement::Quorum);
    answer.third = Some(report(1));
    endpoints.world.input(answered(answer));
    assert_eq!(endpoints.world.lane.next_nonce(), Nonce(3));
    assert_eq!(endpoints.world.lane.waiting_for(), None);
    let events = endpoints.world.draft.event_seq();
    endpoints.world.input(answered(answer));
    assert_eq!(
        endpoints.world.draft.event_seq(),
        events,
        "nothing new is claimed by two"
    );
}

#[test]
fn block_does_not_prove_a_jump_above_the_maximum() {
    let mut endpoints = Endpoints::new(2);
    assert!(endpoints.pays_within(2));
    endpoints.lie = 50;
    endpoints.query();
    let why = endpoints.world.lane.waiting_for();
    assert!(why.is_some_and(|why| why.contains("nonce.maxChainJump")));
    let searches = |job: &Job| matches!(job, Job::FindConsumer { .. });
    assert!(!endpoints.world.jobs.iter().any(searches));
    assert!(endpoints.pays_within(5), "another endpoint contradicts it");
    endpoints.world.heal();
}

#[test]
fn unproven_claim_of_the_only_endpoint_moves_nothing_and_ends_with_it() {
    let mut endpoints = Endpoints::new(1);
    assert!(endpoints.pays_within(2));
    endpoints.lie = 5;
    endpoints.query();
    assert!(!endpoints.pays_within(9));
    assert!(endpoints.world.lane.is_halted());
    assert_eq!(endpoints.world.lane.next_nonce(), Nonce(1));
    endpoints.lie = 0;
    endpoints.pass_seconds(5);
    assert_eq!(endpoints.world.lane.waiting_for(), None);
    assert!(endpoints.pays_within(1));
    assert_eq!(endpoints.world.lane.next_nonce(), Nonce(3));
    assert_eq!(endpoints.world.lane.gaps(), []);
    endpoints.world.heal();
}

#[test]
fn block_proves_what_only_one_endpoint_claims() {
    for count in 1..=2 {
        let mut endpoints = Endpoints::new(count);
        assert!(endpoints.pays_within(2));
        endpoints.world.use_elsewhere(0);
        endpoints.world.mine(1, true);
        endpoints.answer_all();
        // With two endpoints only the first reports it, and the other is down.
        let reported = endpoints.world.chain.nonces();
        let agreement = match count {
            1 => Agreement::Quorum,
            _ => Agreement::Living,
        };
        let answer = EndpointNonces::new(reported, None, agreement);
        endpoints.world.input(answered(answer));
        endpoints.answer_all();
        assert_eq!(endpoints.world.lane.next_nonce(), Nonce(2));
        assert_eq!(endpoints.world.lane.waiting_for(), None);
        let kinds = endpoints.world.store.events.iter().map(|event| &event.kind);
        let named = kinds.filter(|kind| {
            matches!(
                kind,
                EventKind::LaneForeignNonce {
                    nonce: Nonce(1),
                    tx_hash: Some(_)
                }
            )
        });
        assert_eq!(named.count(), 1);
        assert!(endpoints.pays_within(1));
        endpoints.world.heal();
    }
}

#[test]
fn consumed_nonce_that_no_block_shows_counts_when_it_is_final() {
    let mut endpoints = Endpoints::new(1);
    endpoints.hides_blocks = true;
    assert!(endpoints.pays_within(2));
    endpoints.world.use_elsewhere(0);
    endpoints.world.mine(1, true);
    endpoints.answer_all();
    endpoints.query();
    let id = endpoints.world.accept();
    endpoints.pass_seconds(9);
    assert_eq!(endpoints.world.store.rows[&id].nonce, None);
    endpoints.pass_seconds(9);
    assert_eq!(endpoints.world.store.rows[&id].nonce, Some(Nonce(2)));
    endpoints.world.heal();
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Accept,
    Lie(u64),
    Query,
    Seconds(u64),
    Crash,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => Just(Move::Accept),
        2 => (0..14_u64).prop_map(Move::Lie),
        3 => Just(Move::Query),
        4 => (1..8_u64).prop_map(Move::Seconds),
        1 => Just(Move::Crash),
    ];
    prop::collection::vec(one, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// No other program uses the account: whatever one endpoint reports, every nonce below the cursor is a tx's.
    #[test]
    fn no_claim_of_one_endpoint_moves_the_cursor(
        count in 1..4_usize, includes_pools in any::<bool>(), moves in moves(),
    ) {
        let mut endpoints = Endpoints::new(count);
        if !includes_pools {
            endpoints.world.rules.nonce.chain_query = ChainQuery::Latest;
            endpoints.world.reload();
        }
        prop_assert!(endpoints.pays_within(2));
        let mut accepted = 1;
        for one in moves {
            match one {
                Move::Accept => {
                    endpoints.world.accept();
                    accepted += 1;
                    endpoints.answer_all();
                }
                Move::Lie(by) => endpoints.lie = by,
                Move::Query => endpoints.query(),
                Move::Seconds(seconds) => endpoints.pass_seconds(seconds),
                Move::Crash => endpoints.world.crash(),
            }
            prop_assert!(endpoints.world.lane.next_nonce() <= Nonce(accepted));
        }
        if count > 1 {
            prop_assert!(endpoints.pays_within(12), "{:?}", endpoints.world.lane.waiting_for());
        }
        endpoints.lie = 0;
        endpoints.world.heal();
        prop_assert!(endpoints.world.lane.next_nonce() <= Nonce(accepted + 1));
    }
}
