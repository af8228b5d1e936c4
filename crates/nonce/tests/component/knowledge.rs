//! What the component knows of the chain, when it asks, and what it does not believe.

use std::sync::Arc;
use std::time::Duration;

use domain::Nonce;
use domain::lane::ChainQuery;
use engine::ports::ReservationError;
use futures::future::join_all;
use nonce::{NonceComponent, Settings};

use super::kit::*;

fn stage(settings: Settings) -> (Arc<FakeChain>, NonceComponent) {
    let chain = FakeChain::new(CHAIN);
    let component = component(settings, MemoryBooks::new(), &chain);
    (chain, component)
}

async fn lend(component: &NonceComponent) -> Result<u64, ReservationError> {
    component.allocate(lane(1)).await.map(|lent| lent.nonce.0)
}

#[tokio::test(start_paused = true)]
async fn the_chain_is_asked_once_for_all_who_wait_and_again_when_its_answer_is_old() {
    let (chain, component) = stage(Settings::default());
    chain.gate().shut();
    let waiting: Vec<_> = (0..20).map(|_| lend(&component)).collect();
    let release = async {
        until("it is asked", async || (chain.asked() > 0).then_some(())).await;
        chain.gate().reopen();
    };
    let (mut lent, ()) = tokio::join!(join_all(waiting), release);
    lent.sort_by_key(|lent| *lent.as_ref().unwrap());
    assert_eq!(lent, (0..20).map(Ok).collect::<Vec<_>>());
    assert_eq!(chain.asked(), 1);
    tokio::time::advance(Duration::from_secs(29)).await;
    lend(&component).await.unwrap();
    assert_eq!(chain.asked(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    lend(&component).await.unwrap();
    assert_eq!(chain.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_lane_that_waits_for_the_chain_keeps_no_other_waiting() {
    for mode in [nonce::Mode::Basic, queued()] {
        let (chain, component) = stage(Settings {
            mode,
            ..Settings::default()
        });
        component.allocate(lane(2)).await.unwrap();
        chain.gate().shut();
        let waits = component.allocate(lane(1));
        let goes_on = async {
            until("it is asked", async || (chain.asked() > 1).then_some(())).await;
            let lent = component.allocate(lane(2)).await.unwrap();
            chain.gate().reopen();
            lent.nonce
        };
        let (waited, went_on) = tokio::join!(waits, goes_on);
        assert_eq!((waited.unwrap().nonce, went_on), (Nonce(0), Nonce(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_was_never_asked_must_answer_first() {
    let (chain, component) = stage(Settings::default());
    chain.be_silent(true);
    let refused = lend(&component).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused}"
    );
    assert!(refused.is_worth_repeating());
    chain.be_silent(false);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(lend(&component).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn what_was_known_must_do_while_the_chain_is_silent() {
    let (chain, component) = stage(Settings::default());
    chain.begin_at(lane(1).signer, 5);
    assert_eq!(lend(&component).await, Ok(5));
    chain.be_silent(true);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(lend(&component).await, Ok(6));
    assert_eq!(lend(&component).await, Ok(7));
    assert_eq!(
        chain.asked(),
        2,
        "a silent chain is not asked for every nonce"
    );
}

#[tokio::test(start_paused = true)]
async fn what_others_consumed_is_skipped_if_two_endpoints_say_so() {
    let (chain, component) = stage(eager(nonce::Mode::Basic));
    assert_eq!(lend(&component).await, Ok(0));
    chain.begin_at(lane(1).signer, 3);
    chain.second_says(1, 1);
    let refused = lend(&component).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("no second endpoint confirms it"),
        "{refused}"
    );
    chain.second_says(3, 3);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(lend(&component).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_jump_beyond_belief_stops_the_lane_with_a_reason() {
    let (chain, component) = stage(eager(nonce::Mode::Basic));
    assert_eq!(lend(&component).await, Ok(0));
    chain.begin_at(lane(1).signer, 1 + 65);
    let refused = lend(&component).await.unwrap_err();
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
        "nothing moved"
    );
    chain.begin_at(lane(1).signer, 1 + 64);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(lend(&component).await, Ok(65));
}

#[tokio::test(start_paused = true)]
async fn a_new_lane_takes_the_chains_nonce_as_it_is() {
    let (chain, component) = stage(Settings::default());
    chain.begin_at(lane(1).signer, 1_000_000);
    assert_eq!(lend(&component).await, Ok(1_000_000));
}

#[tokio::test(start_paused = true)]
async fn by_choice_the_pool_does_not_count_or_the_chain_is_not_asked() {
    for (chain_query, expected) in [
        (ChainQuery::Pending, 2),
        (ChainQuery::Latest, 1),
        (ChainQuery::Off, 0),
    ] {
        let (chain, component) = stage(Settings {
            chain_query,
            ..Settings::default()
        });
        let account = lane(1).signer;
        chain.send(account, 0, hash(1));
        chain.mine(1);
        chain.send(account, 1, hash(2));
        assert_eq!(lend(&component).await, Ok(expected), "{chain_query:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_is_not_configured_lends_nothing() {
    let (_chain, component) = stage(Settings::default());
    let stranger = domain::LaneKey {
        chain_id: domain::ChainId(1),
        ..lane(1)
    };
    let refused = component.allocate(stranger).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::NotReservable(_)),
        "{refused}"
    );
    assert!(!refused.is_worth_repeating());
}
