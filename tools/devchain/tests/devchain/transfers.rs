//! Transfers, and every query about them.

use alloy_consensus::{TxEip2930, TxLegacy};
use alloy_primitives::{B256, TxKind, U256};
use alloy_rpc_types_eth::{Block, Transaction, TransactionReceipt};
use devchain::DEV_CHAIN_ID;
use serde_json::{Value, json};

use crate::support::{BOB, Chain, GWEI, Wallet, quantity, transfer};

#[tokio::test]
async fn transfer_is_mined_and_moves_the_balance() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let before = chain.balance(alice.address()).await;
    let tx = alice.transfer(0);
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    assert_eq!(receipt["status"], "0x1");
    assert_eq!(receipt["gasUsed"], "0x5208");
    assert_eq!(receipt["from"], json!(alice.address()));
    assert_eq!(chain.balance(BOB).await, U256::ONE);
    let fee = quantity(&receipt["effectiveGasPrice"]) * U256::from(21_000);
    assert_eq!(
        chain.balance(alice.address()).await,
        before - fee - U256::ONE
    );
    assert_eq!(chain.nonce(alice.address(), "latest").await, 1);
    assert_eq!(chain.height().await, 1);
}

#[tokio::test]
async fn libraries_can_read_blocks_txs_and_receipts() {
    let chain = Chain::instant().await;
    let tx = Wallet::dev(0).transfer(0);
    chain.submit(&tx).await;
    let receipt: TransactionReceipt =
        serde_json::from_value(chain.wait_for_receipt(&tx).await).expect("a receipt");
    let full = chain
        .call("eth_getBlockByNumber", json!(["latest", true]))
        .await;
    let block: Block = serde_json::from_value(full).expect("a block");
    assert_eq!(
        block.header.hash,
        block.header.inner.hash_slow(),
        "the header's real hash"
    );
    assert_eq!(receipt.block_hash, Some(block.header.hash));
    let by_hash = chain
        .call("eth_getTransactionByHash", json!([tx.hash]))
        .await;
    let by_hash: Transaction = serde_json::from_value(by_hash).expect("a tx");
    assert_eq!(block.transactions.as_transactions().unwrap(), [by_hash]);
    let roots = alloy_consensus::proofs::calculate_transaction_root(
        &block
            .transactions
            .txns()
            .map(|tx| tx.inner.inner().clone())
            .collect::<Vec<_>>(),
    );
    assert_eq!(block.header.transactions_root, roots);

    let receipts = chain
        .call("eth_getBlockReceipts", json!([block.header.hash]))
        .await;
    assert_eq!(
        receipts,
        chain.call("eth_getBlockReceipts", json!(["latest"])).await
    );
    assert_eq!(
        receipts,
        chain.call("eth_getBlockReceipts", json!(["0x1"])).await
    );
    let receipts: Vec<TransactionReceipt> = serde_json::from_value(receipts).expect("receipts");
    assert_eq!(receipts, [receipt]);
    let parent = chain.block("earliest").await;
    assert_eq!(json!(block.header.parent_hash), parent["hash"]);
}

#[tokio::test]
async fn older_envelopes_are_executed_too() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let legacy = alice.sign(TxLegacy {
        chain_id: Some(DEV_CHAIN_ID),
        nonce: 0,
        gas_price: 2 * GWEI,
        gas_limit: 21_000,
        to: TxKind::Call(BOB),
        value: U256::ONE,
        ..TxLegacy::default()
    });
    chain.submit(&legacy).await;
    let receipt = chain.wait_for_receipt(&legacy).await;
    assert_eq!(receipt["type"], "0x0");
    assert_eq!(
        receipt["effectiveGasPrice"],
        json!(format!("{:#x}", 2 * GWEI))
    );
    let with_list = alice.sign(TxEip2930 {
        chain_id: DEV_CHAIN_ID,
        nonce: 1,
        gas_price: 2 * GWEI,
        gas_limit: 21_000,
        to: TxKind::Call(BOB),
        value: U256::ONE,
        ..TxEip2930::default()
    });
    chain.submit(&with_list).await;
    assert_eq!(chain.wait_for_receipt(&with_list).await["type"], "0x1");
}

#[tokio::test]
async fn pending_tx_is_found_before_and_after_its_block() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let tx = alice.transfer(0);
    chain.submit(&tx).await;
    let pending = chain
        .call("eth_getTransactionByHash", json!([tx.hash]))
        .await;
    assert_eq!(pending["blockNumber"], Value::Null);
    assert_eq!(chain.receipt(tx.hash).await, None);
    assert_eq!(chain.nonce(alice.address(), "latest").await, 0);
    assert_eq!(chain.nonce(alice.address(), "pending").await, 1);
    let block = chain.block("pending").await;
    assert_eq!(
        (&block["number"], &block["hash"]),
        (&json!("0x1"), &Value::Null)
    );
    assert_eq!(block["transactions"], json!([tx.hash]));
    chain.mine().await;
    let mined = chain
        .call("eth_getTransactionByHash", json!([tx.hash]))
        .await;
    assert_eq!(mined["blockNumber"], "0x1");
}

#[tokio::test]
async fn one_block_includes_all_pending_txs() {
    let chain = Chain::manual().await;
    for account in 0..3 {
        let wallet = Wallet::dev(account);
        for nonce in 0..20 {
            chain.submit(&wallet.transfer(nonce)).await;
        }
    }
    chain.mine().await;
    let block = chain.block("latest").await;
    assert_eq!(block["transactions"].as_array().unwrap().len(), 60);
    assert_eq!(block["gasUsed"], json!(format!("{:#x}", 60 * 21_000)));
    assert_eq!(chain.balance(BOB).await, U256::from(60));
    let receipts = chain.call("eth_getBlockReceipts", json!(["latest"])).await;
    let last = receipts.as_array().unwrap().last().unwrap();
    assert_eq!(last["cumulativeGasUsed"], block["gasUsed"]);
    assert_eq!(last["transactionIndex"], "0x3b");
}

#[tokio::test]
async fn higher_tips_are_mined_first() {
    let chain = Chain::manual().await;
    let tips = [2, 7, 5];
    let mut hashes: Vec<(u128, B256)> = Vec::new();
    for (account, tip) in tips.into_iter().enumerate() {
        let tx = alloy_consensus::TxEip1559 {
            max_priority_fee_per_gas: tip * GWEI,
            ..transfer(0)
        };
        let tx = Wallet::dev(account).sign(tx);
        chain.submit(&tx).await;
        hashes.push((tip, tx.hash));
    }
    chain.mine().await;
    hashes.sort_unstable_by_key(|(tip, _)| std::cmp::Reverse(*tip));
    let expected: Vec<B256> = hashes.into_iter().map(|(_, hash)| hash).collect();
    assert_eq!(chain.block("latest").await["transactions"], json!(expected));
}
