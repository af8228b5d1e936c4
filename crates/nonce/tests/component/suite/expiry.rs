//! Expired reservations: the chain is queried before the nonce is free.

use domain::{Mark, MarkRefusal, ReservationState};
use engine::ports::NonceReservations;

use super::super::kit::{FINAL_DEPTH, FOREIGN_DEPTH, hash, lane, wait_for};
use super::{Process, Scenario};

/// Waits until the scheme lists these reservations as expired.
async fn wait_until_overdue(scenario: &Scenario, process: &Process, count: usize) {
    if scenario.sweeps_itself() {
        return; // the lane checks by itself
    }
    wait_for("the reservations are expired", async || {
        let watched = process
            .scheme
            .list_watched(100)
            .await
            .expect("the ledger is readable");
        (watched.len() >= count).then_some(())
    })
    .await;
}

pub(crate) async fn expired_nonce_is_recyclable_if_the_chain_shows_nothing(scenario: &Scenario) {
    let process = scenario.process_with_instant_expiry().await;
    let late = process.reserve().await;
    let mut sweep = process.component.sweep();
    let state = ReservationState::Recyclable;
    let freed = process.sweep_until(&mut sweep, &late, state).await;
    assert!(freed.reason.is_some(), "the reason is recorded");
    let mark = Mark::Submitted(hash(1));
    let marked = process
        .component
        .mark(lane(1), late.nonce, late.holder, mark)
        .await;
    assert_eq!(marked, Err(MarkRefusal::IsFree(late.nonce).into()));
    let next = process.reserve().await;
    assert_eq!(next.nonce, late.nonce);
    let mark = Mark::Used(hash(1));
    let marked = process
        .component
        .mark(lane(1), late.nonce, late.holder, mark)
        .await;
    assert_eq!(marked, Err(MarkRefusal::NotHolder(late.nonce).into()));
}

pub(crate) async fn expired_nonce_stays_reserved_while_a_tx_is_pending(scenario: &Scenario) {
    let process = scenario.process_with_instant_expiry().await;
    let late = process.reserve().await;
    scenario.chain.send(lane(1).signer, 0, hash(1));
    wait_until_overdue(scenario, &process, 1).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late);
    scenario.chain.empty_pool();
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn expired_nonce_is_used_when_its_consumer_is_final(scenario: &Scenario) {
    let process = scenario.process_with_instant_expiry().await;
    let late = process.reserve().await;
    scenario.chain.send(lane(1).signer, 0, hash(1));
    scenario.chain.mine(FOREIGN_DEPTH);
    wait_until_overdue(scenario, &process, 1).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late, "not deep enough");
    scenario.chain.mine(1);
    scenario.bury_foreign_transaction();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &late, state).await;
    assert_eq!((used.tx_hash, used.holder), (Some(hash(1)), late.holder));
}

pub(crate) async fn expired_nonce_stays_reserved_while_one_endpoint_shows_a_tx(
    scenario: &Scenario,
) {
    let process = scenario.process_with_instant_expiry().await;
    let late = process.reserve().await;
    wait_until_overdue(scenario, &process, 1).await;
    let mut sweep = process.component.sweep();
    for (latest, pending) in [(0, 1), (1, 1)] {
        scenario.chain.set_second_endpoint(latest, pending);
        process.sweep_all(&mut sweep).await;
        assert_eq!(process.row(&late).await, late, "{latest}, {pending}");
    }
    scenario.chain.set_second_endpoint(0, 0);
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn expired_nonce_stays_reserved_while_chain_unreachable(scenario: &Scenario) {
    let process = scenario.process_with_instant_expiry().await;
    let late = process.reserve().await;
    wait_until_overdue(scenario, &process, 1).await;
    scenario.chain.set_unreachable(true);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&late).await, late);
    scenario.chain.set_unreachable(false);
    let state = ReservationState::Recyclable;
    process.sweep_until(&mut sweep, &late, state).await;
}

pub(crate) async fn submitted_nonce_never_expires(scenario: &Scenario) {
    let process = scenario.process_with_instant_expiry().await;
    let reserved = process.reserve_many(2).await;
    let submitted = process.mark_submitted(&reserved[0], hash(1)).await;
    let mut sweep = process.component.sweep();
    let state = ReservationState::Recyclable;
    // The other one shows that the timeout has passed.
    process.sweep_until(&mut sweep, &reserved[1], state).await;
    scenario.chain.mine(FINAL_DEPTH + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&reserved[0]).await, submitted);
}

pub(crate) async fn unexpired_reservation_is_not_swept(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(2).await;
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    for one in reserved {
        assert_eq!(process.row(&one).await, one);
    }
}

pub(crate) async fn reservations_of_a_killed_process_are_recycled(scenario: &Scenario) {
    let dead = scenario.process_with_instant_expiry().await;
    let reserved = dead.reserve_many(3).await;
    drop(dead); // like kill -9: no mark, no close
    let next = scenario.process_with_instant_expiry().await;
    let mut sweep = next.component.sweep();
    for one in reserved {
        let state = ReservationState::Recyclable;
        next.sweep_until(&mut sweep, &one, state).await;
    }
    assert_eq!(next.reserve().await.nonce.0, 0);
}
