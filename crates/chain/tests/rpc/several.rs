//! Sends to several endpoints: what their answers mean together.

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::SendOutcome;
use engine::ports::Chain;
use serde_json::json;

use crate::fake::{CHAIN, Fake, Say, chain_of, nobody};
use crate::sends::{busy, many, nonce_of, on_send, take, unknown};

async fn says(text: &'static str) -> Fake {
    Fake::start(on_send(move |_| Say::Error(-32000, text))).await
}

async fn outcome(endpoints: Vec<EndpointUrl>) -> SendOutcome {
    chain_of(endpoints).send(&many(1)).await.remove(0)
}

#[tokio::test]
async fn doubt_is_taken_to_the_next_endpoint() {
    let lost = Fake::start(|_, _| Say::Hangup).await;
    let takes = Fake::start(on_send(|params| match nonce_of(params) {
        0 => take(params),
        1 => Say::Error(-32000, "already known"),
        2 => Say::Error(-32000, "nonce too low"),
        _ => Say::Error(-32000, "transaction underpriced"),
    }))
    .await;
    let outcomes = chain_of(vec![lost.url(), takes.url()]).send(&many(4)).await;
    assert_eq!(
        outcomes[..2],
        [SendOutcome::Accepted, SendOutcome::Accepted]
    );
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(
        unknown(&outcomes[3]),
        "the first may have taken it: {:?}",
        outcomes[3]
    );
    let with_nobody = chain_of(vec![nobody().await, takes.url()]);
    let outcomes = with_nobody.send(&many(4)).await;
    assert!(matches!(outcomes[3], SendOutcome::Underpriced(_)));

    for doubt in [
        "node is syncing",
        "txpool is full",
        "tx fee (2.00 ether) exceeds the configured cap (1.00 ether)",
        "intrinsic gas too low",
        "oversized data",
        "transaction underpriced",
        "insufficient funds for gas * price + value",
        "words that nobody has heard",
    ] {
        let doubts = says(doubt).await;
        let accepted = outcome(vec![doubts.url(), takes.url()]).await;
        assert_eq!(accepted, SendOutcome::Accepted, "{doubt}");
    }
}

#[tokio::test]
async fn a_foreign_transaction_is_not_outrun_elsewhere() {
    let takes = Fake::start(on_send(take)).await;
    let foreign = says("replacement transaction underpriced").await;
    let told = outcome(vec![foreign.url(), takes.url()]).await;
    assert!(matches!(told, SendOutcome::ForeignPending(_)), "{told:?}");
    assert_eq!(takes.raws().len(), 0);
}

#[tokio::test]
async fn a_rejection_needs_every_endpoint() {
    let (one, other) = (says("oversized data").await, says("oversized data").await);
    let refuses = says("intrinsic gas too low").await;
    let lost = Fake::start(|_, _| Say::Hangup).await;
    let wrong = Fake::start_bare(true, |_, _| Say::Result(json!("0x5"))).await;
    let rejected = |outcome| matches!(outcome, SendOutcome::Rejected(_));
    let refused = |outcome| matches!(outcome, SendOutcome::Refused(_));
    assert!(rejected(outcome(vec![one.url()]).await));
    assert!(rejected(outcome(vec![one.url(), other.url()]).await));
    assert!(rejected(
        outcome(vec![wrong.url(), one.url(), other.url()]).await
    ));
    assert!(refused(outcome(vec![one.url(), nobody().await]).await));
    assert!(refused(outcome(vec![one.url(), refuses.url()]).await));
    assert!(unknown(
        &outcome(vec![lost.url(), one.url(), other.url()]).await
    ));
    // One has taken what the other rejects.
    let takes = Fake::start(on_send(take)).await;
    let told = outcome(vec![one.url(), takes.url()]).await;
    assert_eq!(told, SendOutcome::Accepted);
}

#[tokio::test]
async fn bytes_go_to_as_many_as_are_asked_for() {
    let nodes = [
        Fake::start(on_send(take)).await,
        says("oversized data").await,
        Fake::start(on_send(take)).await,
    ];
    let endpoints: Vec<EndpointUrl> = nodes.iter().map(Fake::url).collect();
    let chain = RpcChain::new(RpcChainConfig {
        send_to: 2,
        ..RpcChainConfig::new(CHAIN, endpoints.clone())
    })
    .unwrap();
    assert_eq!(chain.send(&many(3)).await, vec![SendOutcome::Accepted; 3]);
    assert_eq!(nodes.each_ref().map(|node| node.raws().len()), [3, 3, 0]);
    let chain = RpcChain::new(RpcChainConfig {
        send_to: 9,
        ..RpcChainConfig::new(CHAIN, endpoints)
    })
    .unwrap();
    assert_eq!(chain.send(&many(3)).await, vec![SendOutcome::Accepted; 3]);
    assert_eq!(nodes.each_ref().map(|node| node.raws().len()), [6, 6, 3]);
}

#[tokio::test]
async fn what_one_has_no_room_for_goes_to_the_next() {
    let small = Fake::start(on_send(|params| match nonce_of(params) {
        0..16 => take(params),
        _ => Say::Error(-32000, "txpool is full"),
    }))
    .await;
    let large = Fake::start(on_send(take)).await;
    let chain = chain_of(vec![small.url(), large.url()]);
    assert_eq!(chain.send(&many(40)).await, vec![SendOutcome::Accepted; 40]);
    assert_eq!(large.raws().len(), 24);
    let chain = chain_of(vec![small.url(), nobody().await]);
    let outcomes = chain.send(&many(40)).await;
    assert!(
        outcomes[16..]
            .iter()
            .all(|one| matches!(one, SendOutcome::Full { .. }))
    );
    let chain = chain_of(vec![nobody().await, nobody().await]);
    assert!(chain.send(&many(2)).await.iter().all(busy));
}
