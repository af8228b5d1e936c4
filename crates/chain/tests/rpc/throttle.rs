//! Endpoints that want fewer requests get fewer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chain::rpc::{RpcChain, RpcChainConfig};
use engine::ports::{BlockTag, Chain};
use serde_json::json;

use crate::fake::{CHAIN, Fake, Say, chain_of, pass};
use crate::reads::block;

/// Throttles the first request in this way, and then answers.
async fn once(say: impl Fn() -> Say + Send + Sync + 'static) -> Fake {
    let asked = AtomicUsize::new(0);
    Fake::start(move |_, _| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => say(),
        _ => Say::Result(block(7)),
    })
    .await
}

#[tokio::test]
async fn an_endpoint_that_throttles_is_left_alone_for_as_long_as_it_says() {
    let infura = || {
        let data =
            json!({ "rate": { "allowed_rps": 1, "backoff_seconds": 8.0, "current_rps": 3 } });
        Say::ErrorData(-32005, "daily request count exceeded", data)
    };
    let cases: [(fn() -> Say, u64); 6] = [
        (|| Say::Later(429, "8"), 8),
        (|| Say::Later(503, "8"), 8),
        (infura, 8),
        (
            || Say::raw(429, r#"{"error":{"code":-1,"message":"later"}}"#),
            1,
        ),
        (|| Say::Error(429, "later"), 1),
        (|| Say::Later(429, "86400"), 30),
    ];
    for (say, seconds) in cases {
        let fake = once(say).await;
        let chain = fake.chain();
        chain.header(BlockTag::Latest).await.unwrap_err();
        for _ in 0..3 {
            let error = chain.header(BlockTag::Latest).await.unwrap_err();
            assert!(error.to_string().contains("wants no requests"), "{error}");
        }
        assert_eq!(fake.methods().len(), 1);
        pass(Duration::from_secs(seconds)).await;
        assert!(chain.header(BlockTag::Latest).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn others_are_used_meanwhile() {
    let fake = once(|| Say::Later(429, "5")).await;
    let other = Fake::start(|_, _| Say::Result(block(7))).await;
    let chain = chain_of(vec![fake.url(), other.url()]);
    for _ in 0..3 {
        assert!(chain.header(BlockTag::Number(7)).await.unwrap().is_some());
    }
    assert_eq!(fake.methods().len(), 1);
    assert_eq!(other.methods().len(), 3);
}

#[tokio::test]
async fn no_more_calls_per_second_than_allowed() {
    let fake = Fake::start(|_, params| {
        let number = u64::from_str_radix(&params[0].as_str().unwrap()[2..], 16).unwrap();
        Say::Result(block(number))
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
    // 82 calls with that for the chain id: two seconds, less what may be caught up.
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1700), "{took:?}");
}
