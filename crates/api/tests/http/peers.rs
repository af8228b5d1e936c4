//! The protocol between nodes, client and server, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::Auth;
use api::keys::{self, ApiKey, Scope};
use api::peers::{ClusterSecret, HttpPeers};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use domain::{Bytes, LaneKey, Payload, RequestId, U256};
use engine::node::{NewTx, Origin, Refusal};
use engine::ports::{Clock, PeerError, Peers};
use serde_json::{Value, json};
use sim::chain::{MemoryChain, RemoteChain, Staleness};
use sim::clock::SimClock;
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{ApiResponse, CHAIN, Plan, SIGNER, Served, TO, World, address_of, socket};

const TIMEOUT: Duration = Duration::from_secs(5);

fn secret(text: &str) -> Option<ClusterSecret> {
    Some(ClusterSecret::parse(&text.repeat(32)).unwrap())
}

fn peers(secret: Option<ClusterSecret>) -> HttpPeers {
    HttpPeers::new(secret, Arc::new(SimClock::new(1)))
}

/// A node with this secret, listening on a socket.
async fn served(secret: Option<ClusterSecret>) -> Served {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    chain.fund(SIGNER, U256::MAX);
    let mut plan = Plan::new(chain);
    plan.api.cluster_secret = secret;
    plan.start().await.serve(socket().await)
}

fn lane() -> LaneKey {
    LaneKey {
        chain_id: CHAIN,
        signer: SIGNER,
    }
}

fn new_tx(request_id: &str) -> NewTx {
    let mut payload = Payload::transfer(TO, U256::from(1));
    payload.gas = Some(21_000);
    NewTx {
        lane: lane(),
        request_id: RequestId::parse(request_id).unwrap(),
        payload,
        origin: Origin::default(),
        estimated_gas: None,
    }
}

/// [`new_tx`] as it is sent between nodes.
fn wire_tx(request_id: &str) -> Value {
    json!({
        "lane": {"chain_id": CHAIN.0, "signer": SIGNER},
        "request_id": request_id,
        "payload": {
            "to": TO, "value": "0x1", "data": "0x", "gas": 21_000, "max_fee_per_gas": null,
            "max_priority_fee_per_gas": null, "gas_price": null, "tx_type": null,
        },
        "estimated_gas": null,
        "origin": {"caller": null, "trace": null},
    })
}

#[track_caller]
fn not_reached<T: std::fmt::Debug>(result: Result<T, PeerError>) -> String {
    match result {
        Err(PeerError::NotReached(why)) => why,
        other => panic!("not NotReached: {other:?}"),
    }
}

#[track_caller]
fn lost<T: std::fmt::Debug>(result: Result<T, PeerError>) -> String {
    match result {
        Err(PeerError::Lost(why)) => why,
        other => panic!("not Lost: {other:?}"),
    }
}

async fn stored(world: &World, request_id: &str) -> bool {
    let path = format!("/api/v1/tx/by-request?signer={SIGNER}&requestId={request_id}");
    world.get(&path).await.status == 200
}

#[tokio::test]
async fn requests_are_processed_and_answered_in_order() {
    let keeper = served(secret("a")).await;
    let peers = peers(secret("a"));
    let mut rich = new_tx("r1");
    rich.payload.data = Bytes::from_static(&[0xde, 0xad]);
    rich.payload.gas = Some(60_000);
    rich.payload.max_fee_per_gas = Some(u128::MAX);
    rich.payload.max_priority_fee_per_gas = Some(1);
    rich.payload.value = U256::from(7);
    let mut unknown_signer = new_tx("r2");
    unknown_signer.lane.signer = TO;
    let mut reused_key = new_tx("r1");
    reused_key.payload.value = U256::from(8);
    let requests = vec![rich.clone(), unknown_signer, new_tx("r3")];
    let answers = peers.forward(&keeper.address, requests, TIMEOUT).await;
    let answers = answers.unwrap();
    assert_eq!(answers.len(), 3);
    let first = answers[0].as_ref().unwrap();
    assert!(first.is_new);
    assert_eq!(
        first.record.tx.request.payload, rich.payload,
        "no field is lost"
    );
    assert_eq!(answers[1], Err(Refusal::UnknownSigner(CHAIN, TO)));
    assert_eq!(
        answers[2]
            .as_ref()
            .unwrap()
            .record
            .tx
            .request
            .request_id
            .as_str(),
        "r3"
    );

    // A repeat returns the same tx, also with a trailing slash in the address.
    let again = format!("{}/", keeper.address);
    let again = peers.forward(&again, vec![rich, reused_key], TIMEOUT).await;
    let again = again.unwrap();
    let repeat = again[0].as_ref().unwrap();
    assert!(!repeat.is_new);
    assert_eq!(repeat.record.tx.id, first.record.tx.id);
    assert_eq!(
        again[1],
        Err(Refusal::KeyReused(RequestId::parse("r1").unwrap()))
    );
    peers.notify(&keeper.address, &[lane()]).await.unwrap();
    peers.notify(&keeper.address, &[]).await.unwrap();
    assert_eq!(
        peers.forward(&keeper.address, vec![], TIMEOUT).await,
        Ok(vec![])
    );
}

#[tokio::test]
async fn calls_from_outside_the_cluster_are_refused_without_effect() {
    let keeper = served(secret("a")).await;
    let clock: Arc<dyn Clock> = Arc::new(SimClock::new(1));
    let fast = SimClock::new(1).machine(Duration::from_secs(400), Rng::new(2));
    let strangers = [
        (peers(secret("b")), "clusterSecret"),
        (peers(None), "clusterSecret"),
        (HttpPeers::new(secret("a"), Arc::new(fast)), "clocks"),
        (HttpPeers::new(None, clock), "is missing"),
    ];
    for (unknown_node, mention) in strangers {
        let forwarded = unknown_node.forward(&keeper.address, vec![new_tx("r1")], TIMEOUT);
        let why = not_reached(forwarded.await);
        assert!(why.contains("403") && why.contains(mention), "{why}");
        not_reached(unknown_node.notify(&keeper.address, &[lane()]).await);
    }
    assert!(!stored(&keeper.world, "r1").await);
}

#[tokio::test]
async fn without_secret_only_loopback_without_keys_is_accepted() {
    let open = served(None).await;
    let answers = peers(None)
        .forward(&open.address, vec![new_tx("r1")], TIMEOUT)
        .await;
    assert!(answers.unwrap()[0].is_ok());
    for (from, status) in [
        (Some("127.0.0.1:9"), 200),
        (Some("[::1]:9"), 200),
        (Some("[::ffff:127.0.0.1]:9"), 200),
        (Some("10.0.0.7:9"), 403),
        (Some("[::ffff:10.0.0.7]:9"), 403),
        (None, 403),
    ] {
        let mut request = internal("[]", "1");
        if let Some(from) = from {
            let from: SocketAddr = from.parse().unwrap();
            request.extensions_mut().insert(ConnectInfo(from));
        }
        assert_eq!(open.world.request(request).await.status, status, "{from:?}");
    }

    let (_, hash) = keys::generate("a").unwrap();
    let mut plan = Plan::new(MemoryChain::new(CHAIN));
    plan.api.auth = Auth::Keys(vec![ApiKey::new("a", &hash, &[Scope::Send]).unwrap()]);
    let with_keys = plan.start().await.serve(socket().await);
    let alone = peers(None);
    let forwarded = alone.forward(&with_keys.address, vec![new_tx("r1")], TIMEOUT);
    let why = not_reached(forwarded.await);
    assert!(why.contains("API keys and no clusterSecret"), "{why}");

    let mut plan = Plan::new(MemoryChain::new(CHAIN));
    plan.api.auth = Auth::Keys(vec![ApiKey::new("a", &hash, &[Scope::Send]).unwrap()]);
    plan.api.cluster_secret = secret("a");
    let both = plan.start().await.serve(socket().await);
    let member = peers(secret("a"));
    let forwarded = member.forward(&both.address, vec![new_tx("r1")], TIMEOUT);
    assert!(forwarded.await.unwrap()[0].is_ok(), "a peer needs no key");
}

#[tokio::test]
async fn page_in_a_browser_on_this_machine_is_not_a_peer() {
    let world = World::new().await;
    let call = |headers: &[(&'static str, &str)]| {
        let mut request = internal(&json!([wire_tx("r1")]).to_string(), "1");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    };
    let node = ("host", "127.0.0.1:8645");
    // The name of a page that was rebound to this node: to the browser, page and node are one site.
    let rebound = ("host", "evil.example:8645");
    for (headers, status, slug) in [
        (&[rebound][..], 421, "foreign-host"),
        (
            &[rebound, ("origin", "http://evil.example:8645")][..],
            421,
            "foreign-host",
        ),
        (
            &[node, ("origin", "https://evil.example")][..],
            403,
            "foreign-page",
        ),
        (&[node, ("origin", "null")][..], 403, "foreign-page"),
        (
            &[node, ("sec-fetch-site", "cross-site")][..],
            403,
            "foreign-page",
        ),
    ] {
        let response = from_loopback(&world, call(headers)).await;
        response.problem(status, slug);
        assert_eq!(response.body["effect"], "none", "{headers:?}");
    }
    assert!(!stored(&world, "r1").await);
    for own in ["127.0.0.1:8645", "[::1]:8645", "localhost:8645"] {
        let response = from_loopback(&world, call(&[("host", own)])).await;
        assert_eq!(response.status, 200, "{own}");
    }
    assert!(stored(&world, "r1").await);
}

/// A call to `forward` as the client makes it, but without a MAC.
fn internal(body: &str, hop: &str) -> Request<Body> {
    Request::post("/internal/v1/forward")
        .header("content-type", "application/json")
        .header("lanekeeper-hop", hop)
        .header("lanekeeper-deadline", "5000")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

async fn from_loopback(world: &World, mut request: Request<Body>) -> ApiResponse {
    let from: SocketAddr = "127.0.0.1:9".parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(from));
    world.request(request).await
}

#[tokio::test]
async fn invalid_call_is_refused_as_a_whole() {
    let world = World::new().await;
    for hop in ["2", "0", "18446744073709551615", "-1", "one", ""] {
        let response = from_loopback(&world, internal("[]", hop)).await;
        let detail = response.problem(400, "invalid-header");
        assert!(detail.contains("Lanekeeper-Hop"), "{detail}");
    }
    let without = |name: &str| {
        let mut request = internal("[]", "1");
        request.headers_mut().remove(name);
        request
    };
    for name in ["lanekeeper-hop", "lanekeeper-deadline"] {
        let response = from_loopback(&world, without(name)).await;
        response.problem(400, "invalid-header");
    }
    let untyped = from_loopback(&world, without("content-type")).await;
    untyped.problem(415, "unsupported-media-type");
    for body in ["", "{}", "7", "[7]", r#"[{"lane":1}]"#, "[[[[["] {
        let response = from_loopback(&world, internal(body, "1")).await;
        assert!(response.problem(400, "invalid-field").contains("version"));
    }
    let one = wire_tx("r1").to_string();
    let many = format!("[{}]", vec![one; 501].join(","));
    let response = from_loopback(&world, internal(&many, "1")).await;
    assert!(response.problem(400, "invalid-field").contains("501 items"));
    let large = format!("[{}]", " ".repeat(8 << 20));
    let response = from_loopback(&world, internal(&large, "1")).await;
    response.problem(413, "body-too-large");
    let read = Request::get("/internal/v1/forward")
        .body(Body::empty())
        .unwrap();
    from_loopback(&world, read)
        .await
        .problem(405, "method-not-allowed");
    assert!(!stored(&world, "r1").await);
}

#[tokio::test]
async fn expired_deadline_reports_the_outcome_of_each_request() {
    let chain = MemoryChain::new(CHAIN);
    let link = Link::new(Rng::new(3), LinkFaults::NONE);
    let silent = RemoteChain::new(chain.clone(), link.clone(), Staleness::NONE);
    let mut plan = Plan::new(chain);
    plan.ports.chains = vec![Arc::new(silent)];
    let keeper = plan.start().await.serve(socket().await);
    let first = keeper.world.create("first", "/api/v1/tx").await;
    assert_eq!(first.status, 202, "the lane is open: {}", first.body);
    // From now on the chain does not answer for days: gas cannot be estimated.
    link.set_faults(LinkFaults::healthy(1_000_000_000));
    let mut estimated = new_tx("slow");
    estimated.payload.gas = None;
    let started = Instant::now();
    let requests = vec![new_tx("quick"), estimated];
    let timeout = Duration::from_secs(60);
    let peers = peers(None);
    let answers = peers.forward(&keeper.address, requests, timeout).await;
    let answers = answers.unwrap();
    assert!(answers[0].is_ok(), "the slow request does not fail it");
    assert_eq!(answers[1], Err(Refusal::OutcomeUnknown));
    assert!(
        started.elapsed() < timeout / 2,
        "the quick one does not wait for the slow one's deadline"
    );
    let mut estimated = new_tx("alone");
    estimated.payload.gas = None;
    let timeout = Duration::from_secs(3); // a tenth of it is reserved for the response
    let started = Instant::now();
    let answers = peers
        .forward(&keeper.address, vec![estimated], timeout)
        .await;
    assert_eq!(answers.unwrap(), [Err(Refusal::OutcomeUnknown)]);
    // Less the time of the request's way, and rounding to milliseconds.
    assert!(started.elapsed() >= Duration::from_millis(2_500));

    let mut late = internal(&json!([wire_tx("late")]).to_string(), "1");
    late.headers_mut()
        .insert("lanekeeper-deadline", "0".parse().unwrap());
    let response = from_loopback(&keeper.world, late).await;
    response.problem(503, "outcome-unknown");
    assert_eq!(response.body["effect"], "unknown");
    assert!(!stored(&keeper.world, "late").await, "it was not processed");
}

/// What a fake node does with every request.
#[derive(Clone)]
enum Fake {
    Says(&'static str, String),
    HangsUp,
    IsSilent,
}

/// A fake node: its address, the number of connections, and the last request's head.
struct FakeNode {
    address: String,
    connections: Arc<AtomicUsize>,
    heads: tokio::sync::mpsc::Receiver<(String, Vec<u8>)>,
}

async fn fake(fake: Fake) -> FakeNode {
    let listener = socket().await;
    let address = address_of(&listener);
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let (seen, heads) = tokio::sync::mpsc::channel(100);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve_fake_connection(stream, fake.clone(), seen.clone()));
        }
    });
    FakeNode {
        address,
        connections,
        heads,
    }
}

async fn serve_fake_connection(
    mut stream: TcpStream,
    fake: Fake,
    seen: tokio::sync::mpsc::Sender<(String, Vec<u8>)>,
) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = text.split_once("\r\n\r\n").filter(|(head, body)| {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.parse::<usize>().unwrap())
            });
            body.len() >= length.unwrap()
        });
        let Some((head, body)) = whole else {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        seen.send((head.to_owned(), body.as_bytes().to_vec()))
            .await
            .unwrap();
        bytes.clear();
        match &fake {
            Fake::Says(status, body) => {
                let length = body.len();
                let response =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
                stream.write_all(response.as_bytes()).await.unwrap();
            }
            Fake::HangsUp => return,
            Fake::IsSilent => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn only_a_refusal_of_the_whole_call_is_without_effect() {
    let statuses = [
        ("302 Found", true),
        ("400 Bad Request", true),
        ("401 Unauthorized", true),
        ("403 Forbidden", true),
        ("404 Not Found", true),
        ("405 Method Not Allowed", true),
        ("413 Payload Too Large", true),
        ("415 Unsupported Media Type", true),
        ("408 Request Timeout", false),
        ("409 Conflict", false),
        ("429 Too Many Requests", false),
        ("500 Internal Server Error", false),
        ("502 Bad Gateway", false),
        ("503 Service Unavailable", false),
        ("504 Gateway Timeout", false),
    ];
    let peers = peers(None);
    for (status, is_refusal) in statuses {
        let node = fake(Fake::Says(status, "<html>a proxy</html>".into())).await;
        let response = peers
            .forward(&node.address, vec![new_tx("r1")], TIMEOUT)
            .await;
        let why = if is_refusal {
            not_reached(response)
        } else {
            lost(response)
        };
        assert!(
            why.contains(&status[..3]) && why.contains("a proxy"),
            "{why}"
        );
    }
    let refusal = r#"{"Err":"Busy"}"#;
    let answers = [
        "".to_owned(),
        "<html>".into(),
        "{}".into(),
        "[]".into(),
        "[1]".into(),
        r#"[{"Ok":{}}]"#.into(),
        format!("[{refusal},{refusal}]"),
        "[".repeat(100_000),
    ];
    for response in answers {
        let node = fake(Fake::Says("200 OK", response.clone())).await;
        lost(
            peers
                .forward(&node.address, vec![new_tx("r1")], TIMEOUT)
                .await,
        );
    }
    let node = fake(Fake::Says("200 OK", format!("[{refusal}]"))).await;
    let busy = peers
        .forward(&node.address, vec![new_tx("r1")], TIMEOUT)
        .await;
    assert_eq!(busy, Ok(vec![Err(Refusal::Busy)]));
}

#[tokio::test]
async fn closed_connection_and_silence_leave_the_outcome_unknown() {
    let peers = peers(None);
    let node = fake(Fake::HangsUp).await;
    lost(
        peers
            .forward(&node.address, vec![new_tx("r1")], TIMEOUT)
            .await,
    );
    let node = fake(Fake::IsSilent).await;
    let started = Instant::now();
    let timeout = Duration::from_millis(300);
    let why = lost(
        peers
            .forward(&node.address, vec![new_tx("r1")], timeout)
            .await,
    );
    assert!(why.contains("in time"), "{why}");
    assert!(started.elapsed() < Duration::from_secs(3));
    lost(peers.notify(&node.address, &[lane()]).await);
}

#[tokio::test]
async fn unreachable_node_is_detected_at_once() {
    let listener = socket().await;
    let address = address_of(&listener);
    drop(listener);
    let peers = peers(None);
    let started = Instant::now();
    not_reached(peers.forward(&address, vec![new_tx("r1")], TIMEOUT).await);
    not_reached(peers.notify(&address, &[lane()]).await);
    assert!(started.elapsed() < Duration::from_secs(1));
    for nonsense in ["", "node-b:8645", "http://", "ftp://127.0.0.1:1"] {
        not_reached(peers.forward(nonsense, vec![new_tx("r1")], TIMEOUT).await);
    }
}

#[tokio::test]
async fn connections_are_reused_and_every_call_has_its_headers() {
    let mut node = fake(Fake::Says("200 OK", r#"[{"Err":"Busy"}]"#.into())).await;
    let peers = peers(secret("a"));
    for _ in 0..10 {
        let answers = peers
            .forward(&node.address, vec![new_tx("r1")], TIMEOUT)
            .await;
        assert_eq!(answers, Ok(vec![Err(Refusal::Busy)]));
    }
    assert_eq!(node.connections.load(Ordering::Relaxed), 1);
    let (head, body) = node.heads.recv().await.unwrap();
    let head = head.to_ascii_lowercase();
    assert!(
        head.starts_with("post /internal/v1/forward http/1.1"),
        "{head}"
    );
    for line in [
        "lanekeeper-hop: 1",
        "lanekeeper-deadline: 4",
        "lanekeeper-cluster: v1 ",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert!(!head.contains(&"a".repeat(32)), "the secret is not sent");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body[0]["request_id"], wire_tx("r1")["request_id"]);
}

#[tokio::test]
async fn recorded_call_cannot_be_changed_or_replayed_with_effect() {
    // An attacker records one call.
    let mut link = fake(Fake::HangsUp).await;
    let peers = peers(secret("a"));
    lost(
        peers
            .forward(&link.address, vec![new_tx("r1")], TIMEOUT)
            .await,
    );
    let (head, body) = link.heads.recv().await.unwrap();
    let mac = head
        .lines()
        .find_map(|line| line.strip_prefix("lanekeeper-cluster: "))
        .unwrap();
    let authenticated = |path: &str, body: &[u8]| {
        Request::post(path)
            .header("content-type", "application/json")
            .header("lanekeeper-hop", "1")
            .header("lanekeeper-deadline", "5000")
            .header("lanekeeper-cluster", mac)
            // A MAC stands for every name.
            .header("host", "node-b.elsewhere.example")
            .body(Body::from(body.to_vec()))
            .unwrap()
    };
    let keeper = served(secret("a")).await;
    let other = json!([wire_tx("r2")]).to_string().into_bytes();
    let changed = keeper
        .world
        .request(authenticated("/internal/v1/forward", &other))
        .await;
    assert!(changed.problem(403, "not-a-peer").contains("body"));
    let elsewhere = keeper
        .world
        .request(authenticated("/internal/v1/notify", &body))
        .await;
    elsewhere.problem(403, "not-a-peer");
    assert!(!stored(&keeper.world, "r1").await && !stored(&keeper.world, "r2").await);
    let (_, foreign) = (
        keeper
            .world
            .request(authenticated("/internal/v1/forward", &body))
            .await,
        keeper
            .world
            .request(authenticated("/internal/v1/forward", &body))
            .await,
    );
    assert_eq!(foreign.body[0]["Ok"]["is_new"], false, "{}", foreign.body);
}
