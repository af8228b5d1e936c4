//! What pages in browsers can do with a node: nothing that its operator did not allow.

use std::sync::Arc;

use api::ApiConfig;
use axum::body::Body;
use axum::http::{Request, Version};
use sim::chain::MemoryChain;
use sim::clock::SimClock;
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use sim::store::{MemoryStore, RemoteStore};

use crate::world::{ApiResponse, CHAIN, Plan, World, transfer};

const NODE: &str = "127.0.0.1:8645";

type Headers<'a> = &'a [(&'a str, &'a str)];

async fn world(change: impl FnOnce(&mut ApiConfig)) -> World {
    World::with_chain(MemoryChain::new(CHAIN).auto_mining(), change).await
}

async fn send(world: &World, path: &str, headers: Headers<'_>) -> ApiResponse {
    let is_post = path == "/api/v1/tx";
    let mut request = Request::builder()
        .method(if is_post { "POST" } else { "GET" })
        .uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = is_post.then(|| transfer("r1").to_string());
    let body = Body::from(body.unwrap_or_default());
    world.request(request.body(body).unwrap()).await
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test(start_paused = true)]
async fn page_of_another_site_cannot_spend_and_nothing_is_stored() {
    let world = world(|_| {}).await;
    let host = ("host", NODE);
    let tries: [(Headers<'_>, u16, &str); 6] = [
        (
            &[host, JSON, ("origin", "https://evil.example")],
            403,
            "foreign-page",
        ),
        (&[host, JSON, ("origin", "null")], 403, "foreign-page"),
        (
            &[host, JSON, ("sec-fetch-site", "cross-site")],
            403,
            "foreign-page",
        ),
        // Rebound: the page and the node have one name.
        (
            &[
                ("host", "evil.example:8645"),
                JSON,
                ("origin", "http://evil.example:8645"),
            ],
            421,
            "foreign-host",
        ),
        // A form, and a beacon: no preflight is asked for.
        (
            &[host, ("content-type", "text/plain")],
            415,
            "unsupported-media-type",
        ),
        (&[host], 415, "unsupported-media-type"),
    ];
    for (headers, status, slug) in tries {
        let response = send(&world, "/api/v1/tx", headers).await;
        let detail = response.problem(status, slug);
        assert!(!detail.is_empty(), "{headers:?}");
    }
    let stored = send(&world, "/api/v1/events", &[host]).await;
    assert_eq!(stored.body["events"].as_array().unwrap().len(), 0);
    let own = [host, JSON, ("origin", "http://127.0.0.1:8645")];
    assert_eq!(send(&world, "/api/v1/tx", &own).await.status, 202);
}

#[tokio::test(start_paused = true)]
async fn load_balancers_reach_health_checks_under_any_name() {
    let world = world(|_| {}).await;
    for path in ["/healthz", "/readyz"] {
        let response = send(&world, path, &[("host", "anything.example")]).await;
        assert_eq!(response.status, 200, "{path}");
    }
    let refused = send(&world, "/metrics", &[("host", "anything.example")]).await;
    refused.problem(421, "foreign-host");
}

#[tokio::test(start_paused = true)]
async fn readiness_shows_a_page_no_hosts_and_no_errors_of_the_store() {
    let mut plan = Plan::new(MemoryChain::new(CHAIN).auto_mining());
    let link = Link::new(Rng::new(3), LinkFaults::NONE);
    let store = MemoryStore::new(Arc::new(SimClock::new(7)));
    plan.ports.store = Arc::new(RemoteStore::new(store, link.clone()));
    let world = plan.start().await;
    link.cut(true);
    let host = ("host", NODE);
    let rebound = ("host", "evil.example:8645");
    let cross_site = ("sec-fetch-site", "cross-site");
    for (headers, is_page) in [
        (&[host][..], false),
        (&[rebound][..], true),
        (&[host, ("origin", "https://evil.example")][..], true),
        (&[host, cross_site][..], true),
    ] {
        let answer = send(&world, "/readyz", headers).await;
        assert_eq!(answer.status, 503, "{headers:?}");
        let endpoint = &answer.body["chains"][0]["endpoints"][0];
        let shown = (
            endpoint.get("name").is_none(),
            answer.body["store"] == "unavailable",
        );
        assert_eq!(shown, (is_page, is_page), "{headers:?}: {}", answer.body);
    }
}

#[tokio::test(start_paused = true)]
async fn allowed_origin_gets_answers_and_preflights_and_others_do_not() {
    let console = "https://console.example.com";
    let world = world(|config| {
        config.browser_guard.allowed_origins = vec![console.into()];
    })
    .await;
    let host = ("host", NODE);
    let allowed = send(&world, "/api/v1/tx", &[host, JSON, ("origin", console)]).await;
    assert_eq!(allowed.status, 202);
    assert_eq!(allowed.headers["access-control-allow-origin"], console);
    let other = ("origin", "https://evil.example");
    let refused = send(&world, "/api/v1/tx", &[host, JSON, other]).await;
    refused.problem(403, "foreign-page");
    for (origin, is_allowed) in [(console, true), ("https://evil.example", false)] {
        let preflight = Request::builder()
            .method("OPTIONS")
            .uri("/api/v1/tx")
            .header("host", NODE)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type");
        let answer = world.send(preflight.body(Body::empty()).unwrap()).await;
        let allows = answer.headers().get("access-control-allow-origin");
        assert_eq!(allows.is_some(), is_allowed, "{origin}");
    }
}

#[tokio::test(start_paused = true)]
async fn request_names_one_host() {
    let world = World::new().await;
    let ask = |version: Version, hosts: &[&str]| {
        let mut request = Request::get("/healthz").version(version);
        for host in hosts {
            request = request.header("host", *host);
        }
        world.send_as_it_is(request.body(Body::empty()).unwrap())
    };
    for (version, hosts, status) in [
        (Version::HTTP_11, &["localhost"][..], 200),
        (Version::HTTP_10, &[], 200),
        (Version::HTTP_11, &[], 400),
        (Version::HTTP_11, &["localhost", "evil.example"], 400),
        (Version::HTTP_10, &["localhost", "localhost"], 400),
    ] {
        let response = ask(version, hosts).await;
        assert_eq!(response.status(), status, "{version:?} {hosts:?}");
    }
}
