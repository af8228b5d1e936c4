//! When blocks are made.

use std::time::Duration;

use alloy_primitives::U256;
use devchain::{DevChainConfig, Mining};
use serde_json::json;

use crate::support::{BOB, Chain, Wallet, config, quantity, wait_for};

#[tokio::test]
async fn manual_mining_waits_for_a_control_call() {
    let chain = Chain::manual().await;
    let tx = Wallet::dev(0).transfer(0);
    chain.submit(&tx).await;
    assert_eq!(chain.height().await, 0);
    assert_eq!(chain.call("evm_mine", json!([])).await, "0x0");
    assert_eq!(chain.wait_for_receipt(&tx).await["blockNumber"], "0x1");
    chain.call("anvil_mine", json!([5])).await;
    assert_eq!(chain.height().await, 6);
    let error = chain
        .try_call("anvil_mine", json!([1001]))
        .await
        .unwrap_err();
    assert_eq!(error.code, -32602);
}

#[tokio::test]
async fn interval_mining_makes_empty_blocks_too() {
    let chain = Chain::start(config(Mining::Interval(Duration::from_millis(5)))).await;
    wait_for("three blocks", async || {
        (chain.height().await >= 3).then_some(())
    })
    .await;
    let tx = Wallet::dev(0).transfer(0);
    chain.submit(&tx).await;
    chain.wait_for_receipt(&tx).await;
    chain.call("anvil_setIntervalMining", json!([0])).await;
    let height = chain.height().await;
    let next = Wallet::dev(0).transfer(1);
    chain.submit(&next).await;
    assert_eq!(
        (chain.height().await, chain.receipt(next.hash).await),
        (height, None)
    );
}

#[tokio::test]
async fn automine_can_be_switched() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    chain.call("evm_setAutomine", json!([false])).await;
    let first = alice.transfer(0);
    chain.submit(&first).await;
    chain.submit(&alice.transfer(1)).await;
    assert_eq!(chain.height().await, 0);
    chain.call("evm_setAutomine", json!([true])).await;
    chain.wait_for_receipt(&first).await;
    assert_eq!(chain.height().await, 1, "both in one block");
    assert_eq!(chain.balance(BOB).await, U256::from(2));
}

#[tokio::test]
async fn heartbeat_mines_blocks_without_txs() {
    let heartbeat = Some(Duration::from_millis(5));
    let chain = Chain::start(DevChainConfig {
        heartbeat,
        ..config(Mining::Instant)
    })
    .await;
    wait_for("three blocks", async || {
        (chain.height().await >= 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn timestamps_rise_strictly() {
    let chain = Chain::manual().await;
    chain.call("anvil_mine", json!([4])).await;
    let mut last = U256::ZERO;
    for number in 0..=4 {
        let block = chain.block(format!("{number:#x}")).await;
        let timestamp = quantity(&block["timestamp"]);
        assert!(timestamp > last);
        last = timestamp;
    }
}

#[tokio::test]
async fn tags_resolve_to_block_numbers() {
    let chain = Chain::manual().await;
    chain.call("anvil_mine", json!([70])).await;
    for (tag, number) in [("latest", "0x46"), ("safe", "0x26"), ("finalized", "0x6")] {
        assert_eq!(chain.block(tag).await["number"], number, "{tag}");
    }
    assert_eq!(chain.block("0x47").await, serde_json::Value::Null);
}

#[tokio::test]
async fn accounts_can_be_set() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    chain.call("anvil_setBalance", json!([BOB, "0x64"])).await;
    assert_eq!(chain.balance(BOB).await, U256::from(100));
    chain
        .call("anvil_setNonce", json!([alice.address(), "0x5"]))
        .await;
    assert_eq!(chain.nonce(alice.address(), "latest").await, 5);
    let tx = alice.transfer(5);
    chain.submit(&tx).await;
    chain.mine().await;
    assert_eq!(chain.wait_for_receipt(&tx).await["status"], "0x1");
    assert_eq!(chain.balance(BOB).await, U256::from(101));
}
