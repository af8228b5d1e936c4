//! Allocation.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{Holder, Nonce, Reservation, ReservationState};
use engine::ports::ReservationError;
use futures::future::join_all;
use nonce::{ReservationKey, ReserveRequest};
use uuid::Uuid;

use super::super::kit::{hash, immediate_settings, lane};
use super::{Process, Scenario, count_by_nonce, nonces_of};

pub(crate) async fn new_lane_starts_at_chain_nonce(scenario: &Scenario) {
    scenario.chain.set_start_nonce(lane(1).signer, 7);
    let process = scenario.process().await;
    assert_eq!(nonces_of(&process.reserve_many(3).await), [7, 8, 9]);
}

pub(crate) async fn nonces_are_reserved_in_ascending_order(scenario: &Scenario) {
    let process = scenario.process().await;
    assert_eq!(
        nonces_of(&process.reserve_many(20).await),
        (0..20).collect::<Vec<_>>()
    );
    assert_eq!(
        process
            .component
            .list_reservations(lane(1))
            .await
            .unwrap()
            .next_nonce,
        Nonce(20)
    );
}

pub(crate) async fn recycled_nonce_gets_a_fresh_reservation(scenario: &Scenario) {
    let process = scenario.process().await;
    let first = process.reserve().await;
    process.mark_submitted(&first, hash(1)).await;
    process.recycle(&first).await;
    let second = process.reserve().await;
    assert_eq!((second.lane, second.nonce), (lane(1), Nonce(0)));
    assert_ne!(second.holder, first.holder);
    assert_eq!(
        (second.state, second.tx_hash, &second.reason),
        (ReservationState::Reserved, None, &None)
    );
    assert_eq!(
        process.row(&second).await,
        second,
        "the answer equals the record"
    );
}

pub(crate) async fn reservation_expires_after_the_requested_timeout(scenario: &Scenario) {
    let process = scenario.process().await;
    let hour = Duration::from_secs(3_600);
    let with = async |number: u128, timeout| {
        let request = ReserveRequest {
            holder: Holder(Uuid::from_u128(number)),
            at_least: Nonce(0),
            timeout,
        };
        process.scheme.allocate(lane(1), request).await.unwrap()
    };
    let (short, long) = (with(1, hour).await, with(2, hour * 3).await);
    assert_eq!(
        (short.holder, long.holder),
        (Holder(Uuid::from_u128(1)), Holder(Uuid::from_u128(2)))
    );
    let difference = long.expires_at.since(short.expires_at);
    let slack = Duration::from_secs(60);
    assert!(
        (hour * 2..hour * 2 + slack).contains(&difference),
        "{difference:?}"
    );
}

pub(crate) async fn smallest_free_nonce_is_reserved_first(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(6).await;
    for index in [3, 1, 4] {
        process.recycle(&reserved[index]).await;
    }
    assert_eq!(nonces_of(&process.reserve_many(4).await), [1, 3, 4, 6]);
}

/// Reserves many nonces concurrently.
async fn reserve_concurrently(process: &Process, count: usize) -> Vec<Reservation> {
    let one = async || loop {
        match process.component.allocate(lane(1)).await {
            Err(ReservationError::Busy | ReservationError::Unavailable(_)) => {
                tokio::task::yield_now().await
            }
            reserved => return reserved.expect("a nonce is reserved"),
        }
    };
    join_all((0..count).map(|_| one())).await
}

pub(crate) async fn thousand_concurrent_reservations_are_unique_and_gapless(scenario: &Scenario) {
    let settings = nonce::Settings {
        state_timeout: Duration::from_secs(3_600),
        ..immediate_settings(scenario.mode)
    };
    let process = scenario.process_with(settings.clone()).await;
    let mut held = reserve_concurrently(&process, 1_000).await;
    assert!(
        count_by_nonce(&held).values().all(|count| *count == 1),
        "no nonce is reserved twice"
    );

    let (recycled, remaining): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|one| one.nonce.0 % 3 == 1);
    join_all(recycled.iter().map(|one| process.recycle(one))).await;
    let again = reserve_concurrently(&process, recycled.len()).await;
    held = remaining;
    held.extend(again);
    assert!(
        count_by_nonce(&held).values().all(|count| *count == 1),
        "no nonce is reserved twice"
    );

    // Nonces that the scheme skipped are the first ones of the next process.
    process
        .component
        .close(Duration::from_secs(20))
        .await
        .unwrap();
    let next = scenario.process_with(settings).await;
    let numbers: BTreeSet<u64> = held.iter().map(|one| one.nonce.0).collect();
    let highest = *numbers.last().expect("a thousand reservations");
    let gaps: Vec<u64> = (0..highest)
        .filter(|nonce| !numbers.contains(nonce))
        .collect();
    assert_eq!(nonces_of(&next.reserve_many(gaps.len()).await), gaps);
    assert_eq!(next.reserve().await.nonce.0, highest + 1);
}

pub(crate) async fn processes_never_reserve_the_same_nonce(scenario: &Scenario) {
    let processes = [
        scenario.process().await,
        scenario.process().await,
        scenario.process().await,
    ];
    let reserved = join_all(
        processes
            .iter()
            .map(|process| reserve_concurrently(process, 100)),
    )
    .await;
    let all: Vec<Reservation> = reserved.into_iter().flatten().collect();
    assert!(
        count_by_nonce(&all).values().all(|count| *count == 1),
        "no nonce is reserved twice"
    );
    // Half of them are recycled and reserved again, by any process.
    let recycled: Vec<_> = all.iter().filter(|one| one.nonce.0 % 2 == 0).collect();
    join_all(recycled.iter().map(|one| processes[0].recycle(one))).await;
    let again = join_all(
        processes
            .iter()
            .map(|process| reserve_concurrently(process, 30)),
    )
    .await;
    let remaining = all.iter().filter(|one| one.nonce.0 % 2 == 1);
    let counts = count_by_nonce(remaining.chain(again.iter().flatten()));
    assert!(
        counts.values().all(|count| *count == 1),
        "no nonce is reserved twice"
    );
}

pub(crate) async fn lanes_are_independent(scenario: &Scenario) {
    let process = scenario.process().await;
    process.reserve_many(3).await;
    scenario.chain.set_start_nonce(lane(2).signer, 40);
    let of = async |lane| process.component.allocate(lane).await.unwrap();
    let neighbour = of(lane(2)).await;
    assert_eq!((neighbour.lane, neighbour.nonce), (lane(2), Nonce(40)));
    let elsewhere = domain::LaneKey {
        chain_id: engine::ports::Chain::id(&*scenario.other_chain),
        ..lane(1)
    };
    assert_eq!(of(elsewhere).await.nonce, Nonce(0));
    assert_eq!(process.reserve().await.nonce, Nonce(3));
}

pub(crate) async fn lane_is_bound_to_one_scheme(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let Some(other) = scenario.other_scheme().await else {
        return;
    };
    let request = ReserveRequest {
        holder: Holder(Uuid::from_u128(1)),
        at_least: Nonce(0),
        timeout: Duration::from_secs(60),
    };
    let refused = other.allocate(lane(1), request).await.unwrap_err();
    let ReservationError::NotReservable(why) = &refused else {
        panic!("{refused:?}")
    };
    for word in [process.scheme.kind().as_str(), other.kind().as_str()] {
        assert!(why.contains(word), "both schemes are named: {why}");
    }
    let mark = domain::Mark::Used(hash(1));
    let refused = other.mark(ReservationKey::from(&reserved), mark).await;
    assert!(
        matches!(refused, Err(ReservationError::NotReservable(_))),
        "{refused:?}"
    );
    assert_eq!(process.row(&reserved).await, reserved);
    assert!(
        other.allocate(lane(2), request).await.is_ok(),
        "another lane is not bound"
    );
}

pub(crate) async fn open_reservations_are_listed_in_order(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(5).await;
    process.mark_used(&reserved[0], hash(1)).await;
    process.mark_submitted(&reserved[1], hash(2)).await;
    process.recycle(&reserved[3]).await;
    let listed = process.component.list_reservations(lane(1)).await.unwrap();
    let states: Vec<_> = listed
        .open
        .iter()
        .map(|one| (one.nonce.0, one.state))
        .collect();
    let (reserved, free) = (ReservationState::Reserved, ReservationState::Recyclable);
    let used = ReservationState::Used; // marked by its holder, and not shown by the chain yet
    assert_eq!(
        states,
        [
            (0, used),
            (1, reserved),
            (2, reserved),
            (3, free),
            (4, reserved)
        ]
    );
    assert_eq!((listed.next_nonce, listed.has_more), (Nonce(5), false));
    let empty = process.component.list_reservations(lane(9)).await.unwrap();
    assert_eq!((empty.next_nonce, empty.open.len()), (Nonce(0), 0));
}
