//! What the chain has to say before a nonce is free or lent.

use domain::{Nonce, ReservationState};
use engine::ports::ReservationError;

use super::super::kit::{FOREIGN_DEPTH, hash, lane, until};
use super::{World, nonces_of};

pub(crate) async fn a_submitted_nonce_is_given_back_only_if_the_chain_shows_nothing(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(3).await;
    for (one, name) in lent.iter().zip(1..) {
        process.submit(one, hash(name)).await;
    }
    let give_back = async |index: usize| {
        let (nonce, holder) = (lent[index].nonce, lent[index].holder);
        process
            .component
            .mark_recyclable(lane(1), nonce, holder, "dropped")
            .await
    };
    let account = lane(1).signer;
    world.chain.send(account, 0, hash(1));
    // One that waits for another is in no count of the pool.
    world.chain.send(account, 2, hash(3));
    for index in [0, 2] {
        let refused = give_back(index).await.unwrap_err();
        assert!(
            matches!(refused, ReservationError::MayBeMined { .. }),
            "{refused:?}"
        );
        assert!(refused.is_worth_repeating());
        assert_eq!(
            process.row(&lent[index]).await.state,
            ReservationState::Reserved
        );
    }
    let given = give_back(1).await.expect("nobody has anything of it");
    assert_eq!(given.state, ReservationState::Recyclable);
    world.chain.mine(1);
    let refused = give_back(0).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::MayBeMined { .. }),
        "{refused:?}"
    );
    world.chain.empty_pool();
    assert_eq!(
        give_back(2).await.unwrap().state,
        ReservationState::Recyclable
    );
    assert_eq!(nonces_of(&process.borrow_many(3).await), [1, 2, 3]);
}

pub(crate) async fn a_submitted_nonce_is_not_given_back_while_the_chain_is_silent(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.submit(&lent, hash(1)).await;
    world.chain.be_silent(true);
    let given = process
        .component
        .mark_recyclable(lane(1), lent.nonce, lent.holder, "perhaps");
    let refused = given.await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::MayBeMined { .. }),
        "{refused:?}"
    );
    assert_eq!(process.row(&lent).await.state, ReservationState::Reserved);
}

pub(crate) async fn a_free_nonce_that_somebody_used_is_not_lent(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(2).await;
    process.give_back(&lent[0]).await;
    // Its holder had sent it all the same, or somebody else uses the account.
    world.chain.send(lane(1).signer, 0, hash(9));
    assert_eq!(process.borrow().await.nonce, Nonce(2), "a pool has it");
    world.chain.mine(1);
    assert_eq!(process.borrow().await.nonce, Nonce(3), "a block has it");
}

pub(crate) async fn a_free_nonce_that_somebody_used_is_found_out(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(2).await;
    process.give_back(&lent[0]).await;
    world.chain.send(lane(1).signer, 0, hash(9));
    world.chain.mine(1 + FOREIGN_DEPTH);
    assert_eq!(process.borrow().await.nonce, Nonce(2));
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    until("it is not listed as free", async || {
        sweep.pass().await.expect("the books are there");
        let listed = process.component.list_reservations(lane(1)).await.unwrap();
        let is_listed = listed.open.iter().any(|one| one.nonce == lent[0].nonce);
        (!is_listed).then_some(())
    })
    .await;
    if world.has_no_sweep() {
        return; // what was given back is no lane's business: its next loan is another row
    }
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &lent[0], state).await;
    assert_eq!(used.tx_hash, Some(hash(9)));
}

pub(crate) async fn what_others_had_pending_and_lost_is_lent_after_all(world: &World) {
    let process = world.process().await;
    let first = process.borrow().await;
    let account = lane(1).signer;
    world.chain.send(account, first.nonce.0, hash(1));
    process.use_up(&first, hash(1)).await;
    for foreign in [1, 2] {
        world.chain.send(account, foreign, hash(8));
    }
    assert_eq!(process.borrow().await.nonce, Nonce(3));
    world.chain.empty_pool();
    world.chain.send(account, first.nonce.0, hash(1));
    world.chain.mine(1);
    // The account waits for 1 and 2, and nobody will ever send them: they are lent.
    assert_eq!(nonces_of(&process.borrow_many(3).await), [1, 2, 4]);
}
