//! Lending.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{Holder, Nonce, Reservation, ReservationState};
use engine::ports::ReservationError;
use futures::future::join_all;
use nonce::Borrow;
use uuid::Uuid;

use super::super::kit::{eager, hash, lane};
use super::{Process, World, counted, nonces_of};

pub(crate) async fn a_new_lane_begins_where_the_chain_stands(world: &World) {
    world.chain.begin_at(lane(1).signer, 7);
    let process = world.process().await;
    assert_eq!(nonces_of(&process.borrow_many(3).await), [7, 8, 9]);
}

pub(crate) async fn nonces_are_lent_one_after_the_other(world: &World) {
    let process = world.process().await;
    assert_eq!(
        nonces_of(&process.borrow_many(20).await),
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

pub(crate) async fn a_loan_is_fresh_whoever_had_the_nonce_before(world: &World) {
    let process = world.process().await;
    let first = process.borrow().await;
    process.submit(&first, hash(1)).await;
    process.give_back(&first).await;
    let second = process.borrow().await;
    assert_eq!((second.lane, second.nonce), (lane(1), Nonce(0)));
    assert_ne!(second.holder, first.holder);
    assert_eq!(
        (second.state, second.tx_hash, &second.reason),
        (ReservationState::Reserved, None, &None)
    );
    assert_eq!(
        process.row(&second).await,
        second,
        "what is told is what is kept"
    );
}

pub(crate) async fn the_time_of_a_loan_is_as_long_as_asked(world: &World) {
    let process = world.process().await;
    let hour = Duration::from_secs(3_600);
    let with = async |number: u128, timeout| {
        let borrow = Borrow {
            holder: Holder(Uuid::from_u128(number)),
            at_least: Nonce(0),
            timeout,
        };
        process.scheme.allocate(lane(1), borrow).await.unwrap()
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

pub(crate) async fn the_smallest_free_nonce_is_lent_first(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(6).await;
    for index in [3, 1, 4] {
        process.give_back(&lent[index]).await;
    }
    assert_eq!(nonces_of(&process.borrow_many(4).await), [1, 3, 4, 6]);
}

/// Borrows many at once.
async fn crowd(process: &Process, count: usize) -> Vec<Reservation> {
    let one = async || loop {
        match process.component.allocate(lane(1)).await {
            Err(ReservationError::Busy | ReservationError::Unavailable(_)) => {
                tokio::task::yield_now().await
            }
            lent => return lent.expect("a nonce is lent"),
        }
    };
    join_all((0..count).map(|_| one())).await
}

pub(crate) async fn a_thousand_at_once_are_unique_and_without_gap_after_recycling(world: &World) {
    let settings = nonce::Settings {
        state_timeout: Duration::from_secs(3_600),
        ..eager(world.mode)
    };
    let process = world.process_with(settings.clone()).await;
    let mut held = crowd(&process, 1_000).await;
    assert!(
        counted(&held).values().all(|count| *count == 1),
        "no nonce is lent twice"
    );

    let (given, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|one| one.nonce.0 % 3 == 1);
    join_all(given.iter().map(|one| process.give_back(one))).await;
    let again = crowd(&process, given.len()).await;
    held = kept;
    held.extend(again);
    assert!(
        counted(&held).values().all(|count| *count == 1),
        "no nonce is lent twice"
    );

    // Whatever its scheme has left out is what the next process gets first.
    process
        .component
        .close(Duration::from_secs(20))
        .await
        .unwrap();
    let next = world.process_with(settings).await;
    let numbers: BTreeSet<u64> = held.iter().map(|one| one.nonce.0).collect();
    let highest = *numbers.last().expect("a thousand");
    let gaps: Vec<u64> = (0..highest)
        .filter(|nonce| !numbers.contains(nonce))
        .collect();
    assert_eq!(nonces_of(&next.borrow_many(gaps.len()).await), gaps);
    assert_eq!(next.borrow().await.nonce.0, highest + 1);
}

pub(crate) async fn processes_never_lend_the_same_nonce(world: &World) {
    let processes = [
        world.process().await,
        world.process().await,
        world.process().await,
    ];
    let lent = join_all(processes.iter().map(|process| crowd(process, 100))).await;
    let all: Vec<Reservation> = lent.into_iter().flatten().collect();
    assert!(
        counted(&all).values().all(|count| *count == 1),
        "no nonce is lent twice"
    );
    // Half of it goes back to where it came from, and is lent again, by whomever.
    let given: Vec<_> = all.iter().filter(|one| one.nonce.0 % 2 == 0).collect();
    join_all(given.iter().map(|one| processes[0].give_back(one))).await;
    let again = join_all(processes.iter().map(|process| crowd(process, 30))).await;
    let kept = all.iter().filter(|one| one.nonce.0 % 2 == 1);
    let counts = counted(kept.chain(again.iter().flatten()));
    assert!(
        counts.values().all(|count| *count == 1),
        "no nonce is lent twice"
    );
}

pub(crate) async fn lanes_know_nothing_of_each_other(world: &World) {
    let process = world.process().await;
    process.borrow_many(3).await;
    world.chain.begin_at(lane(2).signer, 40);
    let of = async |lane| process.component.allocate(lane).await.unwrap();
    let neighbour = of(lane(2)).await;
    assert_eq!((neighbour.lane, neighbour.nonce), (lane(2), Nonce(40)));
    let elsewhere = domain::LaneKey {
        chain_id: engine::ports::Chain::id(&*world.other_chain),
        ..lane(1)
    };
    assert_eq!(of(elsewhere).await.nonce, Nonce(0));
    assert_eq!(process.borrow().await.nonce, Nonce(3));
}

pub(crate) async fn a_lane_belongs_to_one_scheme(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let Some(other) = world.other_scheme().await else {
        return;
    };
    let borrow = Borrow {
        holder: Holder(Uuid::from_u128(1)),
        at_least: Nonce(0),
        timeout: Duration::from_secs(60),
    };
    let refused = other.allocate(lane(1), borrow).await.unwrap_err();
    let ReservationError::NotReservable(why) = &refused else {
        panic!("{refused:?}")
    };
    for word in [process.scheme.kind().as_str(), other.kind().as_str()] {
        assert!(why.contains(word), "it explains itself: {why}");
    }
    let mark = domain::Mark::Used(hash(1));
    let refused = other.mark(lane(1), lent.nonce, lent.holder, mark).await;
    assert!(
        matches!(refused, Err(ReservationError::NotReservable(_))),
        "{refused:?}"
    );
    assert_eq!(process.row(&lent).await, lent);
    assert!(
        other.allocate(lane(2), borrow).await.is_ok(),
        "another lane is another matter"
    );
}

pub(crate) async fn what_is_open_is_listed_in_order(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(5).await;
    process.use_up(&lent[0], hash(1)).await;
    process.submit(&lent[1], hash(2)).await;
    process.give_back(&lent[3]).await;
    let listed = process.component.list_reservations(lane(1)).await.unwrap();
    let states: Vec<_> = listed
        .open
        .iter()
        .map(|one| (one.nonce.0, one.state))
        .collect();
    let (reserved, free) = (ReservationState::Reserved, ReservationState::Recyclable);
    let used = ReservationState::Used; // as its holder says, and the chain has not shown it
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
