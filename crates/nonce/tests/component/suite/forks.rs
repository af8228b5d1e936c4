//! The chain closes what was submitted, and forks take that back.

use domain::{MarkRefusal, ReservationState};

use super::super::kit::{FINAL_DEPTH, FOREIGN_DEPTH, WATCH_DEPTH, hash, lane, until};
use super::World;

pub(crate) async fn a_receipt_closes_a_submitted_nonce_when_it_is_final(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let submitted = process.submit(&lent, hash(1)).await;
    world.chain.send(lane(1).signer, 0, hash(1));
    world.chain.mine(FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&lent).await, submitted, "mined, but not final");
    world.chain.mine(1);
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &lent, state).await;
    assert_eq!((used.tx_hash, used.holder), (Some(hash(1)), lent.holder));
    // Its holder may say so too.
    assert_eq!(process.use_up(&lent, hash(1)).await.state, state);
}

pub(crate) async fn another_transaction_closes_a_submitted_nonce_too(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.submit(&lent, hash(1)).await;
    // Its holder replaced it without a word, or somebody else was faster.
    world.chain.send(lane(1).signer, 0, hash(2));
    world.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &lent, state).await;
    assert_eq!(used.tx_hash, Some(hash(2)));
}

/// A holder names a hash, and the hash is of another account's transaction.
pub(crate) async fn a_transaction_that_did_not_consume_the_nonce_closes_nothing(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(2).await;
    let said = [
        process.submit(&lent[0], hash(1)).await,
        process.use_up(&lent[1], hash(2)).await,
    ];
    let listed = async || {
        process
            .component
            .list_reservations(lane(1))
            .await
            .unwrap()
            .open
            .len()
    };
    let (account, other) = (lane(1).signer, lane(2).signer);
    for (nonce, name) in [(0, 1), (1, 2)] {
        world.chain.send(other, nonce, hash(name));
    }
    world.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    for (one, said) in lent.iter().zip(&said) {
        assert_eq!(process.row(one).await, *said);
    }
    assert_eq!(listed().await, 2);
    // What does consume them closes them.
    for (nonce, name) in [(0, 8), (1, 9)] {
        world.chain.send(account, nonce, hash(name));
    }
    world.chain.mine(1 + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    world.let_it_show();
    until("the chain has closed both", async || {
        sweep.pass().await.expect("the books are there");
        (listed().await == 0).then_some(())
    })
    .await;
}

pub(crate) async fn a_fork_reopens_what_the_chain_closed(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    let submitted = process.submit(&lent, hash(1)).await;
    let account = lane(1).signer;
    world.chain.send(account, 0, hash(1));
    world.chain.mine(1 + FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    let (used, open) = (ReservationState::Used, ReservationState::Reserved);
    process.sweep_until(&mut sweep, &lent, used).await;

    world
        .chain
        .reorg(1 + usize::try_from(FINAL_DEPTH).expect("small"));
    let reopened = process.sweep_until(&mut sweep, &lent, open).await;
    assert_eq!(reopened, submitted, "as if nothing had been mined");
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&lent).await, submitted, "and it is not free");

    world.chain.send(account, 0, hash(1));
    world.chain.mine(1 + FINAL_DEPTH);
    let again = process.sweep_until(&mut sweep, &lent, used).await;
    assert_eq!(again.tx_hash, Some(hash(1)));
}

/// Its holder's transaction and the other one may both be mined again.
pub(crate) async fn what_a_fork_reopened_is_not_given_back_when_another_had_closed_it(
    world: &World,
) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.submit(&lent, hash(1)).await;
    world.chain.send(lane(1).signer, 0, hash(2));
    let depth = 1 + FOREIGN_DEPTH;
    world.chain.mine(depth);
    let mut sweep = process.component.sweep();
    let (used, open) = (ReservationState::Used, ReservationState::Reserved);
    process.sweep_until(&mut sweep, &lent, used).await;
    world.chain.reorg(usize::try_from(depth).expect("small"));
    process.sweep_until(&mut sweep, &lent, open).await;
    let (nonce, holder) = (lent.nonce, lent.holder);
    let component = &process.component;
    let said = component.mark_recyclable(lane(1), nonce, holder, "gone");
    assert_eq!(said.await, Err(MarkRefusal::TwoNamed(nonce).into()));
}

pub(crate) async fn what_was_said_to_be_used_is_watched_until_the_chain_closes_it(world: &World) {
    let process = world.process().await;
    let lent = process.borrow_many(2).await;
    let account = lane(1).signer;
    let is_listed = async |index: usize| {
        let listed = process.component.list_reservations(lane(1)).await.unwrap();
        listed.open.iter().any(|one| one.nonce == lent[index].nonce)
    };
    world.chain.send(account, 0, hash(1));
    world.chain.send(account, 1, hash(2));
    world.chain.mine(1);
    process.use_up(&lent[0], hash(1)).await;
    process.use_up(&lent[1], hash(2)).await;
    // A fork takes the block, and the pool forgets what was in it: the account waits for its first nonce.
    world.chain.reorg(1);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert!(is_listed(0).await && is_listed(1).await);
    // Its holder replaces it without a word, as he must.
    world.chain.send(account, 0, hash(3));
    world.chain.send(account, 1, hash(2));
    world.chain.mine(1 + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    world.let_it_show();
    until("the chain has closed both", async || {
        sweep.pass().await.expect("the books are there");
        (!is_listed(0).await && !is_listed(1).await).then_some(())
    })
    .await;
    for (one, by) in lent.iter().zip([hash(3), hash(2)]) {
        let row = process.row(one).await;
        assert_eq!((row.state, row.tx_hash), (ReservationState::Used, Some(by)));
    }
}

pub(crate) async fn what_is_closed_deep_enough_is_not_watched_any_more(world: &World) {
    let process = world.process().await;
    let lent = process.borrow().await;
    process.submit(&lent, hash(1)).await;
    world.chain.send(lane(1).signer, 0, hash(1));
    world.chain.mine(1 + FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &lent, state).await;
    let watched = async || process.scheme.to_watch(100).await.unwrap().len();
    let is_watched = world.has_no_sweep() || watched().await + watched().await > 0;
    assert!(is_watched, "for a while it is");
    world.chain.mine(WATCH_DEPTH);
    process.sweep_all(&mut sweep).await;
    assert_eq!((watched().await, watched().await), (0, 0));
    world
        .chain
        .reorg(1 + usize::try_from(WATCH_DEPTH).expect("small"));
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&lent).await, used);
}
