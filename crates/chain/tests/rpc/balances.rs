//! Balances and nonces of one block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::lane::AccountBalance;
use domain::{Address, Nonce, U256};
use engine::ports::{Chain as _, ChainError, Quorum};
use serde_json::json;

use crate::fake_node::{CHAIN, FakeNode, FakeReply, chain_of, unreachable_url};

const ACCOUNT: Address = Address::repeat_byte(7);

/// A node at a block that keeps the newest state only.
async fn node_at(block: u64) -> FakeNode {
    node_with("0xde0b6b3a7640000", block).await
}

async fn node_with(balance: &'static str, block: u64) -> FakeNode {
    let head = Arc::new(AtomicU64::new(block));
    FakeNode::start_at(&head, move |method, params| {
        let is_newest = params[1] == json!(format!("{block:#x}"));
        match method {
            "eth_getBalance" if is_newest => Some(FakeReply::Result(json!(balance))),
            "eth_getTransactionCount" if is_newest => Some(FakeReply::Result(json!("0x3"))),
            _ => None,
        }
    })
    .await
}

#[tokio::test]
async fn higher_balance_of_two_endpoints_counts() {
    let (poor, rich) = (node_with("0x1", 9).await, node_at(9).await);
    let chain = chain_of(vec![poor.url(), rich.url()]);
    let balance = async |quorum| {
        let found = chain.account_balance(ACCOUNT, 9, quorum).await;
        found.unwrap().balance
    };
    assert_eq!(balance(Quorum::One).await, U256::from(1));
    assert_eq!(rich.count("eth_getBalance"), 0);
    let higher = U256::from(1_000_000_000_000_000_000_u64);
    assert_eq!(balance(Quorum::Two).await, higher);
    let alone = chain_of(vec![poor.url(), unreachable_url().await]);
    let found = alone.account_balance(ACCOUNT, 9, Quorum::Two).await;
    assert_eq!(found.unwrap().balance, U256::from(1));
}

#[tokio::test]
async fn endpoint_that_is_behind_does_not_count() {
    let (behind, ahead) = (node_at(8).await, node_at(9).await);
    let chain = chain_of(vec![behind.url(), ahead.url()]);
    let found = chain.account_balance(ACCOUNT, 9, Quorum::One).await;
    let expected = AccountBalance {
        block: 9,
        nonce: Nonce(3),
        balance: U256::from(1_000_000_000_000_000_000_u64),
    };
    assert_eq!(found, Ok(expected));
    assert_eq!(behind.count("eth_getBalance"), 0);
    let refused = chain.account_balance(ACCOUNT, 10, Quorum::One).await;
    assert!(
        matches!(
            refused,
            Err(ChainError::Unusable(_) | ChainError::Unreachable(_))
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn state_that_is_gone_is_read_at_the_next_block() {
    let head = AtomicU64::new(4);
    let moving = FakeNode::start_bare(true, move |method, params| match method {
        "eth_chainId" => FakeReply::Result(json!(format!("{:#x}", CHAIN.0))),
        "eth_blockNumber" => {
            let block = head.fetch_add(1, Ordering::SeqCst);
            FakeReply::Result(json!(format!("{block:#x}")))
        }
        // A block came after the first query of the head.
        _ if params[1] == json!("0x4") => FakeReply::Error(-32000, "missing trie node"),
        "eth_getBalance" => FakeReply::Result(json!("0x1")),
        _ => FakeReply::Result(json!("0x2")),
    })
    .await;
    let found = moving
        .chain()
        .account_balance(ACCOUNT, 0, Quorum::One)
        .await
        .unwrap();
    assert!(found.block > 4, "{found:?}");
    assert_eq!((found.nonce, found.balance), (Nonce(2), U256::from(1)));
}

#[tokio::test]
async fn rate_limit_is_not_repeated() {
    let head = Arc::new(AtomicU64::new(1));
    let busy = FakeNode::start_at(&head, |method, _| {
        let is_balance = method == "eth_getBalance";
        is_balance.then_some(FakeReply::Error(-32005, "rate limit exceeded"))
    })
    .await;
    let refused = busy.chain().account_balance(ACCOUNT, 0, Quorum::One).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(busy.count("eth_getBalance"), 1);
}
