//! The JSON-RPC door: what is refused, and how.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{BOB, Chain, Client, RpcRefusal, Wallet, outcome};

async fn answer(client: &Client, body: &str) -> RpcRefusal {
    let (status, text) = client.post("application/json", body.to_owned()).await;
    assert_eq!(status, 200, "{text}");
    outcome(serde_json::from_str(&text).expect("JSON")).expect_err("an error answer")
}

fn error(code: i64, message: &str) -> RpcRefusal {
    RpcRefusal {
        code,
        message: message.to_owned(),
        data: None,
    }
}

#[tokio::test]
async fn malformed_requests_get_json_rpc_errors() {
    let chain = Chain::manual().await;
    assert_eq!(
        answer(&chain, "not json").await,
        error(-32700, "parse error")
    );
    assert_eq!(answer(&chain, "").await, error(-32700, "parse error"));
    assert_eq!(answer(&chain, "[").await, error(-32700, "parse error"));
    assert_eq!(answer(&chain, "[]").await, error(-32600, "empty batch"));
    assert_eq!(answer(&chain, "42").await, error(-32600, "invalid request"));
    assert_eq!(
        answer(&chain, r#"{"id":1}"#).await,
        error(-32600, "invalid request")
    );
    let object = r#"{"id":1,"method":"eth_chainId","params":{}}"#;
    assert_eq!(
        answer(&chain, object).await,
        error(-32602, "non-array args")
    );
    let deep = "[".repeat(100_000);
    assert_eq!(answer(&chain, &deep).await, error(-32700, "parse error"));
}

#[tokio::test]
async fn page_of_another_site_is_refused_before_its_body_is_read() {
    let chain = Chain::manual().await;
    let address = chain.url.strip_prefix("http://").expect("a plain URL");
    let json = "content-type: application/json";
    let own = format!("host: {address}");
    let own = own.as_str();
    for (headers, status) in [
        (&[own, json][..], None),
        (&["host: localhost:8646", json][..], None),
        (&["host: evil.example", json][..], Some(421)),
        (&[own, json, "origin: https://evil.example"][..], Some(403)),
        (&[own, json, "origin: null"][..], Some(403)),
        (&[own, json, "sec-fetch-site: cross-site"][..], Some(403)),
        (&[own, "content-type: text/plain"][..], Some(415)),
        (&[own][..], Some(415)),
    ] {
        // A body is announced, and only sent where the response waits for it.
        let body = r#"{"id":1,"method":"eth_chainId"}"#;
        let length = format!("content-length: {}", body.len());
        let head = [headers, &[length.as_str()]].concat().join("\r\n");
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let head = format!("POST / HTTP/1.1\r\n{head}\r\n\r\n");
        let sent = stream.write_all(head.as_bytes()).await;
        sent.expect("the head is taken");
        if status.is_none() {
            let sent = stream.write_all(body.as_bytes()).await;
            sent.expect("the body is taken");
        }
        let mut line = [0; 12];
        let answer = timeout(Duration::from_secs(20), stream.read_exact(&mut line)).await;
        answer.expect("the body is not waited for").expect("a head");
        let line = String::from_utf8_lossy(&line);
        let expected = format!("HTTP/1.1 {}", status.unwrap_or(200));
        assert_eq!(line, expected, "{headers:?}");
    }
}

#[tokio::test]
async fn unknown_methods_and_bad_arguments_have_their_codes() {
    let chain = Chain::manual().await;
    let refusal = chain.try_call("eth_mystery", json!([])).await.unwrap_err();
    let text = "the method eth_mystery does not exist/is not available";
    assert_eq!(refusal, error(-32601, text));
    let missing = "missing value for required argument 0";
    for (method, params) in [
        ("eth_sendRawTransaction", json!(["f86c"])),
        ("eth_sendRawTransaction", json!(["0xzz"])),
        ("eth_sendRawTransaction", json!([7])),
        ("eth_getBalance", json!(["0x12"])),
        ("eth_getBalance", json!([BOB, "newest"])),
        ("eth_getTransactionReceipt", json!(["0x12"])),
        ("eth_getBlockByNumber", json!(["0x1", "yes"])),
        ("eth_getBlockByHash", json!(["0x1", false])),
        ("eth_getBlockByNumber", json!(["0x1", true, 3])),
        ("eth_call", json!([{"to": "not an address"}])),
        (
            "eth_call",
            json!([{"to": BOB}, "latest", {(BOB.to_string()): {}}]),
        ),
        ("eth_getLogs", json!([{"topics": "0x12"}])),
        ("evm_setAutomine", json!(["yes"])),
        ("anvil_setBalance", json!([BOB])),
    ] {
        let refusal = chain.try_call(method, params.clone()).await.unwrap_err();
        assert_eq!(refusal.code, -32602, "{method} {params}: {refusal:?}");
    }
    let refusal = chain
        .try_call("eth_getBalance", json!([]))
        .await
        .unwrap_err();
    assert_eq!(refusal, error(-32602, missing));
}

#[tokio::test]
async fn batch_is_answered_in_order_and_bounded() {
    let chain = Chain::manual().await;
    let alice = Wallet::dev(0);
    let call = |id: Value, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let raw = |nonce| json!([alice.transfer(nonce).raw]);
    let batch = json!([
        call(json!(1), "eth_chainId", json!([])),
        call(json!("two"), "eth_sendRawTransaction", raw(0)),
        call(json!(3), "eth_sendRawTransaction", raw(0)),
        call(json!(4), "eth_sendRawTransaction", json!(["0x"])),
        call(json!(5), "eth_sendRawTransaction", raw(1)),
        {"id": 6},
        call(json!(7), "eth_getTransactionCount", json!([alice.address(), "pending"])),
    ]);
    let answers = chain.post_json(&batch).await;
    let ids: Vec<&Value> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(json!(ids), json!([1, "two", 3, 4, 5, 6, 7]));
    assert_eq!(answers[0]["result"], "0x7a69");
    assert_eq!(answers[1]["result"], json!(alice.transfer(0).hash));
    assert_eq!(answers[2]["error"]["message"], "already known");
    assert_eq!(answers[3]["error"]["code"], -32000);
    assert_eq!(answers[4]["result"], json!(alice.transfer(1).hash));
    assert_eq!(answers[5]["error"]["code"], -32600);
    assert_eq!(answers[6]["result"], "0x2");
    let many = vec![call(json!(1), "eth_chainId", json!([])); 1001];
    let refusal = outcome(chain.post_json(&json!(many)).await).unwrap_err();
    assert_eq!(refusal, error(-32600, "batch too large"));
}

#[tokio::test]
async fn http_accepts_bounded_json_posts_only() {
    let chain = Chain::manual().await;
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
    let (status, _) = chain.post("text/plain", request.to_owned()).await;
    assert_eq!(status, 415);
    let (status, _) = chain
        .post("application/json; charset=utf-8", request.to_owned())
        .await;
    assert_eq!(status, 200);
    let (status, _) = chain
        .post("application/json", " ".repeat((16 << 20) + 1))
        .await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn node_reports_version_and_chain_id() {
    let chain = Chain::manual().await;
    assert_eq!(chain.call("eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(chain.call("net_version", json!([])).await, "31337");
    assert_eq!(chain.call("eth_syncing", json!([])).await, false);
    assert_eq!(chain.call("net_listening", json!([])).await, true);
    let version = chain.call("web3_clientVersion", json!([])).await;
    assert!(
        version
            .as_str()
            .unwrap()
            .starts_with("lanekeeper-devchain/")
    );
    let info = chain.call("anvil_nodeInfo", json!([])).await;
    assert_eq!(info["currentBlockNumber"], "0x0");
}
