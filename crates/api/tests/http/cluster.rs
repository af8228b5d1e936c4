//! Two nodes, one store, and real sockets between them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::Auth;
use api::keys::{self, ApiKey, Scope};
use api::peers::{ClusterSecret, HttpPeers};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use domain::{LaneKey, NodeName, Reservation};
use engine::node::{AcceptedTx, NewTx, NonKeeper, Origin, Refusal};
use engine::ports::{PeerError, Peers};
use engine::reservations::{MarkError, MarkRequest};
use serde_json::json;
use sim::chain::MemoryChain;

use crate::world::{
    ApiResponse, CHAIN, Plan, RESERVABLE, SIGNER, Served, address_of, socket, transfer,
};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Forwards requests, and records their origins.
struct Remembering {
    peers: HttpPeers,
    origins: Arc<Mutex<Vec<Origin>>>,
}

#[async_trait]
impl Peers for Remembering {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        timeout: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        let origins = requests.iter().map(|request| request.origin.clone());
        self.origins.lock().unwrap().extend(origins);
        self.peers.forward(address, requests, timeout).await
    }

    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        timeout: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        self.peers.mark(address, call, timeout).await
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        self.peers.notify(address, lanes).await
    }
}

/// Node `a`, which keeps the lane, and node `b`, which was started after it.
struct Pair {
    a: Served,
    b: Served,
    /// A key that both nodes accept.
    key: String,
    /// The origins of the requests that `b` has forwarded.
    origins: Arc<Mutex<Vec<Origin>>>,
}

async fn pair(non_keeper: NonKeeper) -> Pair {
    let (key, hash) = keys::generate("payouts").unwrap();
    let known = ApiKey::new("payouts", &hash, &[Scope::Send, Scope::Read]).unwrap();
    let secret = ClusterSecret::parse(&"s".repeat(32)).unwrap();
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let origins = Arc::new(Mutex::new(Vec::new()));
    let first = Plan::new(chain.clone());
    let (store, clock) = (first.ports.store.clone(), first.ports.clock.clone());
    let node = async |name: &str, mut plan: Plan| {
        let listener = socket().await;
        plan.node.name = NodeName(name.into());
        plan.node.advertise = Some(address_of(&listener));
        plan.node.non_keeper = non_keeper;
        plan.ports.store = store.clone();
        plan.ports.clock = clock.clone();
        plan.ports.peers = Arc::new(Remembering {
            peers: HttpPeers::new(Some(secret.clone()), clock.clone()),
            origins: Arc::clone(&origins),
        });
        plan.api.clock = clock.clone();
        plan.api.auth = Auth::Keys(vec![known.clone()]);
        plan.api.cluster_secret = Some(secret.clone());
        plan.reservations().start().await.serve(listener)
    };
    let a = node("a", first).await;
    let mined = request_as(&a, &key, "POST", "/api/v1/tx?wait=mined", "first").await;
    assert_eq!(mined.body["receipt"]["status"], "success", "{}", mined.body);
    let b = node("b", Plan::new(chain)).await;
    Pair { a, b, key, origins }
}

async fn request_as(
    node: &Served,
    key: &str,
    method: &str,
    path: &str,
    request_id: &str,
) -> ApiResponse {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .header("x-request-id", format!("trace-of-{request_id}"));
    let request = match request_id {
        "traced" => request.header("traceparent", TRACE),
        _ => request,
    };
    let body = Body::from(transfer(request_id).to_string());
    node.world.request(request.body(body).unwrap()).await
}

#[tokio::test]
async fn any_node_accepts_and_keeper_learns_the_origin() {
    let pair = pair(NonKeeper::Forward).await;
    let made = request_as(&pair.b, &pair.key, "POST", "/api/v1/tx", "r1").await;
    assert_eq!(made.status, 202, "{}", made.body);
    assert_eq!(
        made.headers["lanekeeper-node"], "b",
        "the responding node, not the keeper"
    );
    assert_eq!(made.headers["x-request-id"], "trace-of-r1");
    assert_eq!(
        made.body["nonce"], 1,
        "the keeper allocated a nonce at once"
    );
    let traced = request_as(&pair.b, &pair.key, "POST", "/api/v1/tx", "traced").await;
    assert_eq!(traced.body["nonce"], 2);
    let again = request_as(&pair.a, &pair.key, "POST", "/api/v1/tx", "r1").await;
    assert_eq!(
        (again.status.as_u16(), &again.body["txId"]),
        (200, &made.body["txId"])
    );
    let origin = |trace: &str| Origin {
        caller: Some("payouts".into()),
        trace: Some(trace.into()),
    };
    assert_eq!(
        *pair.origins.lock().unwrap(),
        [origin("trace-of-r1"), origin(TRACE)]
    );
}

#[tokio::test]
async fn any_node_allocates_nonces_and_accepts_marks() {
    let pair = pair(NonKeeper::Forward).await;
    let nonces = format!("/api/v1/lanes/31337/{RESERVABLE:#x}/nonces");
    let mark_nonce = async |node: &Served, path: &str, body: serde_json::Value| {
        let request = Request::post(format!("{nonces}{path}"))
            .header("authorization", format!("Bearer {}", pair.key))
            .header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        node.world.request(request).await
    };
    let nothing = || json!({});
    let mut holders = Vec::new();
    for (node, nonce) in [(&pair.a, 0), (&pair.b, 1), (&pair.a, 2)] {
        let allocated = mark_nonce(node, "", nothing()).await;
        assert_eq!(allocated.status, 201, "{}", allocated.body);
        assert_eq!(allocated.body["nonce"], nonce);
        holders.push(allocated.body["holder"].clone());
    }
    // Both nodes accept and refuse marks alike, whichever is the keeper.
    for (node, nonce) in [(&pair.b, 0), (&pair.a, 1)] {
        let tx_hash = format!("0x{}", (nonce + 1).to_string().repeat(64));
        let body = json!({"holder": holders[nonce], "txHash": tx_hash});
        let path = format!("/{nonce}/submitted");
        let marked = mark_nonce(node, &path, body.clone()).await;
        assert_eq!(
            (marked.status.as_u16(), &marked.body["txHash"]),
            (200, &json!(tx_hash))
        );
        let other = json!({"holder": holders[2], "txHash": tx_hash});
        mark_nonce(node, &path, other)
            .await
            .problem(409, "nonce-refused");
    }
    let release = json!({"holder": holders[2], "reason": "not needed"});
    let released = mark_nonce(&pair.b, "/2/recyclable", release).await;
    assert_eq!(released.body["state"], "RECYCLABLE", "{}", released.body);
    for node in [&pair.a, &pair.b] {
        let listed = request_as(node, &pair.key, "GET", &nonces, "r").await.body;
        assert_eq!(listed["nextNonce"], 3, "{listed}");
        let states: Vec<_> = listed["nonces"].as_array().unwrap().iter().collect();
        let states: Vec<_> = states.iter().map(|one| &one["state"]).collect();
        assert_eq!(states, ["RESERVED", "RESERVED", "RECYCLABLE"], "{listed}");
    }
}

#[tokio::test]
async fn both_nodes_show_keeper_and_members() {
    let pair = pair(NonKeeper::Forward).await;
    let lane = format!("/api/v1/lanes/31337/{SIGNER:#x}");
    for (node, other) in [(&pair.a, "b"), (&pair.b, "a")] {
        let lane = request_as(node, &pair.key, "GET", &lane, "r").await.body;
        assert_eq!(lane["keeper"]["node"], "a", "{lane}");
        assert_eq!(lane["keeper"]["token"], 1);
        assert!(lane["keeper"]["expiresAt"].is_string());
        let nodes = request_as(node, &pair.key, "GET", "/api/v1/nodes", "r")
            .await
            .body;
        let nodes = nodes["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2);
        for listed in nodes {
            assert_eq!(
                listed["thisNode"],
                json!(listed["node"] != other),
                "{listed}"
            );
            assert_eq!(listed["draining"], false);
            let expected = if listed["node"] == "a" {
                &pair.a
            } else {
                &pair.b
            };
            assert_eq!(listed["advertise"], expected.address);
            assert!(listed["startedAt"].is_string() && listed["seenAt"].is_string());
        }
    }
}

#[tokio::test]
async fn non_keeper_in_reject_mode_names_keeper_and_retry_time() {
    let pair = pair(NonKeeper::Reject).await;
    let refused = request_as(&pair.b, &pair.key, "POST", "/api/v1/tx", "r1").await;
    assert!(refused.problem(409, "not-keeper").contains("node a"));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(
        (&refused.body["retryable"], &refused.body["effect"]),
        (&json!(true), &json!("none"))
    );
    let known = request_as(&pair.b, &pair.key, "POST", "/api/v1/tx", "first").await;
    assert_eq!(
        known.status, 200,
        "a known request is answered: {}",
        known.body
    );
    assert!(pair.origins.lock().unwrap().is_empty());
}
