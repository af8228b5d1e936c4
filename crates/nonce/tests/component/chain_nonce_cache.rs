//! The cache of chain nonces: when the chain is queried, and which answers are refused.

use std::sync::Arc;
use std::time::Duration;

use domain::Nonce;
use domain::lane::ChainQuery;
use engine::ports::ReservationError;
use futures::future::join_all;
use nonce::{NonceComponent, Settings};

use super::kit::*;

fn fixture(settings: Settings) -> (Arc<FakeChain>, NonceComponent) {
    let chain = FakeChain::new(CHAIN);
    let component = component(settings, MemoryLedger::new(), &chain);
    (chain, component)
}

async fn reserve(component: &NonceComponent) -> Result<u64, ReservationError> {
    component
        .allocate(lane(1))
        .await
        .map(|reserved| reserved.nonce.0)
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_share_one_chain_query_per_state_timeout() {
    let (chain, component) = fixture(Settings::default());
    chain.latch().close();
    let waiting: Vec<_> = (0..20).map(|_| reserve(&component)).collect();
    let release = async {
        wait_for("the chain is queried", async || {
            (chain.nonce_queries() > 0).then_some(())
        })
        .await;
        chain.latch().reopen();
    };
    let (mut reserved, ()) = tokio::join!(join_all(waiting), release);
    reserved.sort_by_key(|reserved| *reserved.as_ref().unwrap());
    assert_eq!(reserved, (0..20).map(Ok).collect::<Vec<_>>());
    assert_eq!(chain.nonce_queries(), 1);
    tokio::time::advance(Duration::from_secs(29)).await;
    reserve(&component).await.unwrap();
    assert_eq!(chain.nonce_queries(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    reserve(&component).await.unwrap();
    assert_eq!(chain.nonce_queries(), 2);
}

#[tokio::test(start_paused = true)]
async fn lane_waiting_for_the_chain_does_not_block_others() {
    for mode in [nonce::Mode::Basic, worker_queue_mode()] {
        let (chain, component) = fixture(Settings {
            mode,
            ..Settings::default()
        });
        component.allocate(lane(2)).await.unwrap();
        chain.latch().close();
        let waits = component.allocate(lane(1));
        let reserve_other = async {
            wait_for("the chain is queried", async || {
                (chain.nonce_queries() > 1).then_some(())
            })
            .await;
            let reserved = component.allocate(lane(2)).await.unwrap();
            chain.latch().reopen();
            reserved.nonce
        };
        let (waited, other) = tokio::join!(waits, reserve_other);
        assert_eq!((waited.unwrap().nonce, other), (Nonce(0), Nonce(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn first_reservation_requires_a_chain_answer() {
    let (chain, component) = fixture(Settings::default());
    chain.set_unreachable(true);
    let refused = reserve(&component).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused}"
    );
    assert!(refused.is_worth_repeating());
    chain.set_unreachable(false);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(reserve(&component).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn cached_chain_nonce_is_used_while_chain_unreachable() {
    let (chain, component) = fixture(Settings::default());
    chain.set_start_nonce(lane(1).signer, 5);
    assert_eq!(reserve(&component).await, Ok(5));
    chain.set_unreachable(true);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(reserve(&component).await, Ok(6));
    assert_eq!(reserve(&component).await, Ok(7));
    assert_eq!(
        chain.nonce_queries(),
        2,
        "an unreachable chain is not queried for every nonce"
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_nonces_are_skipped_if_two_endpoints_agree() {
    let (chain, component) = fixture(immediate_settings(nonce::Mode::Basic));
    assert_eq!(reserve(&component).await, Ok(0));
    chain.set_start_nonce(lane(1).signer, 3);
    chain.set_second_endpoint(1, 1);
    let refused = reserve(&component).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("no second endpoint confirms it"),
        "{refused}"
    );
    chain.set_second_endpoint(3, 3);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(reserve(&component).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn jump_that_two_endpoints_contradict_is_ignored() {
    let (chain, component) = fixture(immediate_settings(nonce::Mode::Basic));
    assert_eq!(reserve(&component).await, Ok(0));
    chain.set_start_nonce(lane(1).signer, 300);
    chain.set_second_endpoint(1, 1);
    chain.set_third_endpoint(0, 0);
    assert_eq!(reserve(&component).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn jump_above_max_chain_jump_is_refused_with_reason() {
    let (chain, component) = fixture(immediate_settings(nonce::Mode::Basic));
    assert_eq!(reserve(&component).await, Ok(0));
    chain.set_start_nonce(lane(1).signer, 1 + 65);
    let refused = reserve(&component).await.unwrap_err();
    assert!(
        refused.to_string().contains("nonce.maxChainJump (64)"),
        "{refused}"
    );
    assert_eq!(
        component
            .list_reservations(lane(1))
            .await
            .unwrap()
            .next_nonce,
        Nonce(1),
        "the next nonce is unchanged"
    );
    chain.set_start_nonce(lane(1).signer, 1 + 64);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(reserve(&component).await, Ok(65));
}

#[tokio::test(start_paused = true)]
async fn new_lane_accepts_any_chain_nonce() {
    let (chain, component) = fixture(Settings::default());
    chain.set_start_nonce(lane(1).signer, 1_000_000);
    assert_eq!(reserve(&component).await, Ok(1_000_000));
}

#[tokio::test(start_paused = true)]
async fn chain_query_setting_selects_pending_latest_or_none() {
    for (chain_query, expected) in [
        (ChainQuery::Pending, 2),
        (ChainQuery::Latest, 1),
        (ChainQuery::Off, 0),
    ] {
        let (chain, component) = fixture(Settings {
            chain_query,
            ..Settings::default()
        });
        let account = lane(1).signer;
        chain.send(account, 0, hash(1));
        chain.mine(1);
        chain.send(account, 1, hash(2));
        assert_eq!(reserve(&component).await, Ok(expected), "{chain_query:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unconfigured_chain_is_not_reservable() {
    let (_chain, component) = fixture(Settings::default());
    let stranger = domain::LaneKey {
        chain_id: domain::ChainId(1),
        ..lane(1)
    };
    let refused = component.allocate(stranger).await.unwrap_err();
    assert_eq!(refused, ReservationError::UnknownChain(domain::ChainId(1)));
    assert!(!refused.is_worth_repeating());
}
