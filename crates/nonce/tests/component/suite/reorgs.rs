//! The chain closes reservations, and reorgs reopen them.

use domain::{MarkRefusal, ReservationState};

use super::super::kit::{FINAL_DEPTH, FOREIGN_DEPTH, WATCH_DEPTH, hash, lane, wait_for};
use super::Scenario;

pub(crate) async fn final_receipt_closes_a_submitted_nonce(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let submitted = process.mark_submitted(&reserved, hash(1)).await;
    scenario.chain.send(lane(1).signer, 0, hash(1));
    scenario.chain.mine(FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert_eq!(
        process.row(&reserved).await,
        submitted,
        "mined, but not final"
    );
    scenario.chain.mine(1);
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &reserved, state).await;
    assert_eq!(
        (used.tx_hash, used.holder),
        (Some(hash(1)), reserved.holder)
    );
    // The holder may mark it used too.
    assert_eq!(process.mark_used(&reserved, hash(1)).await.state, state);
}

pub(crate) async fn final_foreign_tx_closes_a_submitted_nonce(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.mark_submitted(&reserved, hash(1)).await;
    // The holder replaced it without a mark, or a foreign transaction was faster.
    scenario.chain.send(lane(1).signer, 0, hash(2));
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &reserved, state).await;
    assert_eq!(used.tx_hash, Some(hash(2)));
}

/// A holder submits a hash that belongs to another account's transaction.
pub(crate) async fn receipt_of_another_accounts_tx_closes_nothing(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(2).await;
    let marked = [
        process.mark_submitted(&reserved[0], hash(1)).await,
        process.mark_used(&reserved[1], hash(2)).await,
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
        scenario.chain.send(other, nonce, hash(name));
    }
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    for (one, marked) in reserved.iter().zip(&marked) {
        assert_eq!(process.row(one).await, *marked);
    }
    assert_eq!(listed().await, 2);
    // Transactions that consume the nonces close them.
    for (nonce, name) in [(0, 8), (1, 9)] {
        scenario.chain.send(account, nonce, hash(name));
    }
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    scenario.bury_foreign_transaction();
    wait_for("the chain has closed both", async || {
        process.sweep_once(&mut sweep).await;
        (listed().await == 0).then_some(())
    })
    .await;
}

pub(crate) async fn reorg_reopens_a_closed_reservation(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    let submitted = process.mark_submitted(&reserved, hash(1)).await;
    let account = lane(1).signer;
    scenario.chain.send(account, 0, hash(1));
    scenario.chain.mine(1 + FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    let (used, open) = (ReservationState::Used, ReservationState::Reserved);
    process.sweep_until(&mut sweep, &reserved, used).await;

    scenario
        .chain
        .reorg(1 + usize::try_from(FINAL_DEPTH).expect("small"));
    let reopened = process.sweep_until(&mut sweep, &reserved, open).await;
    assert_eq!(reopened, submitted, "as before the block");
    process.sweep_all(&mut sweep).await;
    assert_eq!(
        process.row(&reserved).await,
        submitted,
        "it is not recycled"
    );

    scenario.chain.send(account, 0, hash(1));
    scenario.chain.mine(1 + FINAL_DEPTH);
    let again = process.sweep_until(&mut sweep, &reserved, used).await;
    assert_eq!(again.tx_hash, Some(hash(1)));
}

/// The holder's transaction and the other one may both be mined again.
pub(crate) async fn reopened_nonce_with_foreign_consumer_cannot_be_recycled(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.mark_submitted(&reserved, hash(1)).await;
    scenario.chain.send(lane(1).signer, 0, hash(2));
    let depth = 1 + FOREIGN_DEPTH;
    scenario.chain.mine(depth);
    let mut sweep = process.component.sweep();
    let (used, open) = (ReservationState::Used, ReservationState::Reserved);
    process.sweep_until(&mut sweep, &reserved, used).await;
    scenario.chain.reorg(usize::try_from(depth).expect("small"));
    process.sweep_until(&mut sweep, &reserved, open).await;
    let (nonce, holder) = (reserved.nonce, reserved.holder);
    let component = &process.component;
    let marked = component.mark_recyclable(lane(1), nonce, holder, "gone");
    assert_eq!(marked.await, Err(MarkRefusal::TwoNamed(nonce).into()));
}

pub(crate) async fn nonce_marked_used_is_watched_until_the_chain_closes_it(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve_many(2).await;
    let account = lane(1).signer;
    let is_listed = async |index: usize| {
        let listed = process.component.list_reservations(lane(1)).await.unwrap();
        listed
            .open
            .iter()
            .any(|one| one.nonce == reserved[index].nonce)
    };
    scenario.chain.send(account, 0, hash(1));
    scenario.chain.send(account, 1, hash(2));
    scenario.chain.mine(1);
    process.mark_used(&reserved[0], hash(1)).await;
    process.mark_used(&reserved[1], hash(2)).await;
    // The block is reorged out, and the mempool loses its transactions: the account waits for its first nonce.
    scenario.chain.reorg(1);
    let mut sweep = process.component.sweep();
    process.sweep_all(&mut sweep).await;
    assert!(is_listed(0).await && is_listed(1).await);
    // The holder replaces its transaction without a mark.
    scenario.chain.send(account, 0, hash(3));
    scenario.chain.send(account, 1, hash(2));
    scenario.chain.mine(1 + FOREIGN_DEPTH);
    process.sweep_all(&mut sweep).await;
    scenario.bury_foreign_transaction();
    wait_for("the chain has closed both", async || {
        process.sweep_once(&mut sweep).await;
        (!is_listed(0).await && !is_listed(1).await).then_some(())
    })
    .await;
    for (one, by) in reserved.iter().zip([hash(3), hash(2)]) {
        let row = process.row(one).await;
        assert_eq!((row.state, row.tx_hash), (ReservationState::Used, Some(by)));
    }
}

pub(crate) async fn deeply_closed_reservation_is_not_watched(scenario: &Scenario) {
    let process = scenario.process().await;
    let reserved = process.reserve().await;
    process.mark_submitted(&reserved, hash(1)).await;
    scenario.chain.send(lane(1).signer, 0, hash(1));
    scenario.chain.mine(1 + FINAL_DEPTH);
    let mut sweep = process.component.sweep();
    let state = ReservationState::Used;
    let used = process.sweep_until(&mut sweep, &reserved, state).await;
    let watched = async || process.scheme.list_watched(100).await.unwrap().len();
    let is_watched = scenario.sweeps_itself() || watched().await + watched().await > 0;
    assert!(is_watched, "it is watched at first");
    scenario.chain.mine(WATCH_DEPTH);
    process.sweep_all(&mut sweep).await;
    assert_eq!((watched().await, watched().await), (0, 0));
    scenario
        .chain
        .reorg(1 + usize::try_from(WATCH_DEPTH).expect("small"));
    process.sweep_all(&mut sweep).await;
    assert_eq!(process.row(&reserved).await, used);
}
