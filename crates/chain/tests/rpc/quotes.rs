//! Fees and estimates, from what nodes of many kinds say.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::FeeQuote;
use engine::ports::{BlockTag, Chain};
use serde_json::{Value, json};

use crate::fake::{Fake, Say, chain_of, pass};
use crate::reads::{block, call};

/// A node that answers these fee questions; its newest block is as full as it should be.
async fn node(
    rewards: Option<Value>,
    base: Option<&'static str>,
    tip: Option<&'static str>,
) -> Fake {
    Fake::start(move |method, _| match (method, &rewards, tip) {
        ("eth_feeHistory", Some(rewards), _) => Say::Result(json!({
            "oldestBlock": "0x1", "gasUsedRatio": [0.5], "baseFeePerGas": ["0x1"], "reward": rewards,
        })),
        ("eth_getBlockByNumber", ..) => {
            let mut latest = block(3);
            latest["baseFeePerGas"] = json!(base);
            Say::Result(latest)
        }
        ("eth_gasPrice", ..) => Say::Result(json!("0x2a")),
        ("eth_maxPriorityFeePerGas", _, Some(tip)) => Say::Result(json!(tip)),
        _ => Say::Error(-32601, "method not found"),
    })
    .await
}

#[tokio::test]
async fn fee_quotes() {
    let quote = |base_fee, tip| FeeQuote { base_fee, tip };
    let (busy, empty) = (|| Some(json!([["0x3"]])), || Some(json!([["0x0"]])));
    let cases = [
        (busy(), Some("0x7"), None, quote(Some(7), 3)),
        (empty(), Some("0x7"), Some("0x9"), quote(Some(7), 9)),
        (empty(), Some("0x7"), Some("0x0"), quote(Some(7), 1)),
        (empty(), Some("0x7"), None, quote(Some(7), 1_000_000_000)),
        (None, Some("0x8"), Some("0x9"), quote(Some(8), 9)),
        (empty(), Some("0x0"), Some("0x9"), quote(Some(0), 9)),
        (empty(), None, None, quote(None, 42)),
        (None, None, None, quote(None, 42)),
    ];
    for (rewards, base, tip, expected) in cases {
        let told = format!("{rewards:?} {base:?} {tip:?}");
        let fake = node(rewards, base, tip).await;
        assert_eq!(fake.chain().fee_quote().await.unwrap(), expected, "{told}");
    }
}

#[tokio::test]
async fn a_quote_per_block_costs_next_to_nothing() {
    let head = Arc::new(AtomicU64::new(100));
    let (number, works) = (head.clone(), Arc::new(AtomicBool::new(true)));
    let switch = works.clone();
    let fake = Fake::start_at(&head, move |method, params| match method {
        "eth_feeHistory" if switch.load(Ordering::SeqCst) => {
            Some(Say::Result(json!({ "reward": [["0x3"]] })))
        }
        "eth_feeHistory" => Some(Say::Error(-32000, "not now")),
        "eth_getBlockByNumber" if params[0] == "latest" => {
            let mut latest = block(number.load(Ordering::SeqCst));
            latest["baseFeePerGas"] = json!("0x320"); // 800
            (latest["gasUsed"], latest["gasLimit"]) = (json!("0x14"), json!("0x14"));
            Some(Say::Result(latest))
        }
        _ => None,
    })
    .await;
    let chain = fake.chain();
    let quote = async || {
        chain.header(BlockTag::Latest).await.unwrap();
        chain.fee_quote().await.unwrap()
    };
    for _ in 0..10 {
        let expected = FeeQuote {
            base_fee: Some(900), // a full block
            tip: 3,
        };
        assert_eq!(quote().await, expected);
        head.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(fake.count("eth_feeHistory"), 1);
    assert_eq!(fake.methods().len(), 11, "and one call per head");
    quote().await;
    assert_eq!(fake.count("eth_feeHistory"), 2, "after ten blocks");
    pass(Duration::from_secs(16)).await;
    works.store(false, Ordering::SeqCst);
    assert_eq!(quote().await.tip, 3, "the old tip stands");
    assert_eq!(quote().await.tip, 3);
    assert_eq!(fake.count("eth_feeHistory"), 3, "after a while");
}

#[tokio::test]
async fn estimates_tell_the_call_from_the_node() {
    let said = format!("0x08c379a0{:064x}{:064x}{:0<64}", 32, 4, "6e6f7065");
    let cases = [
        (
            Say::ErrorData(3, "execution reverted: nope", json!(said)),
            "the call reverts: nope",
        ),
        (
            Say::Error(-32000, "execution reverted: insufficient funds"),
            "the call reverts: insufficient funds",
        ),
        (
            Say::Error(
                -32000,
                "insufficient funds for gas * price + value: have 0 want 1",
            ),
            "the account cannot pay: insufficient",
        ),
        (
            Say::Error(-32000, "gas required exceeds allowance (30000000)"),
            "the node refused the call: gas required",
        ),
        (
            Say::Error(-32603, "Internal error"),
            "an endpoint answered what cannot be used",
        ),
        (
            Say::Error(-32005, "slow down"),
            "an endpoint answered what cannot be used",
        ),
    ];
    for (say, expected) in cases {
        let say = Mutex::new(Some(say));
        let fake = Fake::start(move |_, _| say.lock().unwrap().take().unwrap()).await;
        let error = fake
            .chain()
            .estimate_gas(&call())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let busy = Fake::start(|_, _| Say::Error(-32005, "slow down")).await;
    let fine = Fake::start(|_, params| {
        assert_eq!(params[0]["value"], "0x1");
        Say::Result(json!("0x5208"))
    })
    .await;
    let chain = chain_of(vec![busy.url(), fine.url()]);
    assert_eq!(chain.estimate_gas(&call()).await, Ok(21_000));
}
