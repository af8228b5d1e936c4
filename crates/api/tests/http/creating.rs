//! Creating txs: single, in batches, repeated, and with waiting.

use axum::body::Body;
use axum::http::Request;
use domain::U256;
use futures::StreamExt;
use futures::future::join_all;
use serde_json::{Value, json};
use sim::chain::{MemoryChain, REVERTS};
use tokio::time::{Duration, Instant};

use crate::world::{CHAIN, OTHER_SIGNER, Plan, SIGNER, TO, World, post, transfer};

#[tokio::test(start_paused = true)]
async fn new_request_gets_nonce_and_hash_and_repeat_gets_original() {
    let world = World::with_known_nonces().await;
    let first = world.create("r1", "/api/v1/tx").await;
    assert_eq!(first.status, 202, "{}", first.body);
    assert_eq!(
        (&first.body["nonce"], &first.body["chainId"]),
        (&json!(1), &json!(CHAIN.0))
    );
    assert!(first.body["txHash"].is_string(), "{}", first.body);

    // The same payload in another notation, and without the chain, since only one is configured.
    let mut again = transfer("r1");
    again["payload"]["value"] = json!("0x1");
    again["signer"] = json!(format!("{SIGNER:#x}"));
    again.as_object_mut().unwrap().remove("chainId");
    let repeat = world.post("/api/v1/tx", &again).await;
    assert_eq!(repeat.status, 200, "{}", repeat.body);
    assert_eq!(repeat.body["txId"], first.body["txId"]);

    again["payload"]["value"] = json!("2");
    let reused = world.post("/api/v1/tx", &again).await;
    assert!(reused.problem(422, "request-id-reused").contains("r1"));
    assert_eq!(reused.body["effect"], "none");
    let second = world.create("r2", "/api/v1/tx").await;
    assert_eq!(second.body["nonce"], 2);
}

#[tokio::test(start_paused = true)]
async fn full_inbox_refuses_without_look_up_and_retry_succeeds() {
    let mut plan = Plan::new(MemoryChain::new(CHAIN));
    plan.node.inbox = 4;
    let world = plan.start().await;
    let ids: Vec<String> = (0..100).map(|number| format!("r{number}")).collect();
    let at_once = ids.iter().map(|id| world.create(id, "/api/v1/tx"));
    let answers = join_all(at_once).await;
    let (taken, refused): (Vec<_>, Vec<_>) =
        ids.iter().zip(answers).partition(|(_, a)| a.status == 202);
    assert!(!taken.is_empty() && refused.len() > 50, "{}", refused.len());
    for (_, response) in &refused {
        response.problem(429, "busy");
        assert_eq!(response.body["effect"], "unknown", "it is not looked up");
        assert!(response.headers.contains_key("retry-after"));
    }
    // Retries, one after the other, succeed and create nothing twice.
    for (id, _) in &refused {
        assert_eq!(world.create(id, "/api/v1/tx").await.status, 202, "{id}");
    }
    let last = world.create("last", "/api/v1/tx").await;
    assert_eq!(last.body["nonce"], ids.len());
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_header_must_match_request_id() {
    let world = World::new().await;
    let with_key = |key: &str, body: &Value| {
        let mut request = post("/api/v1/tx", body);
        request
            .headers_mut()
            .insert("idempotency-key", key.parse().unwrap());
        request
    };
    let mut body = transfer("r1");
    body.as_object_mut().unwrap().remove("requestId");
    let created = world.request(with_key("r1", &body)).await;
    assert_eq!(
        (created.status.as_u16(), &created.body["requestId"]),
        (202, &json!("r1"))
    );
    let same = world.request(with_key("r1", &transfer("r1"))).await;
    assert_eq!(same.body["txId"], created.body["txId"]);
    let differ = world.request(with_key("r2", &transfer("r1"))).await;
    assert!(
        differ
            .problem(400, "invalid-header")
            .contains("Idempotency-Key")
    );
    let batch = world.request(with_key("r1", &json!({"txs": []}))).await;
    batch.problem(400, "invalid-field");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_the_node_become_problems() {
    let world = World::new().await;
    let changed = |name: &str, value: Value| {
        let mut body = transfer("r1");
        body[name] = value;
        body
    };
    let unknown = world
        .post("/api/v1/tx", &changed("chainId", json!(5)))
        .await;
    assert!(unknown.problem(404, "unknown-chain").contains('5'));
    let unknown_node = changed("signer", json!(TO.to_string()));
    world
        .post("/api/v1/tx", &unknown_node)
        .await
        .problem(404, "unknown-signer");
    let reverting = json!({"to": TO.to_string(), "data": format!("0x{}", hex(&REVERTS))});
    world
        .post("/api/v1/tx", &changed("payload", reverting))
        .await
        .problem(422, "call-reverts");
    world.chain.fund(SIGNER, U256::from(7));
    let poor =
        json!({"to": TO.to_string(), "value": "9", "gas": "21000", "gasPrice": "1000000000"});
    let poor = world.post("/api/v1/tx", &changed("payload", poor)).await;
    let figures = "at block 0 the account has 7 wei, open txs can cost 0 of them, and this request needs 21000000000009: \
                   21000000000002 wei are missing";
    assert!(poor.problem(422, "underfunded").contains(figures));
    assert_eq!(poor.body["effect"], "none");
    world.node.drain().await;
    let late = world.create("r1", "/api/v1/tx").await;
    late.problem(503, "draining");
    assert_eq!(late.headers["retry-after"], "1");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(start_paused = true)]
async fn batch_has_one_result_per_item_in_order() {
    let world = World::new().await;
    world.create("known", "/api/v1/tx").await;
    let mut other_lane = transfer("r1");
    other_lane["signer"] = json!(OTHER_SIGNER.to_string());
    let mut bad = transfer("r2");
    bad["payload"]["value"] = json!(1);
    let mut unknown_signer = transfer("r3");
    unknown_signer["signer"] = json!(TO.to_string());
    let txs = json!([
        transfer("r1"),
        bad,
        other_lane,
        unknown_signer,
        transfer("known"),
        transfer("r4")
    ]);
    let response = world.post("/api/v1/tx/batch", &json!({"txs": txs})).await;
    assert_eq!(response.status, 200);
    let results = response.body["results"].as_array().unwrap();
    let statuses: Vec<_> = results
        .iter()
        .map(|result| result["status"].as_u64())
        .collect();
    assert_eq!(statuses, [202, 400, 202, 404, 200, 202].map(Some));
    assert!(
        results[1]["problem"]["detail"]
            .as_str()
            .unwrap()
            .contains("txs[1].payload.value")
    );
    assert_eq!(
        results[3]["problem"]["type"],
        "urn:lanekeeper:problem:unknown-signer"
    );
    assert!(results[1].get("tx").is_none() && results[0].get("problem").is_none());
    assert_eq!(results[5]["tx"]["requestId"], "r4");

    world
        .post("/api/v1/tx/batch?wait=mined", &json!({"txs": []}))
        .await
        .problem(400, "invalid-query");
    let many: Vec<_> = (0..501).map(|n| transfer(&n.to_string())).collect();
    let over = world.post("/api/v1/tx/batch", &json!({"txs": many})).await;
    assert!(over.problem(400, "invalid-field").contains("501"));
}

#[tokio::test(start_paused = true)]
async fn wait_returns_when_the_state_is_reached() {
    let world = World::new().await;
    let mined = world
        .create("r1", "/api/v1/tx?wait=mined&timeout=30s")
        .await;
    assert_eq!(mined.status, 202);
    assert_eq!(mined.body["receipt"]["status"], "success", "{}", mined.body);
    let path = format!(
        "/api/v1/tx/{}?wait=confirmed&timeout=2m",
        mined.body["txId"].as_str().unwrap()
    );
    let chain = world.chain.clone();
    let (confirmed, ()) = tokio::join!(world.get(&path), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        chain.mine();
        chain.mine();
    });
    assert_eq!(
        (confirmed.status.as_u16(), &confirmed.body["state"]),
        (200, &json!("CONFIRMED"))
    );
    assert!(confirmed.body["confirmedAt"].is_string());
    let known = world.create("r1", "/api/v1/tx?wait=confirmed").await;
    assert_eq!(
        (known.status.as_u16(), &known.body["state"]),
        (200, &json!("CONFIRMED"))
    );
}

#[tokio::test(start_paused = true)]
async fn expired_wait_returns_the_tx_as_it_is() {
    let world = World::with_chain(MemoryChain::new(CHAIN), |_| {}).await;
    let started = Instant::now();
    let response = world
        .create("r1", "/api/v1/tx?wait=mined&timeout=700ms")
        .await;
    assert_eq!(
        (response.status.as_u16(), &response.body["receipt"]),
        (202, &Value::Null)
    );
    assert!(started.elapsed() >= Duration::from_millis(700));
    let again = world.create("r1", "/api/v1/tx?wait=mined&timeout=0s").await;
    assert_eq!(again.status, 200);
    let path = format!(
        "/api/v1/tx/{}?wait=mined&timeout=1s",
        again.body["txId"].as_str().unwrap()
    );
    assert_eq!(world.get(&path).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters_are_refused_before_acceptance() {
    let world = World::with_chain(MemoryChain::new(CHAIN), |config| config.max_waiters = 1).await;
    let first = world.create("r1", "/api/v1/tx?wait=mined&timeout=10s");
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.create("r2", "/api/v1/tx?wait=mined").await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.status, 202);
    second.problem(429, "too-many-waiters");
    assert_eq!(second.body["effect"], "unknown", "it is not looked up");
    assert_eq!(second.headers["retry-after"], "1");
    let path = format!("/api/v1/tx/by-request?signer={SIGNER}&requestId=r2");
    world.get(&path).await.problem(404, "unknown-tx");
    // The permit is free again, and a request without `wait` needs none.
    assert_eq!(
        world
            .create("r3", "/api/v1/tx?wait=mined&timeout=1s")
            .await
            .status,
        202
    );
}

#[tokio::test(start_paused = true)]
async fn stopping_node_answers_its_waiters() {
    let world = World::with_chain(MemoryChain::new(CHAIN), |_| {}).await;
    let started = Instant::now();
    let (response, ()) = tokio::join!(
        world.create("r1", "/api/v1/tx?wait=mined&timeout=2m"),
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.closing.send_replace(true);
        }
    );
    assert_eq!(response.status, 202);
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn bodies_are_bounded_and_declared_as_json() {
    let world = World::with_chain(MemoryChain::new(CHAIN), |config| config.max_body = 1_000).await;
    let typed = |kind: &str, body: String| {
        Request::post("/api/v1/tx")
            .header("content-type", kind)
            .body(Body::from(body))
            .unwrap()
    };
    let good = transfer("r1").to_string();
    let padded = format!("{good}{}", " ".repeat(1_000));
    world
        .request(typed("application/json", padded))
        .await
        .problem(413, "body-too-large");
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let response = world.request(typed(kind, good.clone())).await;
        assert!(
            response
                .problem(415, "unsupported-media-type")
                .contains("Content-Type")
        );
    }
    let bare = Request::post("/api/v1/tx")
        .body(Body::from(good.clone()))
        .unwrap();
    world
        .request(bare)
        .await
        .problem(415, "unsupported-media-type");
    let mut zipped = typed("application/json", good.clone());
    zipped
        .headers_mut()
        .insert("content-encoding", "gzip".parse().unwrap());
    world
        .request(zipped)
        .await
        .problem(415, "unsupported-media-type");
    let charset = typed("Application/JSON; charset=utf-8", good);
    assert_eq!(world.request(charset).await.status, 202);
    // A body without a declared length is refused when it exceeds the limit or stalls.
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>("          "));
    let request = |body: Body| {
        Request::post("/api/v1/tx")
            .header("content-type", "application/json")
            .body(body)
            .unwrap()
    };
    let response = world.request(request(Body::from_stream(endless))).await;
    response.problem(413, "body-too-large");
    let silent = futures::stream::pending::<Result<&str, std::io::Error>>();
    world
        .request(request(Body::from_stream(silent)))
        .await
        .problem(408, "body-timeout");
    let violation = futures::stream::once(async { Err::<&str, _>(std::io::Error::other("reset")) });
    let response = world.request(request(Body::from_stream(violation))).await;
    assert!(
        response
            .problem(400, "invalid-json")
            .contains("ended early")
    );
    let parts: Vec<_> = transfer("r2")
        .to_string()
        .bytes()
        .map(|byte| vec![byte])
        .collect();
    let parts = futures::stream::iter(parts).map(Ok::<_, std::io::Error>);
    let response = world.request(request(Body::from_stream(parts))).await;
    assert_eq!(response.status, 202, "{}", response.body);
}
