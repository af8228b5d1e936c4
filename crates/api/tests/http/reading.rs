//! Reading txs, events, lanes and nodes, and the headers of every response.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use domain::{GrantId, LaneKey};
use engine::ports::Store as _;
use futures::future::join_all;
use serde_json::{Value, json};
use sim::chain::MemoryChain;
use sim::clock::SimClock;
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use sim::store::{MemoryStore, RemoteStore};
use tokio::time::{Duration, Instant, sleep, timeout};
use uuid::Uuid;

use crate::world::{CHAIN, OTHER_SIGNER, Plan, SIGNER, TO, World, post, transfer};

#[tokio::test(start_paused = true)]
async fn tx_is_found_by_id_request_and_hash() {
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
async fn unknown_resources_and_invalid_input_are_problems() {
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
        let response = world.get(path).await;
        assert_eq!(
            response.body["type"],
            format!("urn:lanekeeper:problem:{slug}"),
            "{path}"
        );
        response.problem(status, slug);
        assert_eq!(response.headers["lanekeeper-node"], "a");
        assert!(response.headers.contains_key("x-request-id"));
    }
    let hash = format!("/api/v1/tx/by-hash/0x{}", "1".repeat(64));
    world.get(&hash).await.problem(404, "unknown-tx");
}

#[tokio::test(start_paused = true)]
async fn wrong_method_gets_the_allowed_ones() {
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
        let response = world.request(request).await;
        response.problem(405, "method-not-allowed");
        let mut allowed: Vec<_> = response.headers["allow"]
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
async fn every_response_names_node_and_request() {
    let world = World::new().await;
    let named = |name: &[u8]| {
        let name = axum::http::HeaderValue::from_bytes(name).unwrap();
        Request::get("/healthz")
            .header("x-request-id", name)
            .body(Body::empty())
            .unwrap()
    };
    let valid = world.request(named(b"trace-7:a/b")).await;
    assert_eq!(valid.headers["x-request-id"], "trace-7:a/b");
    assert_eq!(valid.headers["lanekeeper-node"], "a");
    let long = [b'x'; 129];
    let mut made: Vec<String> = Vec::new();
    for invalid in [b"two words".as_slice(), b"\xff", b"", &long] {
        let response = world.request(named(invalid)).await;
        made.push(
            response.headers["x-request-id"]
                .to_str()
                .unwrap()
                .to_owned(),
        );
    }
    made.push(
        world.get("/healthz").await.headers["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned(),
    );
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 5, "every id is unique: {made:?}");
    assert!(made.iter().all(|name| name.len() >= 18 && name.is_ascii()));
}

#[tokio::test(start_paused = true)]
async fn lists_are_paged_newest_first() {
    let world = World::new().await;
    for n in 0..5 {
        world
            .create(&format!("r{n}"), "/api/v1/tx?wait=mined")
            .await;
    }
    // A signer's list goes by nonce downwards.
    for list in [
        "/api/v1/tx?limit=2",
        &format!("/api/v1/tx?limit=2&signer={SIGNER}"),
    ] {
        let mut seen = Vec::new();
        let mut path = list.to_owned();
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
            path = format!("{list}&cursor={next}");
        }
        assert_eq!(seen, ["r4", "r3", "r2", "r1", "r0"], "{list}");
    }
    let first = world.get("/api/v1/tx?limit=2").await.body;
    let next = first["next"].as_str().unwrap();
    let foreign = format!("/api/v1/tx?signer={SIGNER}&cursor={next}");
    world.get(&foreign).await.problem(400, "invalid-cursor");
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
async fn events_of_a_tx_equal_its_events_in_the_feed() {
    let world = World::with_known_nonces().await;
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

    // The feed shows an event a little later than the tx itself.
    let delivered = async {
        let all = "/api/v1/events?type=TxConfirmed&limit=1000";
        while !world.get(all).await.body["events"]
            .as_array()
            .unwrap()
            .contains(&history[3])
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), delivered).await.unwrap();
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
    assert_eq!(free["keeper"], Value::Null, "released: {free}");
}

#[tokio::test(start_paused = true)]
async fn resume_requires_accept_loss_and_a_reason() {
    let world = World::new().await;
    let path = format!("/api/v1/lanes/31337/{SIGNER:#x}/resume");
    for (body, kind) in [
        (json!({ "acceptLoss": true }), "invalid-field"),
        (json!(["compared", true]), "invalid-field"),
        (
            json!({ "reason": "compared", "acceptLoss": "yes" }),
            "invalid-field",
        ),
        (
            json!({ "reason": "a\u{7}b", "acceptLoss": true }),
            "invalid-field",
        ),
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
            "invalid-field",
        ),
    ] {
        world.post(&path, &body).await.problem(400, kind);
    }
    let accepted = json!({ "reason": "compared with the chain", "acceptLoss": true });
    let elsewhere = "/api/v1/lanes/1/0x3333333333333333333333333333333333333333/resume";
    let unknown = world.post(elsewhere, &accepted).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test(start_paused = true)]
async fn only_a_halted_lane_is_resumed() {
    let plan = Plan::new(MemoryChain::new(CHAIN).auto_mining());
    let store = Arc::clone(&plan.ports.store);
    let lane = LaneKey {
        chain_id: CHAIN,
        signer: SIGNER,
    };
    let grant = GrantId(Uuid::from_u128(7));
    let halt = store.halt_lost_lane(lane, 5, grant, "5 commits are gone");
    assert_eq!(halt.await, Ok(true));
    let world = plan.start().await;
    let path = format!("/api/v1/lanes/31337/{SIGNER:#x}/resume");
    let accepted = json!({ "reason": "compared with the chain", "acceptLoss": true });
    let refused = world.create("before", "/api/v1/tx").await;
    refused.problem(503, "lane-halted");
    let resumed = world.post(&path, &accepted).await;
    assert_eq!(resumed.status, 202, "{}", resumed.body);
    assert_eq!(resumed.body["signer"], SIGNER.to_string());
    let created = world.create("after", "/api/v1/tx?wait=mined").await;
    assert_eq!(created.body["nonce"], 0, "{}", created.body);
    let again = world.post(&path, &accepted).await;
    again.problem(409, "lane-not-halted");
    assert_eq!(again.body["effect"], "none");
    let unused = format!("/api/v1/lanes/31337/{OTHER_SIGNER:#x}/resume");
    let unused = world.post(&unused, &accepted).await;
    unused.problem(409, "lane-not-halted");
}

#[tokio::test(start_paused = true)]
async fn resumption_whose_answer_is_lost_may_have_an_effect() {
    let mut plan = Plan::new(MemoryChain::new(CHAIN).auto_mining());
    let lane = LaneKey {
        chain_id: CHAIN,
        signer: SIGNER,
    };
    let grant = GrantId(Uuid::from_u128(7));
    let store = MemoryStore::new(Arc::new(SimClock::new(7)));
    let halt = store.halt_lost_lane(lane, 5, grant, "5 commits are gone");
    assert_eq!(halt.await, Ok(true));
    let link = Link::new(Rng::new(3), LinkFaults::NONE);
    plan.ports.store = Arc::new(RemoteStore::new(store.clone(), link.clone()));
    let world = plan.start().await;
    link.set_faults(LinkFaults {
        response_lost: 1_000,
        ..LinkFaults::NONE
    });
    let path = format!("/api/v1/lanes/31337/{SIGNER:#x}/resume");
    let accepted = json!({ "reason": "compared with the chain", "acceptLoss": true });
    let lost = world.post(&path, &accepted).await;
    lost.problem(503, "outcome-unknown");
    assert_eq!(lost.body["effect"], "unknown");
    link.set_faults(LinkFaults::NONE);
    let again = world.post(&path, &accepted).await;
    again.problem(409, "lane-not-halted");
}

#[tokio::test(start_paused = true)]
async fn health_readiness_nodes_and_metrics_are_served() {
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
async fn one_check_of_a_slow_store_answers_all_who_wait_for_it() {
    let mut plan = Plan::new(MemoryChain::new(CHAIN).auto_mining());
    let link = Link::new(Rng::new(3), LinkFaults::NONE);
    let store = MemoryStore::new(Arc::new(SimClock::new(7)));
    plan.ports.store = Arc::new(RemoteStore::new(store, link.clone()));
    let world = plan.start().await;
    // A check takes up to 2.4 seconds, longer than its result is shown.
    link.set_faults(LinkFaults::healthy(1_200));
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        sleep(Duration::from_secs(2)).await; // no result is shown any more
        let started = Instant::now();
        let answers = join_all((0..20).map(|_| world.get("/readyz"))).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        slowest = slowest.max(started.elapsed());
    }
    let slow = Duration::from_secs(1)..=Duration::from_millis(2_400);
    assert!(slow.contains(&slowest), "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn panic_is_answered_and_the_node_keeps_serving() {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let world = World::with_chain(chain, |config| {
        config.metrics = Arc::new(|| panic!("the exporter is broken"));
    })
    .await;
    let response = world.get("/metrics").await;
    let detail = response.problem(500, "internal");
    assert!(
        !detail.contains("exporter"),
        "the panic message is only logged"
    );
    assert_eq!(response.body["effect"], "unknown");
    assert_eq!(response.headers["lanekeeper-node"], "a");
    assert_eq!(world.get("/healthz").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn invalid_bodies_have_no_effect() {
    let world = World::new().await;
    let mut unknown = transfer("r1");
    unknown["payload"]["nonce"] = json!(7);
    let response = world.request(post("/api/v1/tx", &unknown)).await;
    assert!(
        response
            .problem(400, "invalid-field")
            .contains("payload.nonce")
    );
    assert_eq!(
        (&response.body["retryable"], &response.body["effect"]),
        (&json!(false), &json!("none"))
    );
    let response = world.post("/api/v1/tx?wait=forever", &transfer("r1")).await;
    response.problem(400, "invalid-query");
    assert_eq!(world.get("/api/v1/tx").await.body["txs"], json!([]));
    let unknown_signer = json!({"signer": TO.to_string()});
    world
        .post("/api/v1/tx", &unknown_signer)
        .await
        .problem(400, "invalid-field");
}
