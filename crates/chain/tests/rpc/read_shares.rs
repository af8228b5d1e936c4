//! Endpoints that hang on one method of reads: the next endpoint is queried after a share of the time, and the only one
//! again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chain::rpc::RpcChain;
use domain::lane::ChainQuery;
use domain::{Address, Inclusion, Nonce};
use engine::ports::{BlockTag, Chain, Quorum};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::fake_node::{FakeNode, FakeReply, chain_of, chain_with_timeout, unreachable_url};
use crate::reads::{block, call, hash};

/// Longer than the share of one endpoint, and far below the time of a request.
const SOON: Duration = Duration::from_secs(5);

/// Answers everything but one method.
async fn node_that_hangs_on(method: &'static str) -> FakeNode {
    FakeNode::start(move |called, _| match called {
        _ if called == method => FakeReply::NoAnswer,
        "eth_getTransactionCount" => FakeReply::Result(json!("0x3")),
        "eth_estimateGas" => FakeReply::Result(json!("0x5208")),
        "eth_getBlockReceipts" => FakeReply::Result(json!([])),
        _ => FakeReply::Result(block(7)),
    })
    .await
}

/// A read that needs the method.
async fn read(chain: &RpcChain, method: &str) {
    match method {
        "eth_getBlockByNumber" => {
            let head = chain.header(BlockTag::Latest).await.unwrap();
            assert_eq!(head.unwrap().number, 7);
        }
        "eth_getBlockReceipts" => {
            let found = chain.block_receipts(hash(7), &|_| true).await.unwrap();
            assert_eq!(found, Some(Vec::new()));
        }
        "eth_getTransactionCount" => {
            let nonces = chain.account_nonces(Address::ZERO, ChainQuery::Latest, Quorum::One);
            assert_eq!(nonces.await.unwrap().first.latest, Nonce(3));
        }
        _ => assert_eq!(chain.estimate_gas(&call()).await.unwrap(), 21_000),
    }
}

#[tokio::test]
async fn endpoint_that_hangs_on_a_method_leaves_time_for_the_next_one() {
    let methods = [
        "eth_getBlockByNumber",
        "eth_getBlockReceipts",
        "eth_getTransactionCount",
        "eth_estimateGas",
    ];
    let tries = methods.map(|method| async move {
        let hanging = node_that_hangs_on(method).await;
        let healthy = node_that_hangs_on("nothing").await;
        let chain = chain_of(vec![hanging.url(), healthy.url()]);
        let began = Instant::now();
        read(&chain, method).await;
        let first = began.elapsed();
        assert!(first < SOON, "{method}: {first:?}");
        // For a while the other endpoint comes first.
        let began = Instant::now();
        read(&chain, method).await;
        let second = began.elapsed();
        assert!(second < Duration::from_secs(1), "{method}: {second:?}");
    });
    join_all(tries).await;
}

#[tokio::test]
async fn dry_run_that_hangs_leaves_its_endpoint_to_the_reads() {
    let hanging = node_that_hangs_on("eth_estimateGas").await;
    let healthy = node_that_hangs_on("nothing").await;
    let both = chain_of(vec![hanging.url(), healthy.url()]);
    assert_eq!(both.estimate_gas(&call()).await.unwrap(), 21_000);
    both.header(BlockTag::Number(7)).await.unwrap();
    assert_eq!(
        hanging.methods(),
        ["eth_estimateGas", "eth_getBlockByNumber"]
    );
    assert_eq!(healthy.methods(), ["eth_estimateGas"]);
    // The same where it has the whole time of a request.
    let alone = chain_with_timeout(vec![hanging.url()], Duration::from_millis(500));
    alone.estimate_gas(&call()).await.unwrap_err();
    assert!(alone.endpoints()[0].1, "it answers all that is read");
}

#[tokio::test]
async fn each_request_for_a_revert_reason_has_its_share() {
    let slow = |result: Value| FakeReply::Late(Duration::from_millis(900), result);
    let preferred = FakeNode::start(move |method, _| match method {
        "eth_getTransactionByHash" => slow(json!({
            "from": Address::ZERO, "to": Address::ZERO, "value": "0x0", "input": "0x", "gas": "0x7",
        })),
        _ => slow(json!("0x")),
    })
    .await;
    let other = node_that_hangs_on("nothing").await;
    let chain = chain_of(vec![preferred.url(), other.url()]);
    let mined = Inclusion {
        tx_hash: hash(1),
        block_number: 7,
        block_hash: hash(7),
        succeeded: false,
        gas_used: 7,
        effective_gas_price: 1,
        contract_address: None,
        revert_reason: None,
    };
    let reason = chain.revert_reason(&mined).await.unwrap();
    assert_eq!(reason.as_deref(), Some("all gas was used"));
    assert_eq!(other.methods(), Vec::<String>::new());
}

#[tokio::test]
async fn endpoint_has_the_whole_time_if_the_others_fail() {
    let whole = Duration::from_secs(3);
    let hanging = node_that_hangs_on("eth_estimateGas").await;
    let chain = chain_with_timeout(vec![hanging.url(), unreachable_url().await], whole);
    // The first read shows that the second endpoint fails.
    chain.estimate_gas(&call()).await.unwrap_err();
    let began = Instant::now();
    chain.estimate_gas(&call()).await.unwrap_err();
    let took = began.elapsed();
    assert!(took >= whole, "it was given up after {took:?}");
}

#[tokio::test]
async fn read_that_was_lost_is_sent_again_before_its_time_is_over() {
    let is_lost = AtomicBool::new(true);
    let forgetful = FakeNode::start(move |method, _| match method {
        "eth_estimateGas" if is_lost.swap(false, Ordering::SeqCst) => FakeReply::NoAnswer,
        "eth_estimateGas" => FakeReply::Result(json!("0x5208")),
        _ => FakeReply::Result(block(7)),
    })
    .await;
    let chain = forgetful.chain();
    let began = Instant::now();
    assert_eq!(chain.estimate_gas(&call()).await.unwrap(), 21_000);
    let took = began.elapsed();
    assert!(took < SOON, "{took:?}");
    assert_eq!(forgetful.methods(), ["eth_estimateGas", "eth_estimateGas"]);
}
