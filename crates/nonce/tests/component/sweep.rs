//! Rules of the sweep beyond the contract.

use std::sync::Arc;
use std::time::Duration;

use domain::{ChainId, LaneKey, ReservationState};
use nonce::sweep::SWEEP_BATCH_MAX;
use nonce::{Mode, NonceComponent, Settings};

use super::kit::*;

fn fixture(free_grace: Duration) -> (Arc<MemoryLedger>, Arc<FakeChain>, NonceComponent) {
    let (ledger, chain) = (MemoryLedger::new(), FakeChain::new(CHAIN));
    let settings = Settings {
        reservation_timeout: Duration::from_secs(10),
        free_grace,
        ..Settings::default()
    };
    let component = component(settings, Arc::clone(&ledger) as Arc<_>, &chain);
    (ledger, chain, component)
}

#[tokio::test(start_paused = true)]
async fn expired_nonce_is_recyclable_only_after_the_grace() {
    let (ledger, chain, component) = fixture(Duration::from_secs(5));
    component.allocate(lane(1)).await.unwrap();
    let mut sweep = component.sweep();
    let state = || ledger.row(lane(1), 0).unwrap().state;
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(sweep.run_pass().await.unwrap().decided, 0);
    tokio::time::advance(Duration::from_secs(4)).await;
    // A transaction arrives in the mempool after all.
    chain.send(lane(1).signer, 0, hash(1));
    assert_eq!(sweep.run_pass().await.unwrap().decided, 0);
    chain.empty_pool();
    for _ in 0..2 {
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            sweep.run_pass().await.unwrap().decided,
            0,
            "the grace starts again"
        );
    }
    assert_eq!(state(), ReservationState::Reserved);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(sweep.run_pass().await.unwrap().decided, 1);
    assert_eq!(state(), ReservationState::Recyclable);
}

#[tokio::test(start_paused = true)]
async fn unreachable_chain_does_not_restart_the_grace() {
    let (ledger, chain, component) = fixture(Duration::from_secs(5));
    component.allocate(lane(1)).await.unwrap();
    let mut sweep = component.sweep();
    tokio::time::advance(Duration::from_secs(11)).await;
    sweep.run_pass().await.unwrap();
    chain.set_unreachable(true);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(sweep.run_pass().await.unwrap().decided, 0);
    assert_eq!(
        ledger.row(lane(1), 0).unwrap().state,
        ReservationState::Reserved
    );
    chain.set_unreachable(false);
    assert_eq!(sweep.run_pass().await.unwrap().decided, 1);
}

#[tokio::test(start_paused = true)]
async fn unreachable_chain_does_not_block_other_chains() {
    let chains = [FakeChain::new(CHAIN), FakeChain::new(ChainId(5))];
    let ledger = MemoryLedger::new();
    let component = component_on(
        immediate_settings(Mode::Basic),
        Arc::clone(&ledger) as Arc<_>,
        &chains,
    );
    let lanes = [CHAIN, ChainId(5)].map(|chain_id| LaneKey {
        chain_id,
        ..lane(1)
    });
    for lane in lanes {
        component.allocate(lane).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    chains[0].set_unreachable(true);
    let swept = component.sweep().run_pass().await.unwrap();
    assert_eq!((swept.watched, swept.decided), (2, 1));
    assert_eq!(
        ledger.row(lanes[1], 0).unwrap().state,
        ReservationState::Recyclable
    );
}

#[tokio::test(start_paused = true)]
async fn sweep_takes_several_passes_beyond_the_batch_limit() {
    let (ledger, _chain, component) = fixture(Duration::ZERO);
    let count = SWEEP_BATCH_MAX + 20;
    for _ in 0..count {
        component.allocate(lane(1)).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    let mut sweep = component.sweep();
    assert_eq!(sweep.run_pass().await.unwrap().decided, SWEEP_BATCH_MAX);
    assert_eq!(sweep.run_pass().await.unwrap().decided, 20);
    for nonce in 0..count as u64 {
        let state = ledger.row(lane(1), nonce).unwrap().state;
        assert_eq!(state, ReservationState::Recyclable);
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_task_runs_until_aborted() {
    let (ledger, _chain, component) = fixture(Duration::ZERO);
    component.allocate(lane(1)).await.unwrap();
    let runs = tokio::spawn(component.sweep().run());
    let free = async || {
        let state = ledger.row(lane(1), 0).unwrap().state;
        (state == ReservationState::Recyclable).then_some(())
    };
    wait_for("the nonce is recyclable", free).await;
    runs.abort();
    assert!(runs.await.unwrap_err().is_cancelled());
}
