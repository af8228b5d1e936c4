//! Fee quotes and gas estimates from nodes with different methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use domain::FeeQuote;
use engine::ports::{BlockTag, Chain};
use serde_json::{Value, json};

use crate::fake_node::{FakeNode, FakeReply, advance_time, chain_of};
use crate::reads::{block, call};

/// A node with these fee methods; its newest block has exactly the target gas.
async fn node(
    rewards: Option<Value>,
    base: Option<&'static str>,
    tip: Option<&'static str>,
) -> FakeNode {
    FakeNode::start(move |method, _| match (method, &rewards, tip) {
        ("eth_feeHistory", Some(rewards), _) => FakeReply::Result(json!({
            "oldestBlock": "0x1", "gasUsedRatio": [0.5], "baseFeePerGas": ["0x1"], "reward": rewards,
        })),
        ("eth_getBlockByNumber", ..) => {
            let mut latest = block(3);
            latest["baseFeePerGas"] = json!(base);
            FakeReply::Result(latest)
        }
        ("eth_gasPrice", ..) => FakeReply::Result(json!("0x2a")),
        ("eth_maxPriorityFeePerGas", _, Some(tip)) => FakeReply::Result(json!(tip)),
        _ => FakeReply::Error(-32601, "method not found"),
    })
    .await
}

#[tokio::test]
async fn fee_quotes_use_the_available_methods() {
    let quote = |base_fee, tip| FeeQuote {
        base_fee,
        tip,
        block_gas_limit: None,
        no_op_gas: None,
        has_data_floor: false,
        // The base fee of earlier blocks is 1.
        recent_max: Some(base_fee.map_or(0, |base: u128| base.max(1)) + tip),
    };
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
        let case = format!("{rewards:?} {base:?} {tip:?}");
        let fake = node(rewards, base, tip).await;
        let chain = fake.chain();
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        assert_eq!(chain.fee_quote(&head).await.unwrap(), expected, "{case}");
    }
}

#[tokio::test]
async fn quote_per_block_needs_almost_no_calls() {
    let head = Arc::new(AtomicU64::new(100));
    let (number, works) = (head.clone(), Arc::new(AtomicBool::new(true)));
    let switch = works.clone();
    let fake = FakeNode::start_at(&head, move |method, params| match method {
        "eth_feeHistory" if switch.load(Ordering::SeqCst) => {
            Some(FakeReply::Result(json!({ "reward": [["0x3"]] })))
        }
        "eth_feeHistory" => Some(FakeReply::Error(-32000, "not now")),
        "eth_getBlockByNumber" if params[0] == "latest" => {
            let mut latest = block(number.load(Ordering::SeqCst));
            latest["baseFeePerGas"] = json!("0x320"); // 800
            (latest["gasUsed"], latest["gasLimit"]) = (json!("0x14"), json!("0x14"));
            Some(FakeReply::Result(latest))
        }
        _ => None,
    })
    .await;
    let chain = fake.chain();
    let quote = async || {
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        chain.fee_quote(&head).await.unwrap()
    };
    for _ in 0..10 {
        let expected = FeeQuote {
            base_fee: Some(900), // a full block
            tip: 3,
            block_gas_limit: Some(20),
            no_op_gas: None,
            has_data_floor: false,
            recent_max: Some(903),
        };
        assert_eq!(quote().await, expected);
        head.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(
        fake.count("eth_feeHistory"),
        2,
        "the tip, and base fees of earlier blocks"
    );
    assert_eq!(
        fake.methods().len(),
        14,
        "what a no-op and calldata cost, and one call per head"
    );
    quote().await;
    assert_eq!(fake.count("eth_feeHistory"), 3, "after ten blocks");
    advance_time(Duration::from_secs(16)).await;
    works.store(false, Ordering::SeqCst);
    assert_eq!(quote().await.tip, 3, "the old tip stays in use");
    assert_eq!(quote().await.tip, 3);
    assert_eq!(fake.count("eth_feeHistory"), 4, "after a while");
}

#[tokio::test]
async fn lower_tip_of_two_endpoints_counts() {
    let rewards = |tip: &'static str| Some(json!([[tip]]));
    let greedy = node(rewards("0xfffffffffff"), Some("0x7"), None).await;
    let honest = node(rewards("0x3"), Some("0x7"), None).await;
    for urls in [[greedy.url(), honest.url()], [honest.url(), greedy.url()]] {
        let chain = chain_of(urls.to_vec());
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        assert_eq!(chain.fee_quote(&head).await.unwrap().tip, 3);
    }
}

#[tokio::test]
async fn tip_that_lies_for_long_does_not_raise_the_default_cap() {
    const HONEST: &str = "0x77359400"; // 2 gwei
    const LIE: &str = "0x82f79cd9000"; // 9,000 gwei
    let head = Arc::new(AtomicU64::new(100));
    let (number, lies) = (head.clone(), Arc::new(AtomicBool::new(false)));
    let switch = lies.clone();
    let fake = FakeNode::start_at(&head, move |method, params| match method {
        "eth_feeHistory" => {
            let tip = if switch.load(Ordering::SeqCst) {
                LIE
            } else {
                HONEST
            };
            Some(FakeReply::Result(json!({ "reward": [[tip]] })))
        }
        "eth_getBlockByNumber" if params[0] == "latest" => {
            let mut latest = block(number.load(Ordering::SeqCst));
            latest["baseFeePerGas"] = json!("0x3b9aca00"); // 1 gwei
            Some(FakeReply::Result(latest))
        }
        _ => None,
    })
    .await;
    let chain = fake.chain();
    let quote = async || {
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        let quote = chain.fee_quote(&head).await.unwrap();
        (quote.tip, quote.recent_max)
    };
    let recent_max = Some(3_000_000_000);
    assert_eq!(quote().await, (2_000_000_000, recent_max));
    lies.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        advance_time(Duration::from_secs(16)).await;
        head.fetch_add(1, Ordering::SeqCst);
        assert_eq!(quote().await, (20_000_000_000, recent_max));
    }
    assert!(
        fake.count("eth_feeHistory") > 5,
        "the tip was queried again"
    );
}

/// A node with this highest base fee in the past, and this estimate for a no-op. A zero is an error.
async fn node_with_past(base_fee: &'static str, no_op_gas: &Arc<AtomicU64>) -> FakeNode {
    let no_op_gas = Arc::clone(no_op_gas);
    FakeNode::start(move |method, params| match method {
        "eth_feeHistory" if params[2] == json!([]) => {
            FakeReply::Result(json!({ "baseFeePerGas": ["0x1", base_fee, "0x2"] }))
        }
        "eth_feeHistory" => FakeReply::Result(json!({ "reward": [["0x3"]] })),
        "eth_getBlockByNumber" => {
            let mut latest = block(3);
            latest["baseFeePerGas"] = json!("0x7");
            FakeReply::Result(latest)
        }
        "eth_estimateGas" => match no_op_gas.load(Ordering::SeqCst) {
            0 => FakeReply::Error(-32000, "not now"),
            gas => FakeReply::Result(json!(format!("{gas:#x}"))),
        },
        _ => FakeReply::Error(-32601, "method not found"),
    })
    .await
}

#[tokio::test]
async fn lower_past_and_lower_no_op_of_two_endpoints_count() {
    let gas = |gas| Arc::new(AtomicU64::new(gas));
    let lying = node_with_past("0xffffffffff", &gas(u64::MAX)).await;
    let honest = node_with_past("0x64", &gas(100_000)).await;
    for urls in [[lying.url(), honest.url()], [honest.url(), lying.url()]] {
        let chain = chain_of(urls.to_vec());
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        let quote = chain.fee_quote(&head).await.unwrap();
        assert_eq!(quote.recent_max, Some(103));
        assert_eq!(quote.no_op_gas, Some(100_000));
    }
    // One that shows nothing leaves it to the other.
    let silent = node_with_past("0x0", &gas(0)).await;
    let empty = node(Some(json!([["0x3"]])), Some("0x7"), None).await;
    for url in [silent.url(), empty.url()] {
        let chain = chain_of(vec![url, honest.url()]);
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        let quote = chain.fee_quote(&head).await.unwrap();
        assert_eq!(quote.no_op_gas, Some(100_000));
    }
}

#[tokio::test]
async fn gas_of_a_no_op_stays_known_while_no_endpoint_estimates_it() {
    let gas = Arc::new(AtomicU64::new(0));
    let fake = node_with_past("0x1", &gas).await;
    let chain = fake.chain();
    let no_op_gas = async || {
        advance_time(Duration::from_secs(16)).await;
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        chain.fee_quote(&head).await.unwrap().no_op_gas
    };
    assert_eq!(no_op_gas().await, None);
    gas.store(100_000, Ordering::SeqCst);
    assert_eq!(no_op_gas().await, Some(100_000));
    gas.store(0, Ordering::SeqCst);
    assert_eq!(no_op_gas().await, Some(100_000));
    gas.store(90_000, Ordering::SeqCst);
    assert_eq!(no_op_gas().await, Some(90_000));
}

#[tokio::test]
async fn base_fee_comes_from_the_followed_block() {
    let fake = FakeNode::start(|method, params| match method {
        "eth_getBlockByHash" | "eth_getBlockByNumber" => {
            let number = if params[0] == "latest" { 4 } else { 3 };
            let mut found = block(number);
            found["baseFeePerGas"] = json!(if number == 4 { "0x9" } else { "0x7" });
            FakeReply::Result(found)
        }
        "eth_feeHistory" => FakeReply::Result(json!({ "reward": [["0x1"]] })),
        _ => FakeReply::Error(-32601, "method not found"),
    })
    .await;
    let chain = fake.chain();
    let newest = chain.header(BlockTag::Latest).await.unwrap().unwrap();
    let followed = chain.header(BlockTag::Number(3)).await.unwrap().unwrap();
    let base_fee = async |head| chain.fee_quote(&head).await.unwrap().base_fee;
    assert_eq!(base_fee(newest).await, Some(9));
    assert_eq!(base_fee(followed).await, Some(7), "read by its hash");
}

/// A node that estimates so much gas for calldata.
async fn node_with_calldata_at(gas: &'static str) -> FakeNode {
    FakeNode::start(move |method, params| match method {
        "eth_estimateGas" if params[0].get("data").is_some() => FakeReply::Result(json!(gas)),
        "eth_estimateGas" => FakeReply::Result(json!("0x5208")),
        "eth_getBlockByNumber" => FakeReply::Result(block(3)),
        "eth_gasPrice" => FakeReply::Result(json!("0x5")),
        _ => FakeReply::Error(-32601, "method not found"),
    })
    .await
}

#[tokio::test]
async fn floor_of_calldata_counts_where_no_endpoint_contradicts_it() {
    let with_floor = node_with_calldata_at("0xee48").await; // 61,000
    let without = node_with_calldata_at("0x9088").await; // 37,000
    let quoted = async |urls| {
        let chain = chain_of(urls);
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        let quote = chain.fee_quote(&head).await.unwrap();
        assert_eq!(quote.no_op_gas, Some(21_000));
        quote.has_data_floor
    };
    assert!(quoted(vec![with_floor.url()]).await);
    assert!(!quoted(vec![without.url()]).await);
    assert!(!quoted(vec![with_floor.url(), without.url()]).await);
}

/// A node whose blocks have a base fee of 800, or report zero while `lies` is set.
async fn node_with_base_fee(head: &Arc<AtomicU64>, lies: Option<&Arc<AtomicBool>>) -> FakeNode {
    let (number, lies) = (head.clone(), lies.cloned());
    FakeNode::start_at(head, move |method, _| match method {
        "eth_getBlockByNumber" | "eth_getBlockByHash" => {
            let lies = lies
                .as_ref()
                .is_some_and(|lies| lies.load(Ordering::SeqCst));
            let mut found = block(number.load(Ordering::SeqCst));
            found["baseFeePerGas"] = json!(if lies { "0x0" } else { "0x320" });
            Some(FakeReply::Result(found))
        }
        "eth_feeHistory" => Some(FakeReply::Result(json!({ "reward": [["0x3"]] }))),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn base_fee_that_is_not_credible_is_read_at_another_endpoint() {
    let head = Arc::new(AtomicU64::new(100));
    let lies = Arc::new(AtomicBool::new(false));
    let liar = node_with_base_fee(&head, Some(&lies)).await;
    let honest = node_with_base_fee(&head, None).await;
    let chain = chain_of(vec![liar.url(), honest.url()]);
    let base_fee = async || {
        let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
        chain.fee_quote(&head).await.unwrap().base_fee
    };
    assert_eq!(base_fee().await, Some(800));
    assert_eq!(honest.count("eth_getBlockByHash"), 0, "nothing to doubt");
    lies.store(true, Ordering::SeqCst);
    for block in 1..20 {
        advance_time(Duration::from_secs(12)).await; // the other endpoint's head is polled
        head.fetch_add(1, Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(base_fee().await, Some(800), "lie {block}");
        }
        assert_eq!(honest.count("eth_getBlockByHash"), block, "once per block");
    }
}

#[tokio::test]
async fn estimate_errors_of_call_and_node_differ() {
    let revert_data = format!("0x08c379a0{:064x}{:064x}{:0<64}", 32, 4, "6e6f7065");
    let cases = [
        (
            FakeReply::ErrorData(3, "execution reverted: nope", json!(revert_data)),
            "the call reverts: nope",
        ),
        (
            FakeReply::Error(-32000, "execution reverted: insufficient funds"),
            "the call reverts: insufficient funds",
        ),
        (
            FakeReply::Error(
                -32000,
                "insufficient funds for gas * price + value: have 0 want 1",
            ),
            "the account cannot pay: insufficient",
        ),
        (
            FakeReply::Error(-32000, "gas required exceeds allowance (30000000)"),
            "the node refused the call: gas required",
        ),
        (
            FakeReply::Error(-32603, "Internal error"),
            "an endpoint gave an unusable answer",
        ),
        (
            FakeReply::Error(-32005, "slow down"),
            "an endpoint gave an unusable answer",
        ),
    ];
    for (reply, expected) in cases {
        let fake = FakeNode::start(move |_, _| reply.clone()).await;
        let error = fake
            .chain()
            .estimate_gas(&call())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let busy = FakeNode::start(|_, _| FakeReply::Error(-32005, "slow down")).await;
    let fine = FakeNode::start(|_, params| {
        assert_eq!(params[0]["value"], "0x1");
        FakeReply::Result(json!("0x5208"))
    })
    .await;
    let chain = chain_of(vec![busy.url(), fine.url()]);
    assert_eq!(chain.estimate_gas(&call()).await, Ok(21_000));
}
