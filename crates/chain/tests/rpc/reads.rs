//! Reads over JSON-RPC from nodes that are wrong, slow, limited or unreachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::fake_node::{
    CHAIN, FakeNode, FakeReply, advance_time, chain_of, chain_with_timeout, unreachable_url,
};
use chain::rpc::EndpointUrl;
use domain::lane::ChainQuery;
use domain::{Address, B256, Bytes, Nonce, U256};
use engine::ports::{BlockTag, CallError, CallRequest, Chain, ChainError, Quorum};
use serde_json::{Value, json};

pub(crate) fn block(number: u64) -> Value {
    json!({
        "number": format!("{number:#x}"), "hash": hash(number), "parentHash": hash(number.wrapping_sub(1)),
        "timestamp": "0x5", "baseFeePerGas": "0x7", "transactions": [hash(100), hash(101)],
    })
}

pub(crate) fn hash(number: u64) -> B256 {
    B256::left_padding_from(&number.to_be_bytes())
}

pub(crate) fn receipt(tx: B256, block: B256) -> Value {
    json!({
        "transactionHash": tx, "blockHash": block, "blockNumber": "0x9", "status": "0x1",
        "gasUsed": "0x5208", "effectiveGasPrice": "0x3", "contractAddress": null, "type": "0x7e",
    })
}

pub(crate) fn call() -> CallRequest {
    CallRequest {
        from: Address::repeat_byte(1),
        to: Some(Address::repeat_byte(2)),
        value: U256::from(1),
        data: Bytes::new(),
        gas_max: None,
    }
}

#[tokio::test]
async fn endpoint_of_another_chain_is_never_used() {
    let other = FakeNode::start_bare(true, |method, _| match method {
        "eth_chainId" => FakeReply::Result(json!("0x5")),
        _ => FakeReply::Result(block(1)),
    })
    .await;
    let chain = other.chain();
    for _ in 0..3 {
        let error = chain.header(BlockTag::Latest).await.unwrap_err();
        assert!(
            matches!(&error, ChainError::Unusable(why) if why.contains("serves chain 5")),
            "{error}"
        );
    }
    assert_eq!(other.methods(), Vec::<String>::new());
    assert_eq!(
        chain.endpoints(),
        vec![(other.url().name().to_owned(), false)]
    );

    let right = FakeNode::start(|_, _| FakeReply::Result(block(1))).await;
    let chain = chain_of(vec![other.url(), right.url()]);
    assert_eq!(
        chain
            .header(BlockTag::Latest)
            .await
            .unwrap()
            .unwrap()
            .number,
        1
    );
    assert_eq!(other.methods(), Vec::<String>::new());
    let health: Vec<bool> = chain
        .endpoints()
        .into_iter()
        .map(|(_, answers)| answers)
        .collect();
    assert_eq!(health, [false, true]);
}

#[tokio::test]
async fn repaired_endpoint_is_used_after_the_recheck() {
    let is_repaired = Arc::new(AtomicBool::new(false));
    let switch = is_repaired.clone();
    let fake = FakeNode::start_bare(true, move |method, _| match method {
        "eth_chainId" if switch.load(Ordering::SeqCst) => FakeReply::Result(json!("0x7a69")),
        "eth_chainId" => FakeReply::Result(json!("0x5")),
        _ => FakeReply::Result(block(1)),
    })
    .await;
    let chain = fake.chain();
    chain.header(BlockTag::Latest).await.unwrap_err();
    is_repaired.store(true, Ordering::SeqCst);
    chain.header(BlockTag::Latest).await.unwrap_err();
    advance_time(Duration::from_secs(31)).await;
    assert!(chain.header(BlockTag::Latest).await.unwrap().is_some());
}

#[tokio::test]
async fn bad_answers_are_errors_and_never_panics() {
    let bodies = [
        "",
        "null",
        "[]",
        "{}",
        "[null]",
        "<html>bad gateway</html>",
        "\u{0}",
        "{\"id\":0}",
        r#"{"id":0,"result":null}"#,
        r#"{"id":0,"result":"0x"}"#,
        r#"{"id":0,"result":-1}"#,
        r#"{"id":0,"result":"0xzz"}"#,
        r#"{"id":0,"result":[1,{}]}"#,
        r#"{"id":0,"result":{"number":"0x1"}}"#,
        r#"{"id":0,"result":"0xffffffffffffffffffffffffffffffffff"}"#,
        r#"[{"id":7,"result":1}]"#,
        r#"{"id":0,"error":null}"#,
        r#"{"id":0,"error":"no"}"#,
        r#"{"id":0,"error":{"code":[],"message":7}}"#,
        r#"{"id":0,"result":{"baseFeePerGas":[],"reward":[]}}"#,
    ];
    for body in bodies {
        let fake = FakeNode::start(move |_, _| FakeReply::raw(200, body)).await;
        let chain = fake.chain();
        let mined = domain::Inclusion {
            tx_hash: hash(1),
            block_number: 0,
            block_hash: hash(1),
            succeeded: false,
            gas_used: 1,
            effective_gas_price: 1,
            contract_address: None,
            revert_reason: None,
        };
        let unusable = |error: ChainError| {
            assert!(matches!(error, ChainError::Unusable(_)), "{body}: {error}")
        };
        // Some of these methods may return null; every other answer is refused.
        if let Err(error) = chain.header(BlockTag::Latest).await {
            unusable(error)
        }
        if let Err(error) = chain.block_receipts(hash(1), &|_| true).await {
            unusable(error)
        }
        if let Err(error) = chain.receipts(&[hash(1)], Quorum::One).await {
            unusable(error)
        }
        if let Err(error) = chain.revert_reason(&mined).await {
            unusable(error)
        }
        let two = [hash(1), hash(2)];
        let receipts = chain.receipts(&two, Quorum::One).await;
        unusable(receipts.unwrap_err());
        unusable(chain.headers(1, 3).await.unwrap_err());
        let account = Address::ZERO;
        let nonces = chain.account_nonces(account, ChainQuery::Pending, Quorum::Two);
        unusable(nonces.await.unwrap_err());
        let consumer = chain.find_consumer(account, Nonce(0), crate::consumer::at(9));
        unusable(consumer.await.unwrap_err());
        unusable(chain.fee_quote(&crate::consumer::at(9)).await.unwrap_err());
        let estimate = chain.estimate_gas(&call()).await.unwrap_err();
        assert!(
            matches!(
                estimate,
                CallError::Chain(ChainError::Unusable(_)) | CallError::Refused(_)
            ),
            "{body}: {estimate}"
        );
    }
}

#[tokio::test]
async fn http_errors_are_unreachable() {
    for status in [429, 500, 502, 503, 401, 302] {
        let fake = FakeNode::start(move |_, _| FakeReply::raw(status, "no")).await;
        let error = fake.chain().header(BlockTag::Latest).await.unwrap_err();
        assert!(
            matches!(&error, ChainError::Unreachable(why) if why.contains(&status.to_string())),
            "{error}"
        );
    }
    let chain = chain_of(vec![unreachable_url().await]);
    let error = chain.header(BlockTag::Latest).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Unreachable(why) if why.contains("cannot connect")),
        "{error}"
    );
}

#[tokio::test]
async fn json_rpc_error_counts_with_any_http_status() {
    let fake = FakeNode::start(|_, _| {
        FakeReply::raw(400, r#"{"id":0,"error":{"code":-1,"message":"why not"}}"#)
    })
    .await;
    let error = fake.chain().header(BlockTag::Latest).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Unusable(why) if why.contains("why not")),
        "{error}"
    );
}

#[tokio::test]
async fn every_call_has_a_deadline() {
    let fake = FakeNode::start(|_, _| FakeReply::NoAnswer).await;
    let chain = chain_with_timeout(vec![fake.url()], Duration::from_secs(1));
    let error = chain.header(BlockTag::Latest).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Unreachable(why) if why.contains("no answer within")),
        "{error}"
    );
    assert_eq!(
        chain.endpoints(),
        vec![(fake.url().name().to_owned(), false)]
    );
}

#[tokio::test]
async fn oversized_answer_is_refused() {
    let fake = FakeNode::start(|_, _| FakeReply::Raw(200, vec![b' '; 65 << 20])).await;
    let error = fake.chain().header(BlockTag::Latest).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Unusable(why) if why.contains("longer than")),
        "{error}"
    );
}

#[tokio::test]
async fn read_is_retried_on_a_broken_connection() {
    let broken = AtomicBool::new(true);
    let fake = FakeNode::start(move |_, _| {
        if broken.swap(false, Ordering::SeqCst) {
            FakeReply::Hangup
        } else {
            FakeReply::Result(block(1))
        }
    })
    .await;
    assert!(
        fake.chain()
            .header(BlockTag::Latest)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(fake.methods().len(), 2);
}

#[tokio::test]
async fn connections_are_reused_and_credentials_stay_secret() {
    let fake = FakeNode::start(|_, _| FakeReply::raw(500, "no")).await;
    let url = fake.url_with("user:hunter2", "/v3/hunter2?key=hunter2");
    let chain = chain_of(vec![url]);
    for _ in 0..20 {
        let error = chain.header(BlockTag::Latest).await.unwrap_err();
        assert!(
            !format!("{error} {error:?} {chain:?}").contains("hunter2"),
            "{error}"
        );
    }
    assert_eq!(fake.connections(), 1);
    assert_eq!(fake.authorizations(), ["Basic dXNlcjpodW50ZXIy"]);
    let url = EndpointUrl::parse("http://user:hunter2@127.0.0.1:1/hunter2");
    let unreached = chain_of(vec![url.unwrap()]);
    let error = unreached.header(BlockTag::Latest).await.unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"), "{error}");
}

#[tokio::test]
async fn headers_end_at_the_nodes_head() {
    let fake = FakeNode::start(|_, params| {
        let number = u64::from_str_radix(&params[0].as_str().unwrap()[2..], 16).unwrap();
        FakeReply::Result(if number <= 130 {
            block(number)
        } else {
            Value::Null
        })
    })
    .await;
    let chain = fake.chain();
    let headers = chain.headers(3, 200).await.unwrap();
    let numbers: Vec<u64> = headers.iter().map(|header| header.number).collect();
    assert_eq!(numbers, (3..=130).collect::<Vec<u64>>());
    assert_eq!(headers[1].parent_hash, headers[0].hash);
    assert_eq!(fake.request_sizes(), [100, 100]);
    assert_eq!(chain.headers(131, 5).await.unwrap(), []);
    assert_eq!(chain.headers(1, 0).await.unwrap(), []);
    assert_eq!(chain.header(BlockTag::Number(131)).await.unwrap(), None);
}

#[tokio::test]
async fn answer_to_another_request_is_refused() {
    let fake = FakeNode::start(|method, _| match method {
        "eth_getTransactionReceipt" => FakeReply::Result(receipt(hash(55), hash(9))),
        "eth_getBlockReceipts" => FakeReply::Result(json!([receipt(hash(55), hash(8))])),
        _ => FakeReply::Result(block(4)),
    })
    .await;
    let chain = fake.chain();
    for tag in [BlockTag::Number(5), BlockTag::Hash(hash(5))] {
        assert!(matches!(
            chain.header(tag).await,
            Err(ChainError::Unusable(_))
        ));
    }
    assert!(
        chain
            .header(BlockTag::Hash(hash(4)))
            .await
            .unwrap()
            .is_some()
    );
    assert!(matches!(
        chain.headers(4, 2).await,
        Err(ChainError::Unusable(_))
    ));
    assert!(matches!(
        chain.receipts(&[hash(56)], Quorum::One).await,
        Err(ChainError::Unusable(_))
    ));
    assert!(matches!(
        chain.block_receipts(hash(9), &|_| true).await,
        Err(ChainError::Unusable(_))
    ));
}

#[tokio::test]
async fn block_receipts_fall_back_to_single_receipts() {
    for missing in [
        (-32601, "x"),
        (
            -32000,
            "the method eth_getBlockReceipts does not exist/is not available",
        ),
    ] {
        let fake = FakeNode::start(move |method, params| match method {
            "eth_getBlockReceipts" => FakeReply::Error(missing.0, missing.1),
            "eth_getBlockByHash" if params[0] == json!(hash(9)) => FakeReply::Result(block(9)),
            "eth_getBlockByHash" => FakeReply::Result(Value::Null),
            _ => FakeReply::Result(receipt(
                params[0].as_str().unwrap().parse().unwrap(),
                hash(9),
            )),
        })
        .await;
        let chain = fake.chain();
        for _ in 0..2 {
            let receipts = chain
                .block_receipts(hash(9), &|_| true)
                .await
                .unwrap()
                .unwrap();
            let hashes: Vec<B256> = receipts.iter().map(|receipt| receipt.tx_hash).collect();
            assert_eq!(hashes, [hash(100), hash(101)]);
            assert!(
                receipts
                    .iter()
                    .all(|receipt| receipt.succeeded && receipt.effective_gas_price == 3)
            );
        }
        assert_eq!(
            chain.block_receipts(hash(10), &|_| true).await.unwrap(),
            None
        );
        let tries = fake
            .methods()
            .iter()
            .filter(|method| *method == "eth_getBlockReceipts")
            .count();
        assert_eq!(tries, 1, "it is remembered");
    }
}

#[tokio::test]
async fn block_with_missing_receipts_is_refused() {
    let fake = FakeNode::start(|method, params| match method {
        "eth_getBlockReceipts" => FakeReply::Error(-32601, "method not found"),
        "eth_getBlockByHash" => FakeReply::Result(block(9)),
        _ if params[0] == json!(hash(101)) => FakeReply::Result(Value::Null),
        _ => FakeReply::Result(receipt(hash(100), hash(9))),
    })
    .await;
    assert!(matches!(
        fake.chain().block_receipts(hash(9), &|_| true).await,
        Err(ChainError::Unusable(_))
    ));
}

#[tokio::test]
async fn unknown_block_has_no_receipts() {
    for error_text in [
        Some("header not found"),
        Some("Block 0x09 could not be found"),
        None,
    ] {
        let fake = FakeNode::start(move |_, _| match error_text {
            Some(text) => FakeReply::Error(-32001, text),
            None => FakeReply::Result(Value::Null),
        })
        .await;
        assert_eq!(
            fake.chain()
                .block_receipts(hash(9), &|_| true)
                .await
                .unwrap(),
            None
        );
        assert_eq!(
            fake.chain().header(BlockTag::Hash(hash(9))).await.unwrap(),
            None
        );
    }
}

#[tokio::test]
async fn receipts_by_hash_skip_pending_txs() {
    let fake = FakeNode::start(|_, params| {
        let tx: B256 = params[0].as_str().unwrap().parse().unwrap();
        let mut found = receipt(tx, hash(9));
        if tx == hash(1) {
            return FakeReply::Result(Value::Null);
        }
        if tx == hash(2) {
            (found["blockHash"], found["blockNumber"]) = (Value::Null, Value::Null);
        }
        if tx == hash(3) {
            found["status"] = json!("0x0");
        }
        FakeReply::Result(found)
    })
    .await;
    let found = fake
        .chain()
        .receipts(&[hash(1), hash(2), hash(3), hash(4)], Quorum::One)
        .await
        .unwrap();
    let seen: Vec<(B256, bool)> = found.iter().map(|r| (r.tx_hash, r.succeeded)).collect();
    assert_eq!(seen, [(hash(3), false), (hash(4), true)]);
    assert_eq!(fake.request_sizes(), [4]);
}

#[tokio::test]
async fn pending_nonce_is_never_below_latest() {
    let script = |method: &str, params: &Value| match method {
        "eth_chainId" => FakeReply::Result(json!(format!("{:#x}", CHAIN.0))),
        _ if params[1] == "pending" => FakeReply::Result(json!("0x3")),
        _ => FakeReply::Result(json!("0x5")),
    };
    for accepts_batches in [true, false] {
        let fake = FakeNode::start_bare(accepts_batches, script).await;
        let chain = fake.chain();
        let both = chain
            .account_nonces(Address::ZERO, ChainQuery::Pending, Quorum::One)
            .await
            .unwrap();
        assert_eq!(
            (both.second, both.is_complete()),
            (None, true),
            "it is the only one"
        );
        let both = both.first;
        assert_eq!(
            (both.latest, both.pending),
            (Nonce(5), Nonce(5)),
            "pending is never below"
        );
        let latest = chain
            .account_nonces(Address::ZERO, ChainQuery::Latest, Quorum::Two)
            .await
            .unwrap()
            .first;
        assert_eq!((latest.latest, latest.pending), (Nonce(5), Nonce(5)));
        let expected: &[usize] = if accepts_batches {
            &[2, 1]
        } else {
            &[2, 1, 1, 1]
        };
        assert_eq!(fake.request_sizes(), expected);
    }
}
