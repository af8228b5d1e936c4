//! The sweep's own rules, beside those of the contract.

use std::sync::Arc;
use std::time::Duration;

use domain::{ChainId, LaneKey, ReservationState};
use nonce::sweep::SWEPT_MAX;
use nonce::{Mode, NonceComponent, Settings};

use super::kit::*;

fn stage(free_grace: Duration) -> (Arc<MemoryBooks>, Arc<FakeChain>, NonceComponent) {
    let (books, chain) = (MemoryBooks::new(), FakeChain::new(CHAIN));
    let settings = Settings {
        reservation_timeout: Duration::from_secs(10),
        free_grace,
        ..Settings::default()
    };
    let component = component(settings, Arc::clone(&books) as Arc<_>, &chain);
    (books, chain, component)
}

#[tokio::test(start_paused = true)]
async fn what_is_overdue_is_free_only_after_a_grace() {
    let (books, chain, component) = stage(Duration::from_secs(5));
    component.allocate(lane(1)).await.unwrap();
    let mut sweep = component.sweep();
    let state = || books.row(lane(1), 0).unwrap().state;
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(sweep.pass().await.unwrap().settled, 0);
    tokio::time::advance(Duration::from_secs(4)).await;
    // It was under way: a pool has it after all.
    chain.send(lane(1).signer, 0, hash(1));
    assert_eq!(sweep.pass().await.unwrap().settled, 0);
    chain.empty_pool();
    for _ in 0..2 {
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            sweep.pass().await.unwrap().settled,
            0,
            "the grace begins anew"
        );
    }
    assert_eq!(state(), ReservationState::Reserved);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(sweep.pass().await.unwrap().settled, 1);
    assert_eq!(state(), ReservationState::Recyclable);
}

#[tokio::test(start_paused = true)]
async fn a_silent_chain_neither_ends_nor_starts_a_grace() {
    let (books, chain, component) = stage(Duration::from_secs(5));
    component.allocate(lane(1)).await.unwrap();
    let mut sweep = component.sweep();
    tokio::time::advance(Duration::from_secs(11)).await;
    sweep.pass().await.unwrap();
    chain.be_silent(true);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(sweep.pass().await.unwrap().settled, 0);
    assert_eq!(
        books.row(lane(1), 0).unwrap().state,
        ReservationState::Reserved
    );
    chain.be_silent(false);
    assert_eq!(sweep.pass().await.unwrap().settled, 1);
}

#[tokio::test(start_paused = true)]
async fn one_silent_chain_keeps_no_other_waiting() {
    let chains = [FakeChain::new(CHAIN), FakeChain::new(ChainId(5))];
    let books = MemoryBooks::new();
    let component = component_on(eager(Mode::Basic), Arc::clone(&books) as Arc<_>, &chains);
    let lanes = [CHAIN, ChainId(5)].map(|chain_id| LaneKey {
        chain_id,
        ..lane(1)
    });
    for lane in lanes {
        component.allocate(lane).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    chains[0].be_silent(true);
    let swept = component.sweep().pass().await.unwrap();
    assert_eq!((swept.watched, swept.settled), (2, 1));
    assert_eq!(
        books.row(lanes[1], 0).unwrap().state,
        ReservationState::Recyclable
    );
}

#[tokio::test(start_paused = true)]
async fn more_than_fits_into_a_pass_is_swept_in_several() {
    let (books, _chain, component) = stage(Duration::ZERO);
    let count = SWEPT_MAX + 20;
    for _ in 0..count {
        component.allocate(lane(1)).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    let mut sweep = component.sweep();
    assert_eq!(sweep.pass().await.unwrap().settled, SWEPT_MAX);
    assert_eq!(sweep.pass().await.unwrap().settled, 20);
    for nonce in 0..count as u64 {
        let state = books.row(lane(1), nonce).unwrap().state;
        assert_eq!(state, ReservationState::Recyclable);
    }
}

#[tokio::test(start_paused = true)]
async fn it_runs_by_itself_until_it_is_dropped() {
    let (books, _chain, component) = stage(Duration::ZERO);
    component.allocate(lane(1)).await.unwrap();
    let runs = tokio::spawn(component.sweep().run());
    let free = async || {
        let state = books.row(lane(1), 0).unwrap().state;
        (state == ReservationState::Recyclable).then_some(())
    };
    until("it is free", free).await;
    runs.abort();
    assert!(runs.await.unwrap_err().is_cancelled());
}
