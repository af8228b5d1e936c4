//! Rate limits: backoffs that endpoints request, and the configured limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chain::rpc::{RpcChain, RpcChainConfig};
use engine::ports::{BlockTag, Chain};
use serde_json::json;

use crate::fake_node::{CHAIN, FakeNode, FakeReply, advance_time, chain_of};
use crate::reads::block;

/// Replies to the first request with `reply`, and to the others with a block.
async fn node_that_fails_once(reply: impl Fn() -> FakeReply + Send + Sync + 'static) -> FakeNode {
    let requests = AtomicUsize::new(0);
    FakeNode::start(move |_, _| match requests.fetch_add(1, Ordering::SeqCst) {
        0 => reply(),
        _ => FakeReply::Result(block(7)),
    })
    .await
}

#[tokio::test]
async fn rate_limited_endpoint_gets_its_requested_backoff() {
    let infura = || {
        let data =
            json!({ "rate": { "allowed_rps": 1, "backoff_seconds": 8.0, "current_rps": 3 } });
        FakeReply::ErrorData(-32005, "daily request count exceeded", data)
    };
    let cases: [(fn() -> FakeReply, u64); 6] = [
        (|| FakeReply::RetryAfter(429, "8"), 8),
        (|| FakeReply::RetryAfter(503, "8"), 8),
        (infura, 8),
        (
            || FakeReply::raw(429, r#"{"error":{"code":-1,"message":"later"}}"#),
            1,
        ),
        (|| FakeReply::Error(429, "later"), 1),
        (|| FakeReply::RetryAfter(429, "86400"), 30),
    ];
    for (reply, seconds) in cases {
        let fake = node_that_fails_once(reply).await;
        let chain = fake.chain();
        chain.header(BlockTag::Latest).await.unwrap_err();
        for _ in 0..3 {
            let error = chain.header(BlockTag::Latest).await.unwrap_err();
            assert!(error.to_string().contains("requested a backoff"), "{error}");
        }
        assert_eq!(fake.methods().len(), 1);
        advance_time(Duration::from_secs(seconds)).await;
        assert!(chain.header(BlockTag::Latest).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn other_endpoints_are_used_during_a_backoff() {
    let fake = node_that_fails_once(|| FakeReply::RetryAfter(429, "5")).await;
    let other = FakeNode::start(|_, _| FakeReply::Result(block(7))).await;
    let chain = chain_of(vec![fake.url(), other.url()]);
    for _ in 0..3 {
        assert!(chain.header(BlockTag::Number(7)).await.unwrap().is_some());
    }
    assert_eq!(fake.methods().len(), 1);
    assert_eq!(other.methods().len(), 3);
}

#[tokio::test]
async fn calls_per_second_stay_below_the_configured_limit() {
    let fake = FakeNode::start(|_, params| {
        let number = u64::from_str_radix(&params[0].as_str().unwrap()[2..], 16).unwrap();
        FakeReply::Result(block(number))
    })
    .await;
    let config = RpcChainConfig {
        requests_per_second: Some(40),
        ..RpcChainConfig::new(CHAIN, vec![fake.url()])
    };
    let chain = Arc::new(RpcChain::new(config).unwrap());
    let began = Instant::now();
    assert_eq!(chain.headers(1, 80).await.unwrap().len(), 80);
    assert!(chain.header(BlockTag::Number(5)).await.unwrap().is_some());
    assert_eq!(fake.request_sizes(), [40, 40, 1]);
    // 82 calls including the chain id: two seconds, less the allowed burst.
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1700), "{took:?}");
}
