//! geth's pool rules, with geth's error texts.

use alloy_consensus::{TxEip1559, TxLegacy};
use alloy_primitives::{Bytes, TxKind, U256};
use devchain::{DevChainConfig, Mining};
use serde_json::{Value, json};

use crate::support::{BOB, Chain, GWEI, Signed, Wallet, config, deployment, refused, transfer};

fn with_fees(nonce: u64, fee_cap: u128, tip: u128) -> Signed {
    let tx = TxEip1559 {
        max_fee_per_gas: fee_cap,
        max_priority_fee_per_gas: tip,
        ..transfer(nonce)
    };
    Wallet::dev(0).sign(tx)
}

async fn assert_refused(chain: &Chain, tx: &Signed, message: &str) {
    assert_eq!(chain.send(tx).await, Err(refused(message)));
}

#[tokio::test]
async fn known_and_used_nonces_are_refused() {
    let chain = Chain::manual().await;
    let tx = Wallet::dev(0).transfer(0);
    chain.submit(&tx).await;
    assert_refused(&chain, &tx, "already known").await;
    chain.mine().await;
    assert_refused(&chain, &tx, "nonce too low: next nonce 1, tx nonce 0").await;
}

#[tokio::test]
async fn gap_is_queued_and_promoted() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let (first, second, fourth) = (alice.transfer(0), alice.transfer(1), alice.transfer(3));
    chain.submit(&fourth).await;
    chain.submit(&second).await;
    let status = chain.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({"pending": "0x0", "queued": "0x2"}));
    assert_eq!(chain.nonce(alice.address(), "pending").await, 0);
    chain.submit(&first).await;
    let block = chain.wait_for_receipt(&first).await["blockNumber"].clone();
    assert_eq!(
        chain.wait_for_receipt(&second).await["blockNumber"],
        block,
        "both in one block"
    );
    assert_eq!(chain.receipt(fourth.hash).await, None);
    let content = chain.call("txpool_content", json!([])).await;
    let queued = &content["queued"][alice.address().to_checksum(None).to_lowercase()]["3"];
    assert_eq!(queued["hash"], json!(fourth.hash));
    let third = alice.transfer(2);
    chain.submit(&third).await;
    chain.wait_for_receipt(&fourth).await;
}

#[tokio::test]
async fn replacement_needs_ten_percent_on_both_fees() {
    let chain = Chain::manual().await;
    let underpriced = "replacement transaction underpriced";
    let original = with_fees(0, 100 * GWEI, 10 * GWEI);
    chain.submit(&original).await;
    assert_refused(
        &chain,
        &with_fees(0, 100 * GWEI + 1, 10 * GWEI + 1),
        underpriced,
    )
    .await;
    assert_refused(
        &chain,
        &with_fees(0, 120 * GWEI, 10 * GWEI + 1),
        underpriced,
    )
    .await;
    assert_refused(
        &chain,
        &with_fees(0, 110 * GWEI - 1, 11 * GWEI),
        underpriced,
    )
    .await;
    let better = with_fees(0, 110 * GWEI, 11 * GWEI);
    chain.submit(&better).await;
    let missing = chain
        .call("eth_getTransactionByHash", json!([original.hash]))
        .await;
    assert_eq!(missing, Value::Null);
    chain.mine().await;
    assert_eq!(
        chain.block("latest").await["transactions"],
        json!([better.hash])
    );
}

#[tokio::test]
async fn tx_below_the_base_fee_waits_until_it_falls() {
    let chain = Chain::instant().await;
    let cheap = with_fees(0, GWEI / 2, 1);
    chain.submit(&cheap).await;
    assert_eq!(chain.nonce(Wallet::dev(0).address(), "pending").await, 1);
    let dear = Wallet::dev(1).transfer(0);
    chain.submit(&dear).await;
    chain.wait_for_receipt(&dear).await;
    assert_eq!(chain.receipt(cheap.hash).await, None);
    chain.call("anvil_mine", json!(["0x8"])).await;
    let receipt = chain.wait_for_receipt(&cheap).await;
    assert_eq!(receipt["status"], "0x1");
}

#[tokio::test]
async fn fee_and_gas_errors_have_geths_texts() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let text = "max priority fee per gas higher than max fee per gas";
    assert_refused(&chain, &with_fees(0, GWEI, GWEI + 1), text).await;
    let text = "transaction underpriced: gas tip cap 0, minimum needed 1";
    assert_refused(&chain, &with_fees(0, GWEI, 0), text).await;
    let gas = |gas_limit| {
        alice.sign(TxEip1559 {
            gas_limit,
            ..transfer(0)
        })
    };
    let text = "intrinsic gas too low: gas 20999, minimum needed 21000";
    assert_refused(&chain, &gas(20_999), text).await;
    let text = "transaction gas limit too high (cap: 16777216, tx: 16777217)";
    assert_refused(&chain, &gas(16_777_217), text).await;
    let data = Bytes::from(vec![1; 1000]);
    let floor = alice.sign(TxEip1559 {
        gas_limit: 40_000,
        input: data,
        ..transfer(0)
    });
    let text = "insufficient gas for floor data gas cost: gas 40000, minimum needed 61000";
    assert_refused(&chain, &floor, text).await;
    let text = "oversized data: transaction size 131180, limit 131072";
    let big = alice.sign(TxEip1559 {
        input: vec![0; 131_072].into(),
        ..transfer(0)
    });
    let error = chain.send(&big).await.unwrap_err();
    assert_eq!(error.message.split(':').next(), text.split(':').next());
    let init = alice.sign(deployment(0, vec![0; 49_153].into()));
    let text = "max initcode size exceeded: code size 49153, limit 49152";
    assert_refused(&chain, &init, text).await;
    let text = "nonce has max value";
    assert_refused(&chain, &alice.transfer(u64::MAX), text).await;
}

#[tokio::test]
async fn tx_above_block_gas_limit_is_refused() {
    let small = DevChainConfig {
        block_gas_limit: 1_000_000,
        ..config(Mining::Manual)
    };
    let chain = Chain::start(small).await;
    let alice = Wallet::dev(0);
    let tx = alice.sign(TxEip1559 {
        gas_limit: 1_000_001,
        ..transfer(0)
    });
    assert_refused(&chain, &tx, "exceeds block gas limit").await;
    for nonce in 0..50 {
        chain.submit(&alice.transfer(nonce)).await;
    }
    chain.mine().await;
    let block = chain.block("latest").await;
    assert_eq!(
        block["transactions"].as_array().unwrap().len(),
        47,
        "as many as fit"
    );
    chain.mine().await;
    assert_eq!(chain.nonce(alice.address(), "latest").await, 50);
}

#[tokio::test]
async fn balance_must_cover_pending_txs_as_well() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let gas = U256::from(21_000) * U256::from(10 * GWEI);
    chain
        .call(
            "anvil_setBalance",
            json!([alice.address(), gas * U256::from(2)]),
        )
        .await;
    let pay = |nonce, value| {
        alice.sign(TxEip1559 {
            value,
            ..transfer(nonce)
        })
    };
    let (balance, too_much) = (gas * U256::from(2), gas * U256::from(3));
    let text = format!(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {too_much}, \
         overshot {gas}"
    );
    assert_refused(&chain, &pay(0, gas * U256::from(2)), &text).await;
    chain.submit(&pay(0, U256::ZERO)).await;
    let cost = gas + U256::ONE;
    let text = format!(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {gas}, \
         tx cost {cost}, overshot 1"
    );
    assert_refused(&chain, &pay(1, U256::ONE), &text).await;
    chain.submit(&pay(1, U256::ZERO)).await;
    chain.mine().await;
    assert_eq!(chain.nonce(alice.address(), "latest").await, 2);
}

#[tokio::test]
async fn unaffordable_txs_leave_when_the_balance_falls() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let tx = alice.transfer(0);
    chain.submit(&tx).await;
    chain
        .call("anvil_setBalance", json!([alice.address(), "0x1"]))
        .await;
    let status = chain.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({"pending": "0x0", "queued": "0x0"}));
    let error = chain.send(&tx).await.unwrap_err();
    assert!(
        error
            .message
            .starts_with("insufficient funds for gas * price + value: balance 1,")
    );
}

#[tokio::test]
async fn foreign_and_unsupported_envelopes_are_refused() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let foreign = alice.sign(TxEip1559 {
        chain_id: 1,
        ..transfer(0)
    });
    let text = "invalid sender: invalid chain id for signer: have 1 want 31337";
    assert_refused(&chain, &foreign, text).await;
    let unprotected = alice.sign(TxLegacy {
        gas_price: GWEI,
        gas_limit: 21_000,
        to: TxKind::Call(BOB),
        ..TxLegacy::default()
    });
    let text = "only replay-protected (EIP-155) transactions allowed over RPC";
    assert_refused(&chain, &unprotected, text).await;
    for (raw, text) in [
        (
            "0x03c0",
            "transaction type not supported: tx type 3 not supported by this pool",
        ),
        (
            "0x04c0",
            "transaction type not supported: tx type 4 not supported by this pool",
        ),
        ("0x7fc0", "transaction type not supported"),
        ("0x", "typed transaction too short"),
    ] {
        let answer = chain.try_call("eth_sendRawTransaction", json!([raw])).await;
        assert_eq!(answer, Err(refused(text)), "{raw}");
    }
    let mut cut = alice.transfer(0);
    cut.raw.truncate(cut.raw.len() - 2);
    let error = chain.send(&cut).await.unwrap_err();
    assert!(error.message.starts_with("rlp: "), "{error:?}");
}

#[tokio::test]
async fn full_pool_refuses_but_still_replaces() {
    let limits = DevChainConfig {
        pool_txs_max: 3,
        account_slots: Some(2),
        ..config(Mining::Manual)
    };
    let chain = Chain::start(limits).await;
    let (alice, carol) = (Wallet::dev(0), Wallet::dev(1));
    chain.submit(&alice.transfer(0)).await;
    chain.submit(&alice.transfer(1)).await;
    assert_refused(&chain, &alice.transfer(2), "txpool is full").await; // her slots
    chain.submit(&carol.transfer(0)).await;
    assert_refused(&chain, &carol.transfer(1), "txpool is full").await; // the pool
    chain.submit(&with_fees(1, 20 * GWEI, 2 * GWEI)).await;
    chain.mine().await;
    chain.submit(&carol.transfer(1)).await;
}

#[tokio::test]
async fn txs_after_a_dropped_nonce_stay_queued() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let (first, second) = (alice.transfer(0), alice.transfer(1));
    chain.submit(&first).await;
    chain.submit(&second).await;
    let dropped = chain
        .call("anvil_dropTransaction", json!([first.hash]))
        .await;
    assert_eq!(dropped, json!(first.hash));
    assert_eq!(
        chain
            .call("anvil_dropTransaction", json!([first.hash]))
            .await,
        Value::Null
    );
    chain.mine().await;
    assert_eq!(chain.nonce(alice.address(), "latest").await, 0);
    assert_eq!(chain.nonce(alice.address(), "pending").await, 0);
    chain.submit(&first).await;
    chain.mine().await;
    assert_eq!(chain.nonce(alice.address(), "latest").await, 2);
    chain.submit(&alice.transfer(2)).await;
    chain.call("anvil_dropAllTransactions", json!([])).await;
    let status = chain.call("txpool_status", json!([])).await;
    assert_eq!(status, json!({"pending": "0x0", "queued": "0x0"}));
}

#[tokio::test]
async fn overdraft_within_a_block_affects_only_its_sender() {
    let chain = Chain::manual().await;
    let (alice, carol) = (Wallet::dev(0), Wallet::dev(1));
    // Queued txs are not summed up, as in geth: nonce 1 alone is affordable, after nonce 0 not.
    let gas = U256::from(21_000) * U256::from(10 * GWEI);
    chain
        .call(
            "anvil_setBalance",
            json!([alice.address(), gas * U256::from(3)]),
        )
        .await;
    let pay = |nonce, value| {
        alice.sign(TxEip1559 {
            value,
            ..transfer(nonce)
        })
    };
    let second = pay(1, gas * U256::from(2));
    chain.submit(&second).await;
    chain.submit(&pay(0, gas)).await;
    chain.submit(&carol.transfer(0)).await;
    chain.mine().await;
    assert_eq!(
        chain.block("latest").await["transactions"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(chain.receipt(second.hash).await, None);
    assert_eq!(chain.nonce(alice.address(), "pending").await, 1);
}
