//! Looking things up, and what every answer carries.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use sim::chain::MemoryChain;
use tokio::time::{Duration, sleep, timeout};

use crate::world::{CHAIN, OTHER_SIGNER, SIGNER, TO, World, post, transfer};

#[tokio::test(start_paused = true)]
async fn a_tx_is_found_by_id_by_request_and_by_hash() {
    let world = World::new().await;
    let created = world
        .create("r 1".replace(' ', "+").as_str(), "/api/v1/tx?wait=mined")
        .await
        .body;
    let id = created["txId"].as_str().unwrap();
    let hash = created["txHash"].as_str().unwrap();
    for path in [
        format!("/api/v1/tx/{id}"),
        format!("/api/v1/tx/by-hash/{hash}"),
        format!("/api/v1/tx/by-request?signer={SIGNER}&requestId=r%2B1"),
        format!("/api/v1/tx/by-request?chainId=31337&signer={SIGNER:#x}&requestId=r%2B1"),
    ] {
        let found = world.get(&path).await;
        assert_eq!(
            (found.status.as_u16(), &found.body),
            (200, &created),
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_a_problem() {
    let world = World::new().await;
    let cases = [
        (
            "/api/v1/tx/0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11",
            404,
            "unknown-tx",
        ),
        (
            "/api/v1/tx/0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11?wait=mined",
            404,
            "unknown-tx",
        ),
        (
            "/api/v1/tx/0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11/events",
            404,
            "unknown-tx",
        ),
        ("/api/v1/tx/5", 400, "invalid-path"),
        ("/api/v1/tx/%ff", 400, "invalid-path"),
        ("/api/v1/tx/by-hash/0x12", 400, "invalid-path"),
        ("/api/v1/tx/by-request?requestId=r1", 400, "invalid-query"),
        ("/api/v1/tx?state=open", 400, "invalid-query"),
        ("/api/v1/tx?cursor=5", 400, "invalid-cursor"),
        ("/api/v1/tx?limit=0", 400, "invalid-query"),
        (
            "/api/v1/events?after=no-cursor-of-ours",
            400,
            "invalid-cursor",
        ),
        ("/api/v1/events?kind=TxFailed", 400, "invalid-query"),
        (
            "/api/v1/events/stream?after=no-cursor-of-ours",
            400,
            "invalid-cursor",
        ),
        ("/api/v1/events/stream?limit=5", 400, "invalid-query"),
        ("/api/v1/lanes?cursor=5", 400, "invalid-cursor"),
        ("/api/v1/lanes/one/0x12", 400, "invalid-path"),
        (
            "/api/v1/lanes/1/0x3333333333333333333333333333333333333333",
            404,
            "unknown-lane",
        ),
        ("/api/v1/nodes?all", 400, "invalid-query"),
        ("/api/v1/webhooks", 404, "unknown-path"),
        ("/api/v2/tx", 404, "unknown-path"),
        ("/", 404, "unknown-path"),
    ];
    for (path, status, slug) in cases {
        let answer = world.get(path).await;
        assert_eq!(
            answer.body["type"],
            format!("urn:lanekeeper:problem:{slug}"),
            "{path}"
        );
        answer.problem(status, slug);
        assert_eq!(answer.headers["lanekeeper-node"], "a");
        assert!(answer.headers.contains_key("x-request-id"));
    }
    let hash = format!("/api/v1/tx/by-hash/0x{}", "1".repeat(64));
    world.get(&hash).await.problem(404, "unknown-tx");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_method_is_told_the_right_ones() {
    let world = World::new().await;
    for (method, path, allow) in [
        ("DELETE", "/api/v1/tx", "POST,GET,HEAD"),
        ("PUT", "/healthz", "GET,HEAD"),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap();
        let answer = world.ask(request).await;
        answer.problem(405, "method-not-allowed");
        let mut allowed: Vec<_> = answer.headers["allow"]
            .to_str()
            .unwrap()
            .split(',')
            .collect();
        let mut expected: Vec<_> = allow.split(',').collect();
        allowed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(allowed, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn every_answer_names_the_node_and_the_request() {
    let world = World::new().await;
    let named = |name: &[u8]| {
        let name = axum::http::HeaderValue::from_bytes(name).unwrap();
        Request::get("/healthz")
            .header("x-request-id", name)
            .body(Body::empty())
            .unwrap()
    };
    let sane = world.ask(named(b"trace-7:a/b")).await;
    assert_eq!(sane.headers["x-request-id"], "trace-7:a/b");
    assert_eq!(sane.headers["lanekeeper-node"], "a");
    let long = [b'x'; 129];
    let mut made: Vec<String> = Vec::new();
    for insane in [b"two words".as_slice(), b"\xff", b"", &long] {
        let answer = world.ask(named(insane)).await;
        made.push(answer.headers["x-request-id"].to_str().unwrap().to_owned());
    }
    made.push(
        world.get("/healthz").await.headers["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned(),
    );
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 5, "each gets its own: {made:?}");
    assert!(made.iter().all(|name| name.len() >= 18 && name.is_ascii()));
}

#[tokio::test(start_paused = true)]
async fn lists_go_page_by_page_newest_first() {
    let world = World::new().await;
    for n in 0..5 {
        world
            .create(&format!("r{n}"), "/api/v1/tx?wait=mined")
            .await;
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/tx?limit=2".to_owned();
    loop {
        let page = world.get(&path).await.body;
        seen.extend(
            page["txs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tx| tx["requestId"].clone()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/tx?limit=2&cursor={next}");
    }
    assert_eq!(seen, ["r4", "r3", "r2", "r1", "r0"]);
    let count = async |filter: &str| {
        let page = world.get(&format!("/api/v1/tx?{filter}")).await.body;
        page["txs"].as_array().unwrap().len()
    };
    assert_eq!(count(&format!("signer={SIGNER}&chainId=31337")).await, 5);
    assert_eq!(count(&format!("signer={OTHER_SIGNER}")).await, 0);
    assert_eq!(count("chainId=1").await, 0);
    assert_eq!(count("state=STUCK").await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_history_of_a_tx_and_the_feed_tell_the_same() {
    let world = World::warm().await;
    let created = world.create("r1", "/api/v1/tx?wait=mined").await.body;
    let id = created["txId"].as_str().unwrap();
    world.chain.mine();
    world.chain.mine();
    world.get(&format!("/api/v1/tx/{id}?wait=confirmed")).await;
    let history = world.get(&format!("/api/v1/tx/{id}/events")).await.body;
    let history = history["events"].as_array().unwrap();
    let kinds: Vec<_> = history
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "TxAccepted",
            "TxSubmitted",
            "TxReceiptUpdated",
            "TxConfirmed"
        ]
    );
    assert_eq!(
        history[0]["id"],
        format!("31337:{SIGNER}:{}", history[0]["seq"])
    );

    // The feed tells it a little later than the tx itself.
    let told = async {
        let all = "/api/v1/events?type=TxConfirmed&limit=1000";
        while !world.get(all).await.body["events"]
            .as_array()
            .unwrap()
            .contains(&history[3])
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), told).await.unwrap();
    let mut feed = Vec::new();
    let mut after = String::new();
    loop {
        let page = world
            .get(&format!("/api/v1/events?limit=1{after}"))
            .await
            .body;
        feed.extend(page["events"].as_array().unwrap().iter().cloned());
        let next = format!("&after={}", page["next"].as_str().unwrap());
        if next == after {
            break;
        }
        after = next;
    }
    feed.retain(|event| event["txId"] == id);
    assert_eq!(&feed, history);
    let confirmed = world
        .get("/api/v1/events?type=TxConfirmed,TxFailed&limit=1000")
        .await
        .body;
    let confirmed = confirmed["events"].as_array().unwrap();
    assert!(confirmed.contains(&history[3]), "{confirmed:?}");
    assert!(confirmed.iter().all(|event| event["type"] == "TxConfirmed"));
}

#[tokio::test(start_paused = true)]
async fn lanes_show_their_keeper() {
    let world = World::new().await;
    world.create("r1", "/api/v1/tx?wait=mined").await;
    let one = world
        .get(&format!("/api/v1/lanes/31337/{SIGNER:#x}"))
        .await
        .body;
    assert_eq!(
        (&one["keeper"]["node"], &one["nextNonce"]),
        (&json!("a"), &json!(1)),
        "{one}"
    );
    let all = world.get("/api/v1/lanes").await.body;
    let signers: Vec<_> = all["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lane| &lane["signer"])
        .collect();
    assert_eq!(
        signers,
        [&json!(SIGNER.to_string()), &json!(OTHER_SIGNER.to_string())]
    );
    assert_eq!(
        (&all["lanes"][1]["keeper"], &all["next"]),
        (&Value::Null, &Value::Null)
    );
    let first = world.get("/api/v1/lanes?limit=1").await.body;
    let next = first["next"].as_str().unwrap();
    let second = world
        .get(&format!("/api/v1/lanes?limit=1&cursor={next}"))
        .await
        .body;
    assert_eq!(second["lanes"][0]["signer"], OTHER_SIGNER.to_string());
    assert_eq!(second["next"], Value::Null);
    world.node.drain().await;
    let free = world
        .get(&format!("/api/v1/lanes/31337/{SIGNER:#x}"))
        .await
        .body;
    assert_eq!(free["keeper"], Value::Null, "given back: {free}");
}

#[tokio::test(start_paused = true)]
async fn an_operator_says_what_is_accepted_before_a_lane_goes_on() {
    let world = World::new().await;
    let path = format!("/api/v1/lanes/31337/{SIGNER:#x}/resume");
    for (body, kind) in [
        (json!({ "acceptLoss": true }), "invalid-json"),
        (
            json!({ "reason": "compared", "acceptLoss": false }),
            "invalid-field",
        ),
        (
            json!({ "reason": " ", "acceptLoss": true }),
            "invalid-field",
        ),
        (
            json!({ "reason": "x".repeat(501), "acceptLoss": true }),
            "invalid-field",
        ),
        (
            json!({ "reason": "x", "acceptLoss": true, "force": 1 }),
            "invalid-json",
        ),
    ] {
        world.post(&path, &body).await.problem(400, kind);
    }
    let accepted = json!({ "reason": "compared with the chain", "acceptLoss": true });
    let answer = world.post(&path, &accepted).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_eq!(answer.body["signer"], SIGNER.to_string());
    let elsewhere = "/api/v1/lanes/1/0x3333333333333333333333333333333333333333/resume";
    let unknown = world.post(elsewhere, &accepted).await;
    assert_eq!(unknown.status, 404);
    let made = world.create("after", "/api/v1/tx").await;
    assert_eq!(made.body["nonce"], 0);
}

#[tokio::test(start_paused = true)]
async fn operators_see_life_readiness_nodes_and_metrics() {
    let world = World::new().await;
    assert_eq!(world.get("/healthz").await.body, json!({"status": "ok"}));
    let ready = world.get("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), &ready.body["ready"]),
        (200, &json!(true))
    );
    assert_eq!(ready.body["chains"][0]["chainId"], 31_337);
    let metrics = world.get("/metrics").await;
    assert_eq!(metrics.body, "lanekeeper_up 1\n");
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    assert_eq!(
        world.get("/api/v1/nodes").await.body["nodes"][0]["node"],
        "a"
    );
    world.node.drain().await;
    let draining = world.get("/readyz").await;
    assert_eq!(
        (draining.status.as_u16(), &draining.body["draining"]),
        (503, &json!(true))
    );
    assert!(draining.headers.contains_key("retry-after"));
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_answered_and_the_next_request_too() {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let world = World::with(chain, |config| {
        config.metrics = Arc::new(|| panic!("the exporter is broken"));
    })
    .await;
    let answer = world.get("/metrics").await;
    let detail = answer.problem(500, "internal");
    assert!(
        !detail.contains("exporter"),
        "inner matters stay in the log"
    );
    assert_eq!(answer.body["effect"], "unknown");
    assert_eq!(answer.headers["lanekeeper-node"], "a");
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn bad_bodies_reach_nobody() {
    let world = World::new().await;
    let mut unknown = transfer("r1");
    unknown["payload"]["nonce"] = json!(7);
    let answer = world.ask(post("/api/v1/tx", &unknown)).await;
    assert!(
        answer
            .problem(400, "invalid-field")
            .contains("payload.nonce")
    );
    assert_eq!(
        (&answer.body["retryable"], &answer.body["effect"]),
        (&json!(false), &json!("none"))
    );
    let answer = world.post("/api/v1/tx?wait=forever", &transfer("r1")).await;
    answer.problem(400, "invalid-query");
    assert_eq!(world.get("/api/v1/tx").await.body["txs"], json!([]));
    let to_nobody = json!({"signer": TO.to_string()});
    world
        .post("/api/v1/tx", &to_nobody)
        .await
        .problem(400, "invalid-field");
}
