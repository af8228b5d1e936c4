//! Lent nonces: borrowed, used, given back, forgotten.

use std::time::Duration;

use alloy_primitives::B256;
use uuid::Uuid;

use super::world::{Job, World};
use super::{KEY, rules, tx_id};
use crate::lane::reserve::{
    MarkOutcome, ReservationRules, ReservationTerms, lent_to, reservation_request_id,
};
use crate::lane::{AdmittedRequest, Input, LaneRules, NonceConsumer};
use crate::window::{Release, Window};
use crate::{
    EffectDigest, Holder, Mark, MarkRefusal, Nonce, Reservation, ReservationState, TxState,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(5);
/// For rows that name none.
const LENDING: ReservationRules = ReservationRules {
    timeout: Duration::from_secs(7),
    grace: GRACE,
};

fn lending() -> LaneRules {
    LaneRules {
        lent: Some(LENDING),
        ..rules()
    }
}

fn holder(number: u128) -> Holder {
    Holder(Uuid::from_u128(number))
}

fn hash(number: u8) -> B256 {
    B256::repeat_byte(number)
}

/// Borrows under a name, and gives what was lent.
fn borrow(world: &mut World, name: u128) -> u64 {
    borrow_with(world, name, TIMEOUT, 0).expect("lent at once")
}

/// Borrows as somebody who saw the chain so far; gives what was lent at once.
fn borrow_with(world: &mut World, name: u128, timeout: Duration, at_least: u64) -> Option<u64> {
    let at_least = Nonce(at_least);
    let payload = ReservationTerms { timeout, at_least }.payload(KEY);
    let id = tx_id(1_000_000 + u64::try_from(name).expect("small"));
    world.input(Input::Accept(AdmittedRequest {
        id,
        request_id: reservation_request_id(holder(name)),
        fingerprint: payload.fingerprint(),
        payload,
        gas: 0,
    }));
    world.commit();
    world.store.rows[&id].nonce.map(|nonce| nonce.0)
}

fn of(world: &World, name: u128) -> Reservation {
    let request = reservation_request_id(holder(name));
    let tx = world
        .store
        .rows
        .values()
        .find(|tx| tx.request_id == request);
    lent_to(KEY, tx.expect("lent"), Some(Nonce(0)), LENDING).expect("a loan")
}

fn mark(world: &mut World, nonce: u64, name: u128, mark: &Mark) -> MarkOutcome {
    let marked = world.mark(nonce, holder(name), mark);
    world.commit();
    world.settle_all();
    marked
}

fn is_taken(marked: &MarkOutcome) -> bool {
    matches!(marked, MarkOutcome::Taken(_))
}

fn give_back() -> Mark {
    give_back_named(None)
}

/// After the chain was asked about this transaction.
fn give_back_named(asked: Option<B256>) -> Mark {
    Mark::Recyclable {
        reason: "not needed".to_owned(),
        asked,
    }
}

/// Time for a lane that is looked at a few times a second.
fn pass(world: &mut World, time: Duration) {
    for _ in 0..time.as_secs() {
        world.tick(1_000);
        world.settle_all();
    }
}

fn sends_nothing(world: &World) {
    let sends = |job: &Job| matches!(job, Job::Sign(_) | Job::Send(_));
    assert!(!world.jobs.iter().any(sends), "{:?}", world.jobs);
}

#[test]
fn the_smallest_free_nonce_is_lent_first() {
    let mut world = World::ready(lending());
    let lent: Vec<u64> = (0..4).map(|name| borrow(&mut world, name)).collect();
    assert_eq!(lent, [0, 1, 2, 3]);
    assert!(is_taken(&mark(&mut world, 2, 2, &give_back())));
    assert!(is_taken(&mark(&mut world, 1, 1, &give_back())));
    assert_eq!(of(&world, 1).state, ReservationState::Recyclable);
    let again: Vec<u64> = (4..7).map(|name| borrow(&mut world, name)).collect();
    assert_eq!(again, [1, 2, 4]);
    sends_nothing(&world);
}

#[test]
fn a_former_holder_changes_nothing() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    mark(&mut world, 0, 0, &give_back());
    assert_eq!(borrow(&mut world, 1), 0);
    let late = mark(&mut world, 0, 0, &Mark::Used(hash(1)));
    assert_eq!(late, MarkOutcome::Refused(MarkRefusal::NotHolder(Nonce(0))));
    assert_eq!(of(&world, 1).tx_hash, None);
    let never = mark(&mut world, 7, 0, &Mark::Used(hash(1)));
    assert_eq!(never, MarkOutcome::Refused(MarkRefusal::NotLent(Nonce(7))));
    mark(&mut world, 0, 1, &give_back());
    let free = mark(&mut world, 0, 1, &Mark::Used(hash(1)));
    assert_eq!(
        free,
        MarkOutcome::NotOpen { is_free: true },
        "his row tells him"
    );
}

#[test]
fn what_its_holder_sent_is_closed_by_the_chain_and_opened_by_a_fork() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    let submitted = Mark::Submitted(hash(1));
    assert!(is_taken(&mark(&mut world, 0, 0, &submitted)));
    assert!(
        is_taken(&mark(&mut world, 0, 0, &submitted)),
        "twice is fine"
    );
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    world.chain.take(Nonce(0), hash(1));
    world.mine(1, true);
    world.settle_all();
    assert_eq!(of(&world, 0).state, ReservationState::Reserved, "not final");
    for _ in 0..3 {
        world.mine(0, true);
        world.settle_all();
    }
    assert_eq!(of(&world, 0).state, ReservationState::Used);
    assert_eq!(of(&world, 0).tx_hash, Some(hash(1)));
    world.fork(4, 0, 0, true);
    world.settle_all();
    assert_eq!(of(&world, 0).state, ReservationState::Reserved, "reopened");
    sends_nothing(&world);
}

#[test]
fn used_is_used_and_another_transaction_is_refused() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    borrow(&mut world, 1);
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(1)))));
    assert_eq!(of(&world, 0).state, ReservationState::Used);
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(1)))));
    let other = mark(&mut world, 0, 0, &Mark::Used(hash(2)));
    assert!(matches!(
        other,
        MarkOutcome::Refused(MarkRefusal::IsUsed { .. })
    ));
    let back = mark(&mut world, 0, 0, &give_back());
    assert!(matches!(
        back,
        MarkOutcome::Refused(MarkRefusal::IsUsed { .. })
    ));
    let elsewhere = mark(&mut world, 1, 1, &Mark::Submitted(hash(1)));
    let refused = MarkRefusal::HashElsewhere {
        hash: hash(1),
        nonce: Nonce(0),
    };
    assert_eq!(elsewhere, MarkOutcome::Refused(refused));
}

#[test]
fn the_last_word_counts_also_when_it_was_said_before() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    for name in [1, 2, 1] {
        let said = mark(&mut world, 0, 0, &Mark::Submitted(hash(name)));
        assert!(is_taken(&said));
        assert_eq!(of(&world, 0).tx_hash, Some(hash(name)));
    }
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(2)))));
    assert_eq!(of(&world, 0).tx_hash, Some(hash(2)));
    borrow(&mut world, 1);
    mark(&mut world, 1, 1, &Mark::Submitted(hash(3)));
    mark(&mut world, 1, 1, &give_back_named(Some(hash(3))));
    assert_eq!(of(&world, 1).tx_hash, Some(hash(3)), "what he last named");
}

#[test]
fn what_was_named_after_the_chain_was_asked_is_not_given_back() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    mark(&mut world, 0, 0, &Mark::Submitted(hash(1)));
    for asked in [None, Some(hash(2))] {
        let said = mark(&mut world, 0, 0, &give_back_named(asked));
        let refused = MarkRefusal::NamedSince {
            nonce: Nonce(0),
            hash: hash(1).to_string(),
        };
        assert_eq!(said, MarkOutcome::Refused(refused));
        assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    }
    assert_eq!(borrow(&mut world, 1), 1, "it is not free");
    let said = mark(&mut world, 0, 0, &give_back_named(Some(hash(1))));
    assert!(is_taken(&said));
    assert_eq!(borrow(&mut world, 2), 0);
}

/// The earlier one may sit in a pool, behind a nonce that is missing, and be mined when that one comes.
#[test]
fn a_nonce_with_two_named_transactions_is_not_given_back() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    for name in [1, 2, 1] {
        let said = mark(&mut world, 0, 0, &Mark::Submitted(hash(name)));
        assert!(is_taken(&said));
    }
    let refused = MarkOutcome::Refused(MarkRefusal::TwoNamed(Nonce(0)));
    for asked in [None, Some(hash(1)), Some(hash(2))] {
        let said = mark(&mut world, 0, 0, &give_back_named(asked));
        assert_eq!(said, refused);
    }
    world.crash(); // whoever reads the lane next has its rows only
    world.settle_all();
    let said = mark(&mut world, 0, 0, &give_back_named(Some(hash(1))));
    assert_eq!(said, refused);
    assert_eq!(borrow(&mut world, 1), 1, "it is not free");
}

#[test]
fn every_loan_lasts_as_long_as_its_holder_was_told() {
    let mut world = World::ready(lending());
    borrow_with(&mut world, 0, TIMEOUT, 0);
    borrow_with(&mut world, 1, TIMEOUT / 10, 0);
    let told = |name| of(&world, name).expires_at;
    assert_eq!(told(0).since(told(1)), TIMEOUT / 10 * 9);
    pass(&mut world, TIMEOUT / 2);
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    assert_eq!(of(&world, 1).state, ReservationState::Recyclable);
}

#[test]
fn a_lane_that_knows_less_than_its_borrower_asks_before_it_lends() {
    let mut world = World::ready(lending());
    for name in 0..2 {
        borrow(&mut world, name);
    }
    mark(&mut world, 0, 0, &give_back());
    world.use_elsewhere(0); // its holder had sent it all the same
    assert_eq!(borrow_with(&mut world, 2, TIMEOUT, 1), None, "not yet");
    world.settle_all();
    let request = reservation_request_id(holder(2));
    let rows = world.store.rows.values();
    let lent = rows.filter(|tx| tx.request_id == request);
    let nonces: Vec<_> = lent.map(|tx| tx.nonce).collect();
    assert_eq!(nonces, [Some(Nonce(2))]);
    sends_nothing(&world);
}

#[test]
fn what_a_former_holder_named_ends_the_loan_that_it_consumed() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    mark(&mut world, 0, 0, &Mark::Submitted(hash(1)));
    mark(&mut world, 0, 0, &give_back_named(Some(hash(1)))); // no node showed it then
    assert_eq!(borrow(&mut world, 1), 0);
    let effect_digest = EffectDigest::of(None, alloy_primitives::U256::ZERO, &[]);
    world.input(Input::Consumed {
        nonce: Nonce(0),
        by: Some(NonceConsumer::By {
            hash: hash(1),
            effect_digest,
        }),
        hashes: Vec::new(),
        is_named: true,
    });
    world.commit();
    world.settle_all();
    let closed = of(&world, 1);
    assert_eq!(closed.state, ReservationState::Used);
    assert_eq!(closed.tx_hash, Some(hash(1)));
    assert_eq!(borrow(&mut world, 2), 1);
}

#[test]
fn a_nonce_that_others_wait_for_needs_no_room() {
    let window = Window {
        limit: Some(2),
        releases: Release::Mined,
    };
    let mut world = World::ready(LaneRules {
        window,
        ..lending()
    });
    for (name, made) in [(0, hash(1)), (1, hash(2))] {
        let nonce = borrow(&mut world, name);
        mark(&mut world, nonce, name, &Mark::Submitted(made));
        world.chain.take(Nonce(nonce), made);
    }
    world.mine(2, true);
    world.settle_all();
    assert_eq!((borrow(&mut world, 2), borrow(&mut world, 3)), (2, 3));
    world.fork(1, 0, 0xff, true); // four are open now, and two may be
    world.settle_all();
    let back = give_back_named(Some(hash(1)));
    assert!(is_taken(&mark(&mut world, 0, 0, &back)));
    assert_eq!(borrow(&mut world, 4), 0);
    assert_eq!(borrow_with(&mut world, 5, TIMEOUT, 0), None, "no room");
}

#[test]
fn whoever_gave_up_waiting_is_lent_nothing() {
    let mut world = World::ready(lending());
    world.input(Input::Pause(true));
    world.settle_all();
    assert_eq!(borrow_with(&mut world, 0, TIMEOUT, 0), None);
    pass(&mut world, TIMEOUT * 2);
    assert_eq!(borrow_with(&mut world, 1, TIMEOUT, 0), None);
    world.input(Input::Pause(false));
    world.settle_all();
    let state = |name| {
        let request = reservation_request_id(holder(name));
        let mut rows = world.store.rows.values();
        let row = rows.find(|tx| tx.request_id == request).expect("there");
        (row.state, row.nonce)
    };
    assert_eq!(state(0), (TxState::FailedFinal, None));
    assert_eq!(state(1), (TxState::Allocated, Some(Nonce(0))));
}

#[test]
fn a_silent_holders_nonce_is_free_after_its_time_and_when_the_chain_shows_nothing() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    borrow(&mut world, 1);
    pass(&mut world, Duration::from_secs(58));
    mark(&mut world, 1, 1, &Mark::Submitted(hash(1)));
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    pass(&mut world, Duration::from_secs(20));
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
    assert_eq!(of(&world, 1).state, ReservationState::Reserved, "it is out");
    assert_eq!(borrow(&mut world, 2), 0);
    sends_nothing(&world);
}

#[test]
fn a_clock_that_is_set_forward_frees_nothing() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    world.tick(24 * 3_600_000);
    world.settle_all();
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
}

#[test]
fn what_is_pending_or_mined_without_a_word_is_not_free() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    borrow(&mut world, 1);
    world.use_elsewhere(0); // its holder sent it, and died
    pass(&mut world, TIMEOUT * 2);
    assert_eq!(of(&world, 0).state, ReservationState::Reserved, "pending");
    assert_eq!(of(&world, 1).state, ReservationState::Recyclable);
    world.mine(1, true);
    for _ in 0..20 {
        world.mine(0, true);
        pass(&mut world, Duration::from_secs(5));
    }
    let closed = of(&world, 0);
    assert_eq!(closed.state, ReservationState::Used);
    assert!(closed.tx_hash.is_some(), "the chain shows by which");
    sends_nothing(&world);
}

#[test]
fn the_next_keeper_knows_every_loan_before_it_lends() {
    let mut world = World::ready(lending());
    for name in 0..5 {
        borrow(&mut world, name);
    }
    mark(&mut world, 1, 1, &Mark::Submitted(hash(1)));
    mark(&mut world, 3, 3, &give_back());
    world.crash();
    world.settle_all();
    world.tick(0);
    world.settle_all();
    assert_eq!(borrow(&mut world, 5), 3);
    assert_eq!(borrow(&mut world, 6), 5);
    assert!(is_taken(&mark(&mut world, 4, 4, &Mark::Submitted(hash(4)))));
    sends_nothing(&world);
}

#[test]
fn a_lane_that_sends_does_not_touch_loans() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    world.rules.lent = None;
    world.crash();
    world.settle_all();
    pass(&mut world, Duration::from_secs(60));
    let waiting_for = world.lane.waiting_for().unwrap_or_default();
    assert!(waiting_for.contains("nonces of this account are lent"));
    sends_nothing(&world);
    let row = world.store.rows.values().next().expect("there");
    assert_eq!(row.state, TxState::Allocated);
}

#[test]
fn a_lane_that_asks_all_the_time_still_asks_twice_about_overdue_nonces() {
    let rules = LaneRules {
        chain_nonce_timeout: Duration::from_secs(1),
        ..lending()
    };
    let mut world = World::ready(rules);
    borrow(&mut world, 0);
    let mut asked_twice = 0;
    for _ in 0..TIMEOUT.as_secs() * 2 {
        world.tick(1_000);
        world.commit();
        asked_twice += usize::from(world.lane.asking_chain && world.lane.asked_twice);
        world.settle_all();
    }
    assert!(asked_twice > 0);
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
}

#[test]
fn a_loan_is_looked_at_only_when_its_time_and_the_grace_are_over() {
    let mut world = World::ready(lending());
    borrow(&mut world, 0);
    // The tick before may have been long ago, when nothing was lent yet.
    world.tick(2_000);
    pass(&mut world, TIMEOUT + GRACE * 4 / 5);
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
}

#[test]
fn a_request_that_waited_to_be_sent_is_not_lent_to_nobody() {
    let mut world = World::ready(rules());
    let id = world.queue_elsewhere();
    world.rules.lent = Some(LENDING);
    world.crash();
    world.settle_all();
    pass(&mut world, TIMEOUT * 2);
    let waiting_for = world.lane.waiting_for().unwrap_or_default();
    assert!(
        waiting_for.contains("give it its key back"),
        "{waiting_for}"
    );
    assert_eq!(world.store.rows[&id].state, TxState::Created);
}
