//! Forks on demand.

use alloy_primitives::{Bytes, U256};
use serde_json::{Value, json};

use crate::contracts::{COUNTER, deploy};
use crate::support::{BOB, Chain, Wallet, message, quantity};

#[tokio::test]
async fn replaced_blocks_have_other_hashes_and_txs_return() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let tx = alice.transfer(0);
    chain.submit(&tx).await;
    let old = chain.wait_for_receipt(&tx).await;
    chain.call("anvil_mine", json!([2])).await;
    chain.call("anvil_reorg", json!([3, []])).await;
    // Three new blocks in place of the old ones, then the tx again in a block of its own.
    let new = chain.wait_for_receipt(&tx).await;
    assert_eq!(
        (&old["blockNumber"], &new["blockNumber"]),
        (&json!("0x1"), &json!("0x4"))
    );
    assert_ne!(old["blockHash"], new["blockHash"]);
    assert_eq!(chain.balance(BOB).await, U256::ONE);
    let orphan = chain
        .call("eth_getBlockByHash", json!([old["blockHash"], false]))
        .await;
    assert_eq!(
        orphan["transactions"],
        json!([tx.hash]),
        "can still be queried by hash"
    );
    let canonical = chain.block("0x1").await;
    assert_ne!(canonical["hash"], old["blockHash"]);
    assert_eq!(canonical["parentHash"], chain.block("0x0").await["hash"]);
    assert_linked(&chain).await;
}

#[tokio::test]
async fn txs_can_be_placed_into_the_new_fork() {
    let chain = Chain::manual().await;
    let (alice, carol) = (Wallet::dev(0), Wallet::dev(1));
    let (kept, fresh) = (alice.transfer(0), carol.transfer(0));
    chain.submit(&kept).await;
    chain.mine().await;
    chain.mine().await;
    // One by its hash from the chain, the other as raw bytes.
    chain
        .call("anvil_reorg", json!([2, [[kept.hash, 1], [fresh.raw, 0]]]))
        .await;
    assert_eq!(chain.height().await, 2);
    assert_eq!(chain.wait_for_receipt(&kept).await["blockNumber"], "0x2");
    assert_eq!(chain.wait_for_receipt(&fresh).await["blockNumber"], "0x1");
    let status = chain.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({"pending": "0x0", "queued": "0x0"}));
    assert_linked(&chain).await;
}

#[tokio::test]
async fn orphans_can_be_dropped() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let tx = alice.transfer(0);
    chain.submit(&tx).await;
    chain.wait_for_receipt(&tx).await;
    chain.call("anvil_reorg", json!([1, [], true])).await;
    assert_eq!(chain.receipt(tx.hash).await, None);
    assert_eq!(
        chain
            .call("eth_getTransactionByHash", json!([tx.hash]))
            .await,
        Value::Null
    );
    assert_eq!(chain.nonce(alice.address(), "latest").await, 0);
    assert_eq!(chain.nonce(alice.address(), "pending").await, 0);
    assert_eq!(chain.balance(BOB).await, U256::ZERO);
    // The same nonce is free for another tx.
    let other = alice.sign(message(0, BOB, Bytes::new()));
    chain.submit(&other).await;
    assert_eq!(chain.wait_for_receipt(&other).await["status"], "0x1");
}

#[tokio::test]
async fn contract_state_and_code_roll_back() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    for nonce in 1..=2 {
        let tx = alice.sign(message(nonce, counter, Bytes::new()));
        chain.submit(&tx).await;
        chain.wait_for_receipt(&tx).await;
    }
    let count = async || {
        quantity(
            &chain
                .call("eth_getStorageAt", json!([counter, "0x0"]))
                .await,
        )
        .to::<u64>()
    };
    assert_eq!(count().await, 2);
    chain.call("anvil_rollback", json!([1, true])).await;
    assert_eq!((chain.height().await, count().await), (2, 1));
    let logs = chain
        .call("eth_getLogs", json!([{"fromBlock": "0x0"}]))
        .await;
    assert_eq!(logs.as_array().unwrap().len(), 1);
    chain.call("anvil_rollback", json!([2, true])).await;
    assert_eq!(chain.call("eth_getCode", json!([counter])).await, "0x");
    let again = deploy(&chain, &alice, 0, &COUNTER).await;
    assert_eq!((again, count().await), (counter, 0));
}

#[tokio::test]
async fn rollback_reverts_a_set_balance_with_its_block() {
    let chain = Chain::manual().await;
    chain.mine().await;
    chain.call("anvil_setBalance", json!([BOB, "0x64"])).await;
    chain.mine().await;
    chain.call("anvil_rollback", json!([1])).await;
    assert_eq!(chain.balance(BOB).await, U256::from(100), "set at block 1");
    chain.call("anvil_rollback", json!([1])).await;
    assert_eq!(chain.balance(BOB).await, U256::ZERO);
}

#[tokio::test]
async fn impossible_reorgs_change_nothing() {
    let chain = Chain::manual().await;
    let tx = Wallet::dev(0).transfer(0);
    chain.submit(&tx).await;
    chain.mine().await;
    chain.mine().await;
    let head = chain.block("latest").await;
    let gapped = Wallet::dev(0).transfer(7);
    for params in [
        json!([3]),
        json!([0]),
        json!([1, [[gapped.raw, 0]]]),
        json!([1, [[tx.hash, 1]]]),
        json!([1, [["0x1234", 0]]]),
        json!([1, [[gapped.hash, 0]]]),
    ] {
        let refused = chain.try_call("anvil_reorg", params.clone()).await;
        assert!(refused.is_err(), "{params}");
        assert_eq!(chain.block("latest").await, head);
    }
    assert_eq!(chain.wait_for_receipt(&tx).await["blockNumber"], "0x1");
    chain.mine().await;
    assert_eq!(chain.height().await, 3);
}

#[tokio::test]
async fn deep_reorg_is_possible_up_to_the_undo_depth() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    for nonce in 0..300 {
        chain.submit(&alice.transfer(nonce)).await;
        chain.mine().await;
    }
    assert!(chain.try_call("anvil_reorg", json!([257])).await.is_err());
    chain.call("anvil_reorg", json!([256, [], true])).await;
    assert_eq!(chain.balance(BOB).await, U256::from(44));
    assert_eq!(chain.height().await, 300);
    chain.call("anvil_rollback", json!([256])).await;
    assert_eq!(chain.height().await, 44);
    let error = chain
        .try_call("anvil_rollback", json!([1]))
        .await
        .unwrap_err();
    assert_eq!(error.message, "block 44 is too deep to be removed");
}

/// Every block names its parent.
async fn assert_linked(chain: &Chain) {
    for number in 1..=chain.height().await {
        let block = chain.block(format!("{number:#x}")).await;
        let parent = chain.block(format!("{:#x}", number - 1)).await;
        assert_eq!(block["parentHash"], parent["hash"], "block {number}");
    }
}
