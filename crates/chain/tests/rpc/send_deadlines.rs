//! Endpoints that answer queries and hang on sends, and sends for which there is little time.

use std::time::{Duration, Instant};

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::{Address, SendOutcome};
use engine::ports::Chain;

use crate::fake_node::{CHAIN, FakeNode, FakeReply, chain_of};
use crate::sends::{accept, busy, many, nonce_of, on_send, unknown};

const ALICE: Address = Address::repeat_byte(0xa1);
const BOB: Address = Address::repeat_byte(0xb0);
const CAROL: Address = Address::repeat_byte(0xca);

/// Answers queries and never a send.
async fn hanging_node() -> FakeNode {
    FakeNode::start(on_send(|_| FakeReply::NoAnswer)).await
}

async fn accepting_node() -> FakeNode {
    FakeNode::start(on_send(accept)).await
}

async fn send(chain: &RpcChain, account: Address, count: u64, trust_ms: u64) -> Vec<SendOutcome> {
    let began = Instant::now();
    let trust = move || Duration::from_millis(trust_ms).saturating_sub(began.elapsed());
    let outcomes = chain.send(account, &many(count), &trust).await;
    let took = began.elapsed();
    assert!(
        took < Duration::from_millis(trust_ms),
        "the outcomes came after {took:?}, when the lease was not trusted any more"
    );
    outcomes
}

#[tokio::test]
async fn endpoint_that_hangs_on_sends_leaves_time_for_the_next_one() {
    let (hanging, healthy) = (hanging_node().await, accepting_node().await);
    let chain = chain_of(vec![hanging.url(), healthy.url()]);
    let accepted = vec![SendOutcome::Accepted; 3];
    assert_eq!(send(&chain, ALICE, 3, 4_000).await, accepted);
    // The next send of this account goes to the healthy one first.
    let tries = hanging.raws().len();
    let began = Instant::now();
    assert_eq!(send(&chain, ALICE, 3, 4_000).await, accepted);
    assert!(began.elapsed() < Duration::from_millis(500));
    assert_eq!(hanging.raws().len(), tries);
}

#[tokio::test]
async fn sends_of_two_accounts_that_hang_spare_the_third() {
    let (hanging, healthy) = (hanging_node().await, accepting_node().await);
    let chain = chain_of(vec![hanging.url(), healthy.url()]);
    for account in [ALICE, BOB] {
        assert_eq!(
            send(&chain, account, 1, 4_000).await,
            [SendOutcome::Accepted]
        );
    }
    let tries = hanging.raws().len();
    assert_eq!(tries, 2, "one account alone proves nothing for another");
    assert_eq!(send(&chain, CAROL, 1, 4_000).await, [SendOutcome::Accepted]);
    assert_eq!(hanging.raws().len(), tries);
}

#[tokio::test]
async fn outcomes_that_arrived_are_kept_when_a_later_send_hangs() {
    let node = FakeNode::start(on_send(|params| match nonce_of(params) {
        2 => FakeReply::NoAnswer,
        _ => accept(params),
    }))
    .await;
    let chain = chain_of(vec![node.url()]);
    // As a batch nothing is answered; one by one, those before the hanging one are.
    let outcomes = send(&chain, ALICE, 4, 1_500).await;
    assert!(outcomes.iter().all(unknown), "{outcomes:?}");
    let outcomes = send(&chain, ALICE, 4, 1_500).await;
    assert_eq!(
        outcomes[..2],
        [SendOutcome::Accepted, SendOutcome::Accepted]
    );
    assert!(unknown(&outcomes[2]) && busy(&outcomes[3]), "{outcomes:?}");
}

#[tokio::test]
async fn endpoint_that_hangs_beside_one_that_accepts_costs_little() {
    let (hanging, healthy) = (hanging_node().await, accepting_node().await);
    let chain = RpcChain::new(RpcChainConfig {
        send_to: 2,
        ..RpcChainConfig::new(CHAIN, vec![hanging.url(), healthy.url()])
    })
    .expect("a valid configuration");
    let began = Instant::now();
    let outcomes = send(&chain, ALICE, 3, 6_000).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 3]);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn nothing_is_sent_once_the_lease_is_not_trusted() {
    let node = accepting_node().await;
    let chain = chain_of(vec![node.url()]);
    let outcomes = chain.send(ALICE, &many(2), &|| Duration::ZERO).await;
    assert!(outcomes.iter().all(busy), "{outcomes:?}");
    assert_eq!(node.raws(), Vec::<String>::new());
}

/// Accepts the first ten envelopes and never answers for others; ten requests per second.
async fn throttled_chain() -> (FakeNode, RpcChain) {
    let node = FakeNode::start(on_send(|params| match nonce_of(params) {
        0..10 => accept(params),
        _ => FakeReply::NoAnswer,
    }))
    .await;
    let chain = RpcChain::new(RpcChainConfig {
        requests_per_second: Some(10),
        ..RpcChainConfig::new(CHAIN, vec![node.url()])
    })
    .expect("a valid configuration");
    (node, chain)
}

#[tokio::test]
async fn send_does_not_start_when_its_answer_could_not_arrive() {
    let (node, chain) = throttled_chain().await;
    // The limit admits the second ten 1.1 s after the first request, and the answers are awaited for 1.2 s.
    let outcomes = send(&chain, ALICE, 20, 1_340).await;
    assert_eq!(outcomes[..10], vec![SendOutcome::Accepted; 10]);
    assert!(outcomes[10..].iter().all(busy), "{outcomes:?}");
    assert_eq!(node.raws().len(), 10);
}

#[tokio::test]
async fn time_spent_waiting_for_admission_is_not_held_against_the_endpoint() {
    let (node, chain) = throttled_chain().await;
    // After 1.1 s of waiting the second ten have 0.6 s. They get no answer, which proves nothing yet.
    let outcomes = send(&chain, ALICE, 20, 1_900).await;
    assert!(outcomes[10..].iter().all(unknown), "{outcomes:?}");
    let outcomes = send(&chain, ALICE, 2, 4_000).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 2]);
    let sizes = node.request_sizes();
    assert_eq!(
        sizes.last(),
        Some(&2),
        "envelopes of an account that hangs come one by one"
    );
}

#[tokio::test]
async fn rate_limit_cuts_a_send_and_keeps_what_was_sent() {
    let node = accepting_node().await;
    let urls: Vec<EndpointUrl> = vec![node.url()];
    let chain = RpcChain::new(RpcChainConfig {
        requests_per_second: Some(10),
        ..RpcChainConfig::new(CHAIN, urls)
    })
    .expect("a valid configuration");
    let outcomes = send(&chain, ALICE, 60, 2_500).await;
    let accepted = outcomes
        .iter()
        .take_while(|outcome| **outcome == SendOutcome::Accepted)
        .count();
    assert!((10..=40).contains(&accepted), "{accepted} accepted");
    assert!(outcomes[accepted..].iter().all(busy), "{outcomes:?}");
    assert_eq!(node.raws().len(), accepted);
}
