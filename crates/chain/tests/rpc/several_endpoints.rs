//! Sends to several endpoints, and their combined outcome.

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::SendOutcome;
use serde_json::json;

use crate::fake_node::{CHAIN, FakeNode, FakeReply, SendAll as _, chain_of, unreachable_url};
use crate::sends::{accept, busy, many, nonce_of, on_send, unknown};

async fn node_with_error(text: &'static str) -> FakeNode {
    FakeNode::start(on_send(move |_| FakeReply::Error(-32000, text))).await
}

async fn outcome(endpoints: Vec<EndpointUrl>) -> SendOutcome {
    chain_of(endpoints).send_all(&many(1)).await.remove(0)
}

#[tokio::test]
async fn undecided_send_goes_to_the_next_endpoint() {
    let lost = FakeNode::start(|_, _| FakeReply::Hangup).await;
    let accepting = FakeNode::start(on_send(|params| match nonce_of(params) {
        0 => accept(params),
        1 => FakeReply::Error(-32000, "already known"),
        2 => FakeReply::Error(-32000, "nonce too low"),
        _ => FakeReply::Error(-32000, "transaction underpriced"),
    }))
    .await;
    let outcomes = chain_of(vec![lost.url(), accepting.url()])
        .send_all(&many(4))
        .await;
    assert_eq!(
        outcomes[..2],
        [SendOutcome::Accepted, SendOutcome::Accepted]
    );
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(
        unknown(&outcomes[3]),
        "the first may have accepted it: {:?}",
        outcomes[3]
    );
    let with_unreachable = chain_of(vec![unreachable_url().await, accepting.url()]);
    let outcomes = with_unreachable.send_all(&many(4)).await;
    assert!(matches!(outcomes[3], SendOutcome::Underpriced(_)));

    for error_text in [
        "node is syncing",
        "txpool is full",
        "tx fee (2.00 ether) exceeds the configured cap (1.00 ether)",
        "intrinsic gas too low",
        "oversized data",
        "transaction underpriced",
        "insufficient funds for gas * price + value",
        "an unknown error text",
    ] {
        let failing = node_with_error(error_text).await;
        let accepted = outcome(vec![failing.url(), accepting.url()]).await;
        assert_eq!(accepted, SendOutcome::Accepted, "{error_text}");
    }
}

#[tokio::test]
async fn foreign_pending_tx_stops_sends_to_other_endpoints() {
    let accepting = FakeNode::start(on_send(accept)).await;
    let foreign = node_with_error("replacement transaction underpriced").await;
    let sent = outcome(vec![foreign.url(), accepting.url()]).await;
    assert!(matches!(sent, SendOutcome::ForeignPending(_)), "{sent:?}");
    assert_eq!(accepting.raws().len(), 0);
}

#[tokio::test]
async fn rejection_needs_every_endpoint() {
    let (one, other) = (
        node_with_error("oversized data").await,
        node_with_error("oversized data").await,
    );
    let refuses = node_with_error("invalid sender").await;
    let lost = FakeNode::start(|_, _| FakeReply::Hangup).await;
    let wrong = FakeNode::start_bare(true, |_, _| FakeReply::Result(json!("0x5"))).await;
    let rejected = |outcome| matches!(outcome, SendOutcome::Rejected(_));
    let refused = |outcome| matches!(outcome, SendOutcome::Refused(_));
    assert!(rejected(outcome(vec![one.url()]).await));
    assert!(rejected(outcome(vec![one.url(), other.url()]).await));
    assert!(rejected(
        outcome(vec![wrong.url(), one.url(), other.url()]).await
    ));
    assert!(refused(
        outcome(vec![one.url(), unreachable_url().await]).await
    ));
    assert!(refused(outcome(vec![one.url(), refuses.url()]).await));
    assert!(unknown(
        &outcome(vec![lost.url(), one.url(), other.url()]).await
    ));
    // One endpoint accepts what the other rejects.
    let accepting = FakeNode::start(on_send(accept)).await;
    let sent = outcome(vec![one.url(), accepting.url()]).await;
    assert_eq!(sent, SendOutcome::Accepted);
}

#[tokio::test]
async fn envelopes_go_to_send_to_endpoints() {
    let nodes = [
        FakeNode::start(on_send(accept)).await,
        node_with_error("oversized data").await,
        FakeNode::start(on_send(accept)).await,
    ];
    let endpoints: Vec<EndpointUrl> = nodes.iter().map(FakeNode::url).collect();
    let chain = RpcChain::new(RpcChainConfig {
        send_to: 2,
        ..RpcChainConfig::new(CHAIN, endpoints.clone())
    })
    .unwrap();
    assert_eq!(
        chain.send_all(&many(3)).await,
        vec![SendOutcome::Accepted; 3]
    );
    assert_eq!(nodes.each_ref().map(|node| node.raws().len()), [3, 3, 0]);
    let chain = RpcChain::new(RpcChainConfig {
        send_to: 9,
        ..RpcChainConfig::new(CHAIN, endpoints)
    })
    .unwrap();
    assert_eq!(
        chain.send_all(&many(3)).await,
        vec![SendOutcome::Accepted; 3]
    );
    assert_eq!(nodes.each_ref().map(|node| node.raws().len()), [6, 6, 3]);
}

#[tokio::test]
async fn envelopes_beyond_a_full_pool_go_to_the_next_endpoint() {
    let small = FakeNode::start(on_send(|params| match nonce_of(params) {
        0..16 => accept(params),
        _ => FakeReply::Error(-32000, "txpool is full"),
    }))
    .await;
    let large = FakeNode::start(on_send(accept)).await;
    let chain = chain_of(vec![small.url(), large.url()]);
    assert_eq!(
        chain.send_all(&many(40)).await,
        vec![SendOutcome::Accepted; 40]
    );
    assert_eq!(large.raws().len(), 24);
    let chain = chain_of(vec![small.url(), unreachable_url().await]);
    let outcomes = chain.send_all(&many(40)).await;
    assert!(
        outcomes[16..]
            .iter()
            .all(|one| matches!(one, SendOutcome::Full { .. }))
    );
    let chain = chain_of(vec![unreachable_url().await, unreachable_url().await]);
    assert!(chain.send_all(&many(2)).await.iter().all(busy));
}
