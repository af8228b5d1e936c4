//! Deployments, calls, reverts and estimates.

use alloy_primitives::{Address, Bytes, U256, bytes, hex};
use alloy_sol_types::{Revert, SolError};
use serde_json::{Value, json};

use crate::support::{
    BOB, Chain, Client, RpcRefusal, Wallet, deployment, message, quantity, refused,
};

/// A call without data adds one to slot 0 and logs the new value under topic 0x42; a call with
/// data returns slot 0.
pub(crate) const COUNTER: Bytes =
    bytes!("3660195760005460010180600055600052604260206000a1005b60005460005260206000f3");

/// Init code that returns `runtime`.
pub(crate) fn deploy_code(runtime: &[u8]) -> Bytes {
    let length = u16::try_from(runtime.len()).expect("short").to_be_bytes();
    let copy = [
        0x61, length[0], length[1], 0x80, 0x60, 12, 0x60, 0, 0x39, 0x60, 0, 0xf3,
    ];
    [&copy, runtime].concat().into()
}

/// A contract that always reverts with this reason.
fn reverting(reason: &str) -> Bytes {
    let data = Revert::from(reason).abi_encode();
    let length = u16::try_from(data.len()).expect("short").to_be_bytes();
    let push = [0x61, length[0], length[1]];
    [
        &push[..],
        &[0x60, 14, 0x60, 0, 0x39],
        &push,
        &[0x60, 0, 0xfd],
        &data,
    ]
    .concat()
    .into()
}

pub(crate) async fn deploy(
    client: &Client,
    wallet: &Wallet,
    nonce: u64,
    runtime: &[u8],
) -> Address {
    let tx = wallet.sign(deployment(nonce, deploy_code(runtime)));
    client.submit(&tx).await;
    let receipt = client.wait_for_receipt(&tx).await;
    assert_eq!(receipt["status"], "0x1");
    serde_json::from_value(receipt["contractAddress"].clone()).expect("an address")
}

#[tokio::test]
async fn contract_is_deployed_called_and_keeps_state() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    assert_eq!(counter, alice.address().create(0));
    assert_eq!(
        chain.call("eth_getCode", json!([counter, "latest"])).await,
        json!(COUNTER)
    );
    for nonce in 1..=3 {
        let tx = alice.sign(message(nonce, counter, Bytes::new()));
        chain.submit(&tx).await;
        assert_eq!(chain.wait_for_receipt(&tx).await["status"], "0x1");
    }
    let read = json!([{"to": counter, "data": "0x01"}, "latest"]);
    let three = json!(format!("{:#066x}", 3));
    assert_eq!(chain.call("eth_call", read).await, three);
    assert_eq!(
        chain
            .call("eth_getStorageAt", json!([counter, "0x0", "latest"]))
            .await,
        three
    );
    assert_eq!(
        chain.call("eth_getCode", json!([BOB, "latest"])).await,
        "0x"
    );
}

#[tokio::test]
async fn estimate_is_enough_and_not_much_more() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    let estimate = |to: Address| json!([{"from": alice.address(), "to": to, "value": "0x0"}]);
    let gas = chain.number("eth_estimateGas", estimate(counter)).await;
    let tx = alloy_consensus::TxEip1559 {
        gas_limit: gas,
        ..message(1, counter, Bytes::new())
    };
    let tx = alice.sign(tx);
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    assert_eq!(receipt["status"], "0x1");
    let used: u64 = quantity(&receipt["gasUsed"]).to();
    assert!(
        gas >= used && gas < used + used / 10,
        "estimated {gas}, used {used}"
    );
    assert_eq!(chain.number("eth_estimateGas", estimate(BOB)).await, 21_000);
    let init = json!([{"from": alice.address(), "data": deploy_code(&COUNTER)}]);
    assert!(chain.number("eth_estimateGas", init).await > 53_000);
}

#[tokio::test]
async fn reverted_tx_has_failed_receipt_and_reason() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let contract = deploy(&chain, &alice, 0, &reverting("not today")).await;
    let tx = alice.sign(message(1, contract, Bytes::new()));
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    assert_eq!(
        (&receipt["status"], &receipt["logs"]),
        (&json!("0x0"), &json!([]))
    );
    let expected = RpcRefusal {
        code: 3,
        message: "execution reverted: not today".to_owned(),
        data: Some(hex::encode_prefixed(Revert::from("not today").abi_encode())),
    };
    let request = json!([{"from": alice.address(), "to": contract}]);
    assert_eq!(
        chain
            .try_call("eth_estimateGas", request.clone())
            .await
            .unwrap_err(),
        expected
    );
    assert_eq!(
        chain.try_call("eth_call", request).await.unwrap_err(),
        expected
    );
}

#[tokio::test]
async fn failed_execution_uses_its_gas_and_gets_a_receipt() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let invalid = deploy(&chain, &alice, 0, &[0xfe]).await;
    let tx = alice.sign(message(1, invalid, Bytes::new()));
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    assert_eq!(receipt["status"], "0x0");
    assert_eq!(receipt["gasUsed"], json!(format!("{:#x}", 200_000)));
    let call = chain.try_call("eth_call", json!([{"to": invalid}])).await;
    assert_eq!(call.unwrap_err(), refused("invalid opcode: INVALID"));
    let estimate = chain
        .try_call("eth_estimateGas", json!([{"to": invalid}]))
        .await;
    assert_eq!(estimate.unwrap_err(), refused("invalid opcode: INVALID"));
    // A loop for ever: JUMPDEST PUSH1 0 JUMP.
    let endless = deploy(&chain, &alice, 2, &[0x5b, 0x60, 0, 0x56]).await;
    let estimate = chain
        .try_call("eth_estimateGas", json!([{"to": endless}]))
        .await;
    assert_eq!(
        estimate.unwrap_err(),
        refused("gas required exceeds allowance (16777216)")
    );
    let call = chain.try_call("eth_call", json!([{"to": endless}])).await;
    assert_eq!(call.unwrap_err(), refused("out of gas"));
}

#[tokio::test]
async fn calls_do_not_change_state() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    chain
        .call("eth_call", json!([{"to": counter}, "latest"]))
        .await;
    chain
        .call(
            "eth_call",
            json!([{"from": counter, "to": counter}, "pending"]),
        )
        .await;
    let slot = chain
        .call("eth_getStorageAt", json!([counter, "0x0"]))
        .await;
    assert_eq!(quantity(&slot), U256::ZERO);
    let broke = json!([{"from": BOB, "to": counter, "value": "0x1"}]);
    let error = chain.try_call("eth_call", broke).await.unwrap_err();
    assert!(error.message.contains("insufficient funds"), "{error:?}");
}

#[tokio::test]
async fn state_query_of_an_older_block_is_an_error() {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    deploy(&chain, &alice, 0, &COUNTER).await;
    for block in [
        json!("0x0"),
        json!("earliest"),
        json!({"blockNumber": "0x0"}),
    ] {
        let error = chain
            .try_call("eth_getBalance", json!([BOB, block]))
            .await
            .unwrap_err();
        assert_eq!(error.code, -32000);
        assert!(error.message.starts_with("missing trie node"), "{error:?}");
        assert!(error.message.ends_with("is not available"), "{error:?}");
    }
    let future = chain
        .try_call("eth_getBalance", json!([BOB, "0x99"]))
        .await
        .unwrap_err();
    assert_eq!(future, refused("header not found"));
    let head = chain.block("latest").await;
    assert_eq!(
        chain.call("eth_getBalance", json!([BOB, "0x1"])).await,
        "0x0"
    );
    let by_hash = json!([BOB, {"blockHash": head["hash"]}]);
    assert_eq!(
        chain.call("eth_getBalance", by_hash).await,
        Value::from("0x0")
    );
}
