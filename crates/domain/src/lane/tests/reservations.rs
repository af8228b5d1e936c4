//! Reserved nonces: used, released, forgotten.

use std::time::Duration;

use alloy_primitives::B256;
use uuid::Uuid;

use super::world::{Job, World};
use super::{KEY, rules, tx_id};
use crate::lane::reservations::{
    MarkOutcome, ReservationRules, ReservationTerms, reservation_from_row, reservation_request_id,
};
use crate::lane::{
    AdmittedRequest, CapacityRules, FOREIGN_FINALITY_DEPTH_MIN, Input, LaneRules, NonceConsumer,
    NonceRules,
};
use crate::window::{Release, Window};
use crate::{
    EffectDigest, Holder, Mark, MarkRefusal, Nonce, Reservation, ReservationState, TxState,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(5);
/// For rows that name none.
const RESERVATIONS: ReservationRules = ReservationRules {
    timeout: Duration::from_secs(7),
    grace: GRACE,
};

fn reserving() -> LaneRules {
    LaneRules {
        reservations: Some(RESERVATIONS),
        ..rules()
    }
}

fn holder(number: u128) -> Holder {
    Holder(Uuid::from_u128(number))
}

fn hash(number: u8) -> B256 {
    B256::repeat_byte(number)
}

/// Reserves under a name, and returns the nonce.
fn reserve(world: &mut World, name: u128) -> u64 {
    reserve_with(world, name, TIMEOUT, 0).expect("reserved at once")
}

/// Reserves as a holder who saw the chain so far; returns the nonce if there is one at once.
fn reserve_with(world: &mut World, name: u128, timeout: Duration, at_least: u64) -> Option<u64> {
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
        .find(|tx| tx.request.request_id == request);
    reservation_from_row(KEY, tx.expect("reserved"), Some(Nonce(0)), RESERVATIONS)
        .expect("a reservation")
}

fn mark(world: &mut World, nonce: u64, name: u128, mark: &Mark) -> MarkOutcome {
    let marked = world.mark(nonce, holder(name), mark);
    world.commit();
    world.deliver_all();
    marked
}

fn is_taken(marked: &MarkOutcome) -> bool {
    matches!(marked, MarkOutcome::Taken(_))
}

fn release() -> Mark {
    release_named(None)
}

/// After the chain was queried about this transaction.
fn release_named(asked: Option<B256>) -> Mark {
    Mark::Recyclable {
        reason: "not needed".to_owned(),
        asked,
    }
}

/// Time for a lane that ticks every second.
fn pass(world: &mut World, time: Duration) {
    for _ in 0..time.as_secs() {
        world.tick(1_000);
        world.deliver_all();
    }
}

fn sends_nothing(world: &World) {
    let sends = |job: &Job| matches!(job, Job::Sign(_) | Job::Send(_));
    assert!(!world.jobs.iter().any(sends), "{:?}", world.jobs);
}

#[test]
fn smallest_free_nonce_is_reserved_first() {
    let mut world = World::ready(reserving());
    let reserved: Vec<u64> = (0..4).map(|name| reserve(&mut world, name)).collect();
    assert_eq!(reserved, [0, 1, 2, 3]);
    assert!(is_taken(&mark(&mut world, 2, 2, &release())));
    assert!(is_taken(&mark(&mut world, 1, 1, &release())));
    assert_eq!(of(&world, 1).state, ReservationState::Recyclable);
    let again: Vec<u64> = (4..7).map(|name| reserve(&mut world, name)).collect();
    assert_eq!(again, [1, 2, 4]);
    sends_nothing(&world);
}

#[test]
fn mark_of_a_former_holder_changes_nothing() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    mark(&mut world, 0, 0, &release());
    assert_eq!(reserve(&mut world, 1), 0);
    let late = mark(&mut world, 0, 0, &Mark::Used(hash(1)));
    assert_eq!(late, MarkOutcome::Refused(MarkRefusal::NotHolder(Nonce(0))));
    assert_eq!(of(&world, 1).tx_hash, None);
    let never = mark(&mut world, 7, 0, &Mark::Used(hash(1)));
    assert_eq!(
        never,
        MarkOutcome::Refused(MarkRefusal::NotReserved(Nonce(7)))
    );
    mark(&mut world, 0, 1, &release());
    let free = mark(&mut world, 0, 1, &Mark::Used(hash(1)));
    assert_eq!(
        free,
        MarkOutcome::NotOpen { is_free: true },
        "the row of the holder decides"
    );
}

#[test]
fn named_transaction_is_closed_by_the_chain_and_reopened_by_a_reorg() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    let submitted = Mark::Submitted(hash(1));
    assert!(is_taken(&mark(&mut world, 0, 0, &submitted)));
    assert!(
        is_taken(&mark(&mut world, 0, 0, &submitted)),
        "twice is fine"
    );
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    world.chain.add_to_pool(Nonce(0), hash(1));
    world.mine(1, true);
    world.deliver_all();
    assert_eq!(of(&world, 0).state, ReservationState::Reserved, "not final");
    for _ in 0..3 {
        world.mine(0, true);
        world.deliver_all();
    }
    assert_eq!(of(&world, 0).state, ReservationState::Used);
    assert_eq!(of(&world, 0).tx_hash, Some(hash(1)));
    world.fork(4, 0, 0, true);
    world.deliver_all();
    assert_eq!(of(&world, 0).state, ReservationState::Reserved, "reopened");
    sends_nothing(&world);
}

#[test]
fn used_nonce_refuses_another_transaction() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    reserve(&mut world, 1);
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(1)))));
    assert_eq!(of(&world, 0).state, ReservationState::Used);
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(1)))));
    let other = mark(&mut world, 0, 0, &Mark::Used(hash(2)));
    assert!(matches!(
        other,
        MarkOutcome::Refused(MarkRefusal::IsUsed { .. })
    ));
    let back = mark(&mut world, 0, 0, &release());
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
fn last_named_transaction_counts_even_when_named_before() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    for name in [1, 2, 1] {
        let marked = mark(&mut world, 0, 0, &Mark::Submitted(hash(name)));
        assert!(is_taken(&marked));
        assert_eq!(of(&world, 0).tx_hash, Some(hash(name)));
    }
    assert!(is_taken(&mark(&mut world, 0, 0, &Mark::Used(hash(2)))));
    assert_eq!(of(&world, 0).tx_hash, Some(hash(2)));
    reserve(&mut world, 1);
    mark(&mut world, 1, 1, &Mark::Submitted(hash(3)));
    mark(&mut world, 1, 1, &release_named(Some(hash(3))));
    assert_eq!(
        of(&world, 1).tx_hash,
        Some(hash(3)),
        "the last one that was named"
    );
}

#[test]
fn nonce_named_after_the_chain_query_is_not_released() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    mark(&mut world, 0, 0, &Mark::Submitted(hash(1)));
    for asked in [None, Some(hash(2))] {
        let marked = mark(&mut world, 0, 0, &release_named(asked));
        let refused = MarkRefusal::NamedSince {
            nonce: Nonce(0),
            hash: hash(1).to_string(),
        };
        assert_eq!(marked, MarkOutcome::Refused(refused));
        assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    }
    assert_eq!(reserve(&mut world, 1), 1, "it is not free");
    let marked = mark(&mut world, 0, 0, &release_named(Some(hash(1))));
    assert!(is_taken(&marked));
    assert_eq!(reserve(&mut world, 2), 0);
}

/// The earlier one may sit in a pool, behind a nonce that is missing, and be mined when that one comes.
#[test]
fn nonce_with_two_named_transactions_is_not_released() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    for name in [1, 2, 1] {
        let marked = mark(&mut world, 0, 0, &Mark::Submitted(hash(name)));
        assert!(is_taken(&marked));
    }
    let refused = MarkOutcome::Refused(MarkRefusal::TwoNamed(Nonce(0)));
    for asked in [None, Some(hash(1)), Some(hash(2))] {
        let marked = mark(&mut world, 0, 0, &release_named(asked));
        assert_eq!(marked, refused);
    }
    world.crash(); // the next keeper has its rows only
    world.deliver_all();
    let marked = mark(&mut world, 0, 0, &release_named(Some(hash(1))));
    assert_eq!(marked, refused);
    assert_eq!(reserve(&mut world, 1), 1, "it is not free");
}

#[test]
fn reservation_lasts_as_long_as_its_terms_say() {
    let mut world = World::ready(reserving());
    reserve_with(&mut world, 0, TIMEOUT, 0);
    reserve_with(&mut world, 1, TIMEOUT / 10, 0);
    let expires = |name| of(&world, name).expires_at;
    assert_eq!(expires(0).since(expires(1)), TIMEOUT / 10 * 9);
    pass(&mut world, TIMEOUT / 2);
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    assert_eq!(of(&world, 1).state, ReservationState::Recyclable);
}

#[test]
fn lane_that_knows_less_than_the_holder_queries_the_chain_first() {
    let mut world = World::ready(reserving());
    for name in 0..2 {
        reserve(&mut world, name);
    }
    mark(&mut world, 0, 0, &release());
    world.use_elsewhere(0); // its holder had sent it all the same
    assert_eq!(reserve_with(&mut world, 2, TIMEOUT, 1), None, "not yet");
    world.deliver_all();
    let request = reservation_request_id(holder(2));
    let rows = world.store.rows.values();
    let reserved = rows.filter(|tx| tx.request.request_id == request);
    let nonces: Vec<_> = reserved.map(|tx| tx.nonce).collect();
    assert_eq!(nonces, [Some(Nonce(2))]);
    sends_nothing(&world);
}

#[test]
fn former_holders_transaction_ends_the_reservation_it_consumed() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    mark(&mut world, 0, 0, &Mark::Submitted(hash(1)));
    mark(&mut world, 0, 0, &release_named(Some(hash(1)))); // no node showed it then
    assert_eq!(reserve(&mut world, 1), 0);
    for _ in 0..=FOREIGN_FINALITY_DEPTH_MIN {
        world.mine(0, true);
        world.follow();
        world.commit();
    }
    let effect_digest = EffectDigest::of(None, alloy_primitives::U256::ZERO, &[]);
    world.input(Input::Consumed {
        nonce: Nonce(0),
        up_to: 0,
        by: Some(NonceConsumer::Transaction {
            hash: hash(1),
            effect_digest,
        }),
        hashes: Vec::new(),
        is_named: true,
    });
    world.commit();
    world.deliver_all();
    let closed = of(&world, 1);
    assert_eq!(closed.state, ReservationState::Used);
    assert_eq!(closed.tx_hash, Some(hash(1)));
    assert_eq!(reserve(&mut world, 2), 1);
}

#[test]
fn gap_below_other_slots_is_reserved_without_room() {
    let window = Window {
        limit: Some(2),
        releases: Release::Mined,
    };
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            window,
            ..reserving().capacity
        },
        ..reserving()
    });
    for (name, made) in [(0, hash(1)), (1, hash(2))] {
        let nonce = reserve(&mut world, name);
        mark(&mut world, nonce, name, &Mark::Submitted(made));
        world.chain.add_to_pool(Nonce(nonce), made);
    }
    world.mine(2, true);
    world.deliver_all();
    assert_eq!((reserve(&mut world, 2), reserve(&mut world, 3)), (2, 3));
    world.fork(1, 0, 0xff, true); // four are open now, and two may be
    world.deliver_all();
    let back = release_named(Some(hash(1)));
    assert!(is_taken(&mark(&mut world, 0, 0, &back)));
    assert_eq!(reserve(&mut world, 4), 0);
    assert_eq!(reserve_with(&mut world, 5, TIMEOUT, 0), None, "no room");
}

#[test]
fn timed_out_reserve_request_gets_no_nonce() {
    let mut world = World::ready(reserving());
    world.input(Input::Pause(true));
    world.deliver_all();
    assert_eq!(reserve_with(&mut world, 0, TIMEOUT, 0), None);
    pass(&mut world, TIMEOUT * 2);
    assert_eq!(reserve_with(&mut world, 1, TIMEOUT, 0), None);
    world.input(Input::Pause(false));
    world.deliver_all();
    let state = |name| {
        let request = reservation_request_id(holder(name));
        let mut rows = world.store.rows.values();
        let row = rows
            .find(|tx| tx.request.request_id == request)
            .expect("there");
        (row.state, row.nonce)
    };
    assert_eq!(state(0), (TxState::FailedFinal, None));
    assert_eq!(state(1), (TxState::Allocated, Some(Nonce(0))));
}

#[test]
fn expired_reservation_is_released_when_the_chain_shows_nothing() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    reserve(&mut world, 1);
    pass(&mut world, Duration::from_secs(58));
    mark(&mut world, 1, 1, &Mark::Submitted(hash(1)));
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    pass(&mut world, Duration::from_secs(20));
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
    assert_eq!(of(&world, 1).state, ReservationState::Reserved, "it is out");
    assert_eq!(reserve(&mut world, 2), 0);
    sends_nothing(&world);
}

#[test]
fn clock_that_is_set_forward_releases_nothing() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    world.tick(24 * 3_600_000);
    world.deliver_all();
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
}

#[test]
fn pending_or_mined_reservation_is_not_released() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    reserve(&mut world, 1);
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
fn next_keeper_loads_every_reservation_before_it_reserves() {
    let mut world = World::ready(reserving());
    for name in 0..5 {
        reserve(&mut world, name);
    }
    mark(&mut world, 1, 1, &Mark::Submitted(hash(1)));
    mark(&mut world, 3, 3, &release());
    world.crash();
    world.deliver_all();
    world.tick(0);
    world.deliver_all();
    assert_eq!(reserve(&mut world, 5), 3);
    assert_eq!(reserve(&mut world, 6), 5);
    assert!(is_taken(&mark(&mut world, 4, 4, &Mark::Submitted(hash(4)))));
    sends_nothing(&world);
}

#[test]
fn lane_that_sends_does_not_touch_reservations() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    world.rules.reservations = None;
    world.crash();
    world.deliver_all();
    pass(&mut world, Duration::from_secs(60));
    let waiting_for = world.lane.waiting_for().unwrap_or_default();
    assert!(waiting_for.contains("nonces of this account are reserved"));
    sends_nothing(&world);
    let row = world.store.rows.values().next().expect("there");
    assert_eq!(row.state, TxState::Allocated);
}

#[test]
fn overdue_nonces_are_queried_with_quorum_despite_frequent_queries() {
    let rules = LaneRules {
        nonce: NonceRules {
            chain_nonce_timeout: Duration::from_secs(1),
            ..reserving().nonce
        },
        ..reserving()
    };
    let mut world = World::ready(rules);
    reserve(&mut world, 0);
    let mut with_quorum = 0;
    for _ in 0..TIMEOUT.as_secs() * 2 {
        world.tick(1_000);
        world.commit();
        let chain = &world.lane.chain;
        with_quorum += usize::from(chain.is_querying() && chain.was_queried_with_quorum());
        world.deliver_all();
    }
    assert!(with_quorum > 0);
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
}

#[test]
fn reservation_is_checked_only_after_timeout_and_grace() {
    let mut world = World::ready(reserving());
    reserve(&mut world, 0);
    // The tick before may have been long ago, when nothing was reserved yet.
    world.tick(2_000);
    pass(&mut world, TIMEOUT + GRACE * 4 / 5);
    assert_eq!(of(&world, 0).state, ReservationState::Reserved);
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(of(&world, 0).state, ReservationState::Recyclable);
}

#[test]
fn queued_request_is_not_reserved_after_a_change_to_external() {
    let mut world = World::ready(rules());
    let id = world.queue_elsewhere();
    world.rules.reservations = Some(RESERVATIONS);
    world.crash();
    world.deliver_all();
    pass(&mut world, TIMEOUT * 2);
    let waiting_for = world.lane.waiting_for().unwrap_or_default();
    assert!(
        waiting_for.contains("configure its key again"),
        "{waiting_for}"
    );
    assert_eq!(world.store.rows[&id].state, TxState::Created);
}
