//! Access control: every call with every kind of key.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use api::keys::{self, ApiKey, Scope};
use api::{ApiConfig, Auth};
use axum::body::Body;
use axum::http::Request;
use futures::stream;
use metrics_exporter_prometheus::PrometheusBuilder;
use sim::chain::MemoryChain;

use crate::world::{ApiResponse, CHAIN, SIGNER, World, transfer};

/// A node with one key per scope.
struct KeyedNode {
    world: World,
    keys: Vec<(Scope, String)>,
}

async fn with_keys() -> KeyedNode {
    let mut keys = Vec::new();
    let mut known = Vec::new();
    for &scope in Scope::ALL {
        let (key, hash) = keys::generate(&format!("the-{scope}-key")).unwrap();
        known.push(ApiKey::new(&format!("the-{scope}-key"), &hash, &[scope]).unwrap());
        keys.push((scope, key));
    }
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let change = |config: &mut ApiConfig| config.auth = Auth::Keys(known);
    let world = World::with_chain(chain, change).await;
    KeyedNode { world, keys }
}

impl KeyedNode {
    async fn request(&self, method: &str, path: &str, authorization: Option<&str>) -> ApiResponse {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.header("content-type", "application/json");
        let body = match (method, path) {
            ("POST", "/api/v1/tx") => transfer("r1").to_string(),
            ("POST", "/api/v1/tx/batch") => r#"{"txs":[]}"#.to_owned(),
            ("POST", path) if path.ends_with("/nonces") => "{}".to_owned(),
            _ => String::new(),
        };
        self.world
            .request(request.body(Body::from(body)).unwrap())
            .await
    }

    fn key(&self, scope: Scope) -> &str {
        let (_, key) = self.keys.iter().find(|(has, _)| *has == scope).unwrap();
        key
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_requires_its_scope() {
    use Scope::{Metrics, Operate, Read, Send};
    let with_keys = with_keys().await;
    let resume = format!("/api/v1/lanes/31337/{SIGNER:#x}/resume");
    let lane = format!("/api/v1/lanes/31337/{SIGNER:#x}");
    let nonces = format!("{lane}/nonces");
    let marks = ["submitted", "used", "recyclable"].map(|word| format!("{nonces}/0/{word}"));
    let hash = format!("/api/v1/tx/by-hash/0x{}", "1".repeat(64));
    let by_request = format!("/api/v1/tx/by-request?signer={SIGNER}&requestId=r9");
    let id = "/api/v1/tx/0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11";
    let history = format!("{id}/events");
    // With a key of the right scope, each call responds as it does without authentication.
    let calls: [(&str, &str, &[Scope], u16); 19] = [
        ("POST", "/api/v1/tx", &[Send], 202),
        ("POST", "/api/v1/tx/batch", &[Send], 200),
        ("GET", "/api/v1/tx", &[Read], 200),
        ("HEAD", "/api/v1/tx", &[Read], 200),
        ("GET", &by_request, &[Read], 404),
        ("GET", &hash, &[Read], 404),
        ("GET", id, &[Read], 404),
        ("GET", &history, &[Read], 404),
        ("GET", "/api/v1/events", &[Read], 200),
        ("GET", "/api/v1/lanes", &[Read], 200),
        ("GET", &lane, &[Read], 200),
        ("POST", &nonces, &[Send], 409),
        ("GET", &nonces, &[Read], 409),
        ("POST", &marks[0], &[Send], 400),
        ("POST", &marks[1], &[Send], 400),
        ("POST", &marks[2], &[Send], 400),
        ("POST", &resume, &[Operate], 400),
        ("GET", "/api/v1/nodes", &[Read], 200),
        ("GET", "/metrics", &[Metrics, Read], 200),
    ];
    for (method, path, opens, status) in calls {
        let none = with_keys.request(method, path, None).await;
        assert_eq!(none.status, 401, "{method} {path}");
        assert_eq!(none.headers["www-authenticate"], "Bearer");
        for (scope, key) in &with_keys.keys {
            let response = with_keys
                .request(method, path, Some(&format!("Bearer {key}")))
                .await;
            if opens.contains(scope) {
                assert_eq!(response.status, status, "{method} {path} with {scope}");
                continue;
            }
            assert_eq!(response.status, 403, "{method} {path} with {scope}");
            if method != "HEAD" {
                let detail = response.problem(403, "missing-scope");
                assert!(detail.contains(opens[0].as_str()), "{detail}");
                assert!(detail.contains(&format!("the-{scope}-key")), "{detail}");
                assert!(!detail.contains(key), "{detail}");
            }
        }
    }
    let key = format!("Bearer {}", with_keys.key(Read));
    let stream = "/api/v1/events/stream";
    let refused = with_keys.request("GET", stream, None).await;
    refused.problem(401, "unauthenticated");
    let opened = Request::get(stream).header("authorization", key);
    let opened = opened.body(Body::empty()).unwrap();
    assert_eq!(with_keys.world.send(opened).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn health_checks_and_wrong_paths_need_no_key() {
    let with_keys = with_keys().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            with_keys.request("GET", path, None).await.status,
            200,
            "{path}"
        );
        let with_nonsense = with_keys.request("GET", path, Some("nonsense")).await;
        assert_eq!(with_nonsense.status, 200, "{path}");
    }
    let wrong = with_keys.request("DELETE", "/api/v1/tx", None).await;
    wrong.problem(405, "method-not-allowed");
    let nowhere = with_keys.request("GET", "/api/v1/nothing", None).await;
    nowhere.problem(404, "unknown-path");
}

#[tokio::test(start_paused = true)]
async fn body_of_a_caller_without_access_is_not_read() {
    let with_keys = with_keys().await;
    let read_only = format!("Bearer {}", with_keys.key(Scope::Read));
    let nonces = format!("/api/v1/lanes/31337/{SIGNER:#x}/nonces");
    let paths = [
        "/api/v1/tx",
        "/api/v1/tx/batch",
        &nonces,
        "/internal/v1/forward",
    ];
    for path in paths {
        for authorization in [None, Some("Bearer nonsense"), Some(read_only.as_str())] {
            let was_read = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&was_read);
            let body = Body::from_stream(stream::poll_fn(move |_| {
                flag.store(true, Ordering::Relaxed);
                Poll::Ready(None::<Result<Vec<u8>, io::Error>>)
            }));
            let mut request = Request::builder().method("POST").uri(path);
            request = request.header("content-type", "application/json");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let refused = with_keys.world.request(request.body(body).unwrap()).await;
            let is_refused = [400, 401, 403].contains(&refused.status.as_u16());
            assert!(is_refused, "{path}: {}", refused.status);
            assert!(
                !was_read.load(Ordering::Relaxed),
                "{path} {authorization:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_shows_hosts_only_to_callers_with_a_key() {
    let with_keys = with_keys().await;
    let known = format!("Bearer {}", with_keys.key(Scope::Metrics));
    for (authorization, shows_hosts) in [(None, false), (Some(known.as_str()), true)] {
        let ready = with_keys.request("GET", "/readyz", authorization).await;
        let endpoint = &ready.body["chains"][0]["endpoints"][0];
        assert_eq!(endpoint["answers"], true, "{}", ready.body);
        assert_eq!(
            endpoint.get("name").is_some(),
            shows_hosts,
            "{}",
            ready.body
        );
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_keys_are_refused_without_repeating_them() {
    let with_keys = with_keys().await;
    let good = with_keys.key(Scope::Read).to_owned();
    let (foreign, _) = keys::generate("the-read-key").unwrap();
    let hash = keys::hash(&good);
    let cases = [
        (format!("Bearer {foreign}"), "not known here"),
        (format!("Bearer {hash}"), "begins with `lk_`"),
        (format!("Bearer {}", &good[..good.len() - 1]), "`lk_`"),
        (format!("Basic {good}"), "`Bearer`"),
        (good.clone(), "`Bearer`"),
        ("Bearer".to_owned(), "`Bearer`"),
        (String::new(), "`Bearer`"),
        (format!("Bearer {good} {good}"), "`Bearer`"),
    ];
    for (authorization, mention) in cases {
        let response = with_keys
            .request("GET", "/api/v1/tx", Some(&authorization))
            .await;
        let detail = response.problem(401, "unauthenticated");
        assert!(detail.contains(mention), "{authorization}: {detail}");
        assert!(!detail.contains(&good[10..]), "{detail}");
        assert_eq!(
            (&response.body["retryable"], &response.body["effect"]),
            (&false.into(), &"none".into())
        );
    }
    let twice = Request::get("/api/v1/tx")
        .header("authorization", format!("Bearer {good}"))
        .header("authorization", format!("Bearer {good}"))
        .body(Body::empty())
        .unwrap();
    let response = with_keys.world.request(twice).await;
    assert!(response.problem(401, "unauthenticated").contains("twice"));
    // The case of the scheme and additional spaces do not matter.
    let lower = with_keys
        .request("GET", "/api/v1/tx", Some(&format!("bearer  {good}")))
        .await;
    assert_eq!(lower.status, 200);
}

#[tokio::test(start_paused = true)]
async fn refused_request_has_no_effect_and_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let with_keys = with_keys().await;
    with_keys.request("POST", "/api/v1/tx", None).await;
    with_keys
        .request("POST", "/api/v1/tx", Some("Bearer x"))
        .await;
    let (foreign, _) = keys::generate("a").unwrap();
    let foreign = format!("Bearer {foreign}");
    with_keys
        .request("POST", "/api/v1/tx", Some(&foreign))
        .await;
    with_keys
        .request("POST", "/api/v1/tx", Some(&foreign))
        .await;
    let reader = format!("Bearer {}", with_keys.key(Scope::Read));
    with_keys.request("POST", "/api/v1/tx", Some(&reader)).await;
    let page = counted.render();
    for (reason, count) in [
        ("missing", 1),
        ("malformed", 1),
        ("unknown", 2),
        ("scope", 1),
    ] {
        let line = format!("lanekeeper_auth_refused_total{{reason=\"{reason}\"}} {count}");
        assert!(page.contains(&line), "{line} in {page}");
    }
    let listed = with_keys.request("GET", "/api/v1/tx", Some(&reader)).await;
    assert_eq!(listed.body["txs"], serde_json::json!([]));
}

#[tokio::test(start_paused = true)]
async fn two_keys_with_one_name_work_side_by_side() {
    let (old, old_hash) = keys::generate("payouts").unwrap();
    let (new, new_hash) = keys::generate("payouts").unwrap();
    let both = [Scope::Send, Scope::Read];
    let known = [old_hash, new_hash].map(|hash| ApiKey::new("payouts", &hash, &both).unwrap());
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let world = World::with_chain(chain, |config| config.auth = Auth::Keys(known.to_vec())).await;
    let with_keys = KeyedNode {
        world,
        keys: Vec::new(),
    };
    for (key, status) in [(old, 202), (new, 200)] {
        let key = format!("Bearer {key}");
        let made = with_keys.request("POST", "/api/v1/tx", Some(&key)).await;
        assert_eq!(made.status, status, "{}", made.body);
        assert_eq!(
            with_keys
                .request("GET", "/api/v1/tx", Some(&key))
                .await
                .status,
            200
        );
    }
}
