//! A node that misbehaves on demand.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::ChainId;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::reads::block;

pub(crate) const CHAIN: ChainId = ChainId(31_337);
/// What is asked of endpoints beside the work.
const ASIDE: [&str; 2] = ["eth_chainId", "eth_blockNumber"];

/// What the node says to one call.
pub(crate) enum Say {
    Result(Value),
    Error(i64, &'static str),
    ErrorData(i64, &'static str, Value),
    /// Nothing for this call, in a batch.
    Skip,
    /// The whole answer, whatever was asked.
    Raw(u16, Vec<u8>),
    /// Turned away, with a `Retry-After`.
    Later(u16, &'static str),
    /// No answer in this life.
    Never,
    /// The connection ends inside the answer.
    Hangup,
}

impl Say {
    pub(crate) fn raw(status: u16, body: &str) -> Self {
        Self::Raw(status, body.as_bytes().to_vec())
    }
}

type Script = dyn Fn(&str, &Value) -> Say + Send + Sync;

struct Node {
    script: Box<Script>,
    takes_batches: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    methods: Vec<String>,
    request_sizes: Vec<usize>,
    raws: Vec<String>,
    peers: BTreeSet<SocketAddr>,
    authorizations: BTreeSet<String>,
}

pub(crate) struct Fake {
    address: SocketAddr,
    node: Arc<Node>,
}

impl Fake {
    /// Serves our chain and does not tell its height; everything else is up to the script.
    pub(crate) async fn start(
        script: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
    ) -> Self {
        Self::start_bare(true, of_our_chain(script)).await
    }

    /// The same, but it takes no batches.
    pub(crate) async fn start_single(
        script: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
    ) -> Self {
        Self::start_bare(false, of_our_chain(script)).await
    }

    /// Serves our chain up to a head that the test moves, with empty pages where the script has
    /// nothing to say.
    pub(crate) async fn start_at(
        head: &Arc<AtomicU64>,
        script: impl Fn(&str, &Value) -> Option<Say> + Send + Sync + 'static,
    ) -> Self {
        let head = Arc::clone(head);
        Self::start_bare(true, move |method: &str, params: &Value| {
            let number = head.load(Ordering::SeqCst);
            if let Some(say) = script(method, params) {
                return say;
            }
            match method {
                "eth_chainId" => Say::Result(json!(format!("{:#x}", CHAIN.0))),
                "eth_blockNumber" => Say::Result(json!(format!("{number:#x}"))),
                "eth_getBlockByNumber" if params[0] == "latest" => Say::Result(block(number)),
                _ => Say::Result(Value::Null),
            }
        })
        .await
    }

    pub(crate) async fn start_bare(
        takes_batches: bool,
        script: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
    ) -> Self {
        let node = Arc::new(Node {
            script: Box::new(script),
            takes_batches,
            seen: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/", post(answer))
            .route("/{*path}", post(answer))
            .with_state(node.clone())
            .into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, node }
    }

    pub(crate) fn url(&self) -> EndpointUrl {
        EndpointUrl::parse(&format!("http://{}", self.address)).unwrap()
    }

    pub(crate) fn url_with(&self, user: &str, path: &str) -> EndpointUrl {
        EndpointUrl::parse(&format!("http://{user}@{}{path}", self.address)).unwrap()
    }

    pub(crate) fn chain(&self) -> RpcChain {
        chain_of(vec![self.url()])
    }

    /// The methods that were called, without the questions for chain and height.
    pub(crate) fn methods(&self) -> Vec<String> {
        let seen = self.node.seen.lock().unwrap();
        seen.methods
            .iter()
            .filter(|method| !ASIDE.contains(&method.as_str()))
            .cloned()
            .collect()
    }

    /// How often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        let seen = self.node.seen.lock().unwrap();
        seen.methods.iter().filter(|one| *one == method).count()
    }

    /// How many calls each request had, without the questions for chain and height.
    pub(crate) fn request_sizes(&self) -> Vec<usize> {
        self.node.seen.lock().unwrap().request_sizes.clone()
    }

    /// The first parameter of each `eth_sendRawTransaction`, in order of arrival.
    pub(crate) fn raws(&self) -> Vec<String> {
        self.node.seen.lock().unwrap().raws.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.node.seen.lock().unwrap().peers.len()
    }

    pub(crate) fn authorizations(&self) -> Vec<String> {
        self.node
            .seen
            .lock()
            .unwrap()
            .authorizations
            .iter()
            .cloned()
            .collect()
    }
}

pub(crate) fn chain_of(endpoints: Vec<EndpointUrl>) -> RpcChain {
    chain_with_timeout(endpoints, Duration::from_secs(20))
}

pub(crate) fn chain_with_timeout(
    endpoints: Vec<EndpointUrl>,
    request_timeout: Duration,
) -> RpcChain {
    RpcChain::new(RpcChainConfig {
        request_timeout,
        ..RpcChainConfig::new(CHAIN, endpoints)
    })
    .unwrap()
}

fn of_our_chain(
    script: impl Fn(&str, &Value) -> Say + Send + Sync + 'static,
) -> impl Fn(&str, &Value) -> Say + Send + Sync + 'static {
    move |method: &str, params: &Value| match method {
        "eth_chainId" => Say::Result(json!(format!("{:#x}", CHAIN.0))),
        "eth_blockNumber" => Say::Error(-32601, "method not found"),
        _ => script(method, params),
    }
}

/// Polls until something holds, for a limited time (by a clock that nobody moves).
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let began = std::time::Instant::now();
    while !holds().await {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{what} did not happen"
        );
        tokio::task::yield_now().await;
    }
}

/// Lets time pass for everybody at once.
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// An address at which nobody listens.
pub(crate) async fn nobody() -> EndpointUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    EndpointUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
}

async fn answer(
    State(node): State<Arc<Node>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let calls = asked
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![asked.clone()]);
    note(&node, peer, &headers, &calls);
    if asked.is_array() && !node.takes_batches {
        let error = json!({ "code": -32600, "message": "no batches here" });
        return axum_json(&json!({ "jsonrpc": "2.0", "id": null, "error": error }));
    }
    let mut answers = Vec::new();
    for call in &calls {
        let mut answer = json!({ "jsonrpc": "2.0", "id": call["id"] });
        match (node.script)(call["method"].as_str().unwrap(), &call["params"]) {
            Say::Result(result) => answer["result"] = result,
            Say::Error(code, message) => {
                answer["error"] = json!({ "code": code, "message": message });
            }
            Say::ErrorData(code, message, data) => {
                answer["error"] = json!({ "code": code, "message": message, "data": data });
            }
            Say::Skip => continue,
            Say::Raw(status, body) => {
                return (StatusCode::from_u16(status).unwrap(), body).into_response();
            }
            Say::Later(status, retry_after) => {
                let status = StatusCode::from_u16(status).unwrap();
                return (status, [(header::RETRY_AFTER, retry_after)], "").into_response();
            }
            Say::Never => std::future::pending().await,
            Say::Hangup => {
                let broken = stream::iter([Ok("{"), Err(std::io::Error::other("hung up"))]);
                return Body::from_stream(broken).into_response();
            }
        }
        answers.push(answer);
    }
    // Any order is allowed, so take the most annoying one.
    answers.reverse();
    if asked.is_array() {
        axum_json(&json!(answers))
    } else {
        axum_json(&answers[0])
    }
}

fn note(node: &Node, peer: SocketAddr, headers: &HeaderMap, calls: &[Value]) {
    let mut seen = node.seen.lock().unwrap();
    seen.peers.insert(peer);
    for call in calls {
        let method = call["method"].as_str().unwrap().to_owned();
        if method == "eth_sendRawTransaction" {
            seen.raws
                .push(call["params"][0].as_str().unwrap().to_owned());
        }
        seen.methods.push(method);
    }
    let is_aside = |call: &Value| ASIDE.contains(&call["method"].as_str().unwrap());
    if !calls.iter().all(is_aside) {
        seen.request_sizes.push(calls.len());
    }
    if let Some(authorization) = headers.get(header::AUTHORIZATION) {
        seen.authorizations
            .insert(authorization.to_str().unwrap().to_owned());
    }
}

fn axum_json(value: &Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        value.to_string(),
    )
        .into_response()
}
