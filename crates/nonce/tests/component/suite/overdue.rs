//! Loans whose time is over: the chain is asked first.

use domain::{Mark, MarkRefusal, ReservationState};
use engine::ports::NonceReservations;

use super::super::kit::{FINAL_DEPTH, FOREIGN_DEPTH, hash, lane, until};
use super::{Process, World};

/// Waits until the books know that the time of these loans is over.
async fn is_overdue(world: &World, process: &Process, count: usize) {
    if world.has_no_sweep() {
        return; // it knows by itself
    }
    until("they are overdue", async || {
        let watched = process
            .scheme
            .to_watch(100)
            .await
            .expect("the books are there");
        (watched.len() >= count).then_some(())
    })
    .await;
}

pub(crate) async fn an_overdue_nonce_is_free_if_the_chain_shows_nothing(world: &World) {
    let process = world.hasty_process().await;
    let late = process.borrow().await;
    let mut sweep = process.component.sweep();
    let state = ReservationState::Recyclable;
    let freed = process.sweep_until(&mut sweep, &late, state).await;
    assert!(freed.reason.is_some(), "it says why");
    let mark = Mark::Submitted(hash(1));
    let said = process
        .component
        .mark(lane(1), late.nonce, late.holder, mark)
        .await;
    assert_eq!(said, Err(MarkRefusal::IsFree(late.nonce).into()));
    let next = process.borrow().await;
    assert_eq!(next.nonce, late.nonce);
    let mark = Mark::Used(hash(1));
    let said = process
        .component
        .mark(lane(1), late.nonce, late.holder, mark)
        .await;
    assert_eq!(said, Err(MarkRefusal::NotHolder(late.nonce).into()));
}

pub(crate) async fn an_overdue_nonce_stays_lent_while_a_pool_has_something(world: &World) {
    let process = world.hasty_process().await;
    let late = process.borrow().await;
    world.chain.send(lane(1).signer, 0, hash(1));
    is_overdue(world, &process, 1).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late);
    world.chain.empty_pool();
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn an_overdue_nonce_is_used_when_the_chain_shows_by_whom(world: &World) {
    let process = world.hasty_process().await;
    let late = process.borrow().await;
    world.chain.send(lane(1).signer, 0, hash(1));
    world.chain.mine(FOREIGN_DEPTH);
    is_overdue(world, &process, 1).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late, "not deep enough");
    world.chain.mine(1);
    world.let_it_show();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &late, state).await;
    assert_eq!((used.tx_hash, used.holder), (Some(hash(1)), late.holder));
}

pub(crate) async fn an_overdue_nonce_stays_lent_while_one_of_two_endpoints_shows_something(
    world: &World,
) {
    let process = world.hasty_process().await;
    let late = process.borrow().await;
    is_overdue(world, &process, 1).await;
    let mut sweep = process.component.sweep();
    for (latest, pending) in [(0, 1), (1, 1)] {
        world.chain.second_says(latest, pending);
        process.sweep_all(&mut sweep).await;
        assert_eq!(process.row(&late).await, late, "{latest}, {pending}");
    }
    world.chain.second_says(0, 0);
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn an_overdue_nonce_stays_lent_while_the_chain_is_silent(world: &World) {
    let process = world.hasty_process().await;
    let late = process.borrow().await;
    is_overdue(world, &process, 1).await;
    world.chain.be_silent(true);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late);
    world.chain.be_silent(false);
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn a_submitted_nonce_is_never_free_by_time(world: &World) {
    let process = world.hasty_process().await;
    let lent = process.borrow_many(2).await;
    let submitted = process.submit(&lent[0], hash(1)).await;
    let mut sweep = process.component.sweep();
    let state = ReservationState::Recyclable;
    // The other one shows that time is over.
    process.sweep_until(&mut sweep, &lent[1], state).await;
    world.chain.mine(FINAL_DEPTH + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&lent[0]).await, submitted);
}

pub(crate) async fn a_loan_within_its_time_is_left_alone(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(2).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    for one in lent {
        assert_eq!(process.row(&one).await, one);
    }
}

pub(crate) async fn a_dead_process_keeps_nothing_for_ever(world: &World) {
    let dead = world.hasty_process().await;
    let lent = dead.borrow_many(3).await;
    drop(dead); // as a process that is killed: nothing is said, nothing closed
    let next = world.hasty_process().await;
    let mut sweep = next.component.sweep();
    for one in lent {
        let state = ReservationState::Recyclable;
        next.sweep_until(&mut sweep, &one, state).await;
    }
    assert_eq!(next.borrow().await.nonce.0, 0);
}
