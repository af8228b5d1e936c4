//! Chain checks before a nonce is recycled or reserved.

use domain::{Nonce, ReservationState};
use engine::ports::ReservationError;

use super::super::kit::{FOREIGN_DEPTH, hash, lane, wait_for};
use super::{Scenario, nonces_of};

pub(crate) async fn submitted_nonce_is_recycled_only_if_the_chain_shows_nothing(
    scenario: &Scenario,
) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(3).await;
    for (one, name) in reserved.iter().zip(1..) {
        process.mark_submitted(one, hash(name)).await;
    }
    let recycle = async |index: usize| {
        let (nonce, holder) = (reserved[index].nonce, reserved[index].holder);
        process
            .component
            .mark_recyclable(lane(1), nonce, holder, "dropped")
            .await
    };
    let account = lane(1).signer;
    scenario.chain.send(account, 0, hash(1));
    // A transaction behind a missing nonce is not in the pending count.
    scenario.chain.send(account, 2, hash(3));
    for index in [0, 2] {
        let refused = recycle(index).await.unwrap_err();
        assert!(
            matches!(refused, ReservationError::MayBeMined { .. }),
            "{refused:?}"
        );
        assert!(refused.is_worth_repeating());
        assert_eq!(
            process.row(&reserved[index]).await.state,
            ReservationState::Reserved
        );
    }
    let recycled = recycle(1).await.expect("the chain shows nothing");
    assert_eq!(recycled.state, ReservationState::Recyclable);
    scenario.chain.mine(1);
    let refused = recycle(0).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::MayBeMined { .. }),
        "{refused:?}"
    );
    scenario.chain.empty_pool();
    assert_eq!(
        recycle(2).await.unwrap().state,
        ReservationState::Recyclable
    );
    assert_eq!(nonces_of(&process.reserve_many(3).await), [1, 2, 3]);
}

pub(crate) async fn submitted_nonce_is_not_recycled_while_chain_unreachable(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.mark_submitted(&reserved, hash(1)).await;
    scenario.chain.set_unreachable(true);
    let recycled =
        process
            .component
            .mark_recyclable(lane(1), reserved.nonce, reserved.holder, "perhaps");
    let refused = recycled.await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::MayBeMined { .. }),
        "{refused:?}"
    );
    assert_eq!(
        process.row(&reserved).await.state,
        ReservationState::Reserved
    );
}

pub(crate) async fn consumed_recyclable_nonce_is_not_reserved(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(2).await;
    process.recycle(&reserved[0]).await;
    // The holder sent it anyway, or the account is used by other software.
    scenario.chain.send(lane(1).signer, 0, hash(9));
    assert_eq!(process.reserve().await.nonce, Nonce(2), "0 is pending");
    scenario.chain.mine(1);
    assert_eq!(process.reserve().await.nonce, Nonce(3), "0 is mined");
}

pub(crate) async fn consumed_recyclable_nonce_becomes_used(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(2).await;
    process.recycle(&reserved[0]).await;
    scenario.chain.send(lane(1).signer, 0, hash(9));
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    assert_eq!(process.reserve().await.nonce, Nonce(2));
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    wait_for("the nonce is not listed as recyclable", async || {
        process.sweep_once(&mut sweep).await;
        let listed = process.component.list_reservations(lane(1)).await.unwrap();
        let is_listed = listed.open.iter().any(|one| one.nonce == reserved[0].nonce);
        (!is_listed).then_some(())
    })
    .await;
    if scenario.sweeps_itself() {
        return; // in a lane the next reservation of a recycled nonce is another row
    }
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &reserved[0], state).await;
    assert_eq!(used.tx_hash, Some(hash(9)));
}

pub(crate) async fn skipped_nonces_are_reserved_after_foreign_txs_are_dropped(scenario: &Scenario) {
    let process = scenario.process().await;
    let first = process.reserve().await;
    let account = lane(1).signer;
    scenario.chain.send(account, first.nonce.0, hash(1));
    process.mark_used(&first, hash(1)).await;
    for foreign in [1, 2] {
        scenario.chain.send(account, foreign, hash(8));
    }
    assert_eq!(process.reserve().await.nonce, Nonce(3));
    scenario.chain.empty_pool();
    scenario.chain.send(account, first.nonce.0, hash(1));
    scenario.chain.mine(1);
    // The account waits for 1 and 2, whose transactions are dropped: they are reserved.
    assert_eq!(nonces_of(&process.reserve_many(3).await), [1, 2, 4]);
}
