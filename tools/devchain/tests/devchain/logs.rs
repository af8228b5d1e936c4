//! Events: in receipts, in queries and through filters.

use alloy_primitives::{Address, Bytes};
use serde_json::{Value, json};

use crate::contracts::{COUNTER, deploy};
use crate::support::{BOB, Chain, Wallet, message};

/// A chain with a counter that has logged three times, in blocks 2, 3 and 4.
async fn counted() -> (Chain, Address) {
    let chain = Chain::instant().await;
    let alice = Wallet::dev(0);
    let counter = deploy(&chain, &alice, 0, &COUNTER).await;
    for nonce in 1..=3 {
        let tx = alice.sign(message(nonce, counter, Bytes::new()));
        chain.submit(&tx).await;
        chain.wait_for_receipt(&tx).await;
    }
    (chain, counter)
}

fn topic(number: u64) -> String {
    format!("{number:#066x}")
}

fn length(logs: &Value) -> usize {
    logs.as_array().expect("a list").len()
}

#[tokio::test]
async fn log_is_the_same_in_receipt_and_query() {
    let (chain, counter) = counted().await;
    let all = chain
        .call("eth_getLogs", json!([{"fromBlock": "earliest"}]))
        .await;
    assert_eq!(length(&all), 3);
    let receipts = chain.call("eth_getBlockReceipts", json!(["latest"])).await;
    assert_eq!(receipts[0]["logs"][0], all[2]);
    assert_eq!(all[2]["address"], json!(counter));
    assert_eq!(all[2]["topics"], json!([topic(0x42)]));
    assert_eq!(all[2]["data"], topic(3));
    let block = chain.block("latest").await;
    assert_eq!(all[2]["blockHash"], block["hash"]);
    assert_eq!(block["logsBloom"], receipts[0]["logsBloom"]);
    assert_ne!(
        block["logsBloom"],
        chain.block("earliest").await["logsBloom"]
    );
}

#[tokio::test]
async fn query_selects_by_range_address_and_topic() {
    let (chain, counter) = counted().await;
    let block = chain.block("0x3").await;
    let cases = [
        (json!({"fromBlock": "0x2", "toBlock": "0x3"}), 2),
        (
            json!({"fromBlock": "0x0", "toBlock": "latest", "address": counter}),
            3,
        ),
        (json!({"fromBlock": "0x0", "address": [BOB]}), 0),
        (json!({"fromBlock": "0x0", "topics": [topic(0x42)]}), 3),
        (
            json!({"fromBlock": "0x0", "topics": [[topic(0x41), topic(0x42)]]}),
            3,
        ),
        (json!({"fromBlock": "0x0", "topics": [topic(0x41)]}), 0),
        (json!({"fromBlock": "0x0", "topics": [null, topic(1)]}), 0),
        (json!({"blockHash": block["hash"]}), 1),
        (json!({}), 1), // only the head
        (json!({"fromBlock": "0x50", "toBlock": "0x60"}), 0),
    ];
    for (filter, expected) in cases {
        let logs = chain.call("eth_getLogs", json!([filter])).await;
        assert_eq!(length(&logs), expected, "{filter}");
    }
    let backwards = json!([{"fromBlock": "0x3", "toBlock": "0x2"}]);
    let error = chain.try_call("eth_getLogs", backwards).await.unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (-32602, "invalid block range params")
    );
}

#[tokio::test]
async fn filters_report_each_item_once() {
    let (chain, counter) = counted().await;
    let alice = Wallet::dev(0);
    let blocks = chain.call("eth_newBlockFilter", json!([])).await;
    let logs = chain
        .call("eth_newFilter", json!([{"address": counter}]))
        .await;
    assert_eq!(
        chain.call("eth_getFilterChanges", json!([blocks])).await,
        json!([])
    );
    let tx = alice.sign(message(4, counter, Bytes::new()));
    chain.submit(&tx).await;
    let receipt = chain.wait_for_receipt(&tx).await;
    let new_blocks = chain.call("eth_getFilterChanges", json!([blocks])).await;
    assert_eq!(new_blocks, json!([receipt["blockHash"]]));
    let new_logs = chain.call("eth_getFilterChanges", json!([logs])).await;
    assert_eq!(new_logs, receipt["logs"]);
    assert_eq!(
        chain.call("eth_getFilterChanges", json!([blocks])).await,
        json!([])
    );
    assert_eq!(
        chain.call("eth_getFilterChanges", json!([logs])).await,
        json!([])
    );
    assert_eq!(chain.call("eth_uninstallFilter", json!([logs])).await, true);
    assert_eq!(
        chain.call("eth_uninstallFilter", json!([logs])).await,
        false
    );
    let error = chain
        .try_call("eth_getFilterChanges", json!([logs]))
        .await
        .unwrap_err();
    assert_eq!(error.message, "filter not found");
}

#[tokio::test]
async fn filters_are_bounded() {
    let chain = Chain::manual().await;
    let request = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "eth_newBlockFilter"});
    let batch: Vec<Value> = (0..1000).map(request).collect();
    let answers = chain.post_json(&json!(batch)).await;
    assert!(
        answers
            .as_array()
            .unwrap()
            .iter()
            .all(|answer| answer["error"].is_null())
    );
    let error = chain
        .try_call("eth_newBlockFilter", json!([]))
        .await
        .unwrap_err();
    assert_eq!(error.message, "too many filters");
}
