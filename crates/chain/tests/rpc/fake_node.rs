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
use domain::attempt::OutgoingEnvelope;
use domain::{Address, ChainId, SendOutcome};
use engine::ports::Chain as _;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::reads::block;

pub(crate) const CHAIN: ChainId = ChainId(31_337);
/// Methods that the chain adapter calls in the background.
const UNCOUNTED_METHODS: [&str; 2] = ["eth_chainId", "eth_blockNumber"];

/// The reply to one call.
#[derive(Clone)]
pub(crate) enum FakeReply {
    Result(Value),
    /// The result, after this time.
    Late(Duration, Value),
    Error(i64, &'static str),
    ErrorData(i64, &'static str, Value),
    /// The answer to a batch lacks this call.
    Skip,
    /// The complete HTTP answer.
    Raw(u16, Vec<u8>),
    /// Refused, with a `Retry-After` header.
    RetryAfter(u16, &'static str),
    /// The request is never answered.
    NoAnswer,
    /// The connection ends inside the answer.
    Hangup,
}

impl FakeReply {
    pub(crate) fn raw(status: u16, body: &str) -> Self {
        Self::Raw(status, body.as_bytes().to_vec())
    }
}

type Script = dyn Fn(&str, &Value) -> FakeReply + Send + Sync;

struct Node {
    script: Box<Script>,
    accepts_batches: bool,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    methods: Vec<String>,
    request_sizes: Vec<usize>,
    raws: Vec<String>,
    peers: BTreeSet<SocketAddr>,
    authorizations: BTreeSet<String>,
}

pub(crate) struct FakeNode {
    address: SocketAddr,
    node: Arc<Node>,
}

impl FakeNode {
    /// Returns the right chain id and no height; the script defines everything else.
    pub(crate) async fn start(
        script: impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        Self::start_bare(true, with_chain_id(script)).await
    }

    /// The same, but it accepts no batches.
    pub(crate) async fn start_single(
        script: impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        Self::start_bare(false, with_chain_id(script)).await
    }

    /// Serves the right chain up to a head that the test moves; calls outside the script return null.
    pub(crate) async fn start_at(
        head: &Arc<AtomicU64>,
        script: impl Fn(&str, &Value) -> Option<FakeReply> + Send + Sync + 'static,
    ) -> Self {
        let head = Arc::clone(head);
        Self::start_bare(true, move |method: &str, params: &Value| {
            let number = head.load(Ordering::SeqCst);
            if let Some(reply) = script(method, params) {
                return reply;
            }
            match method {
                "eth_chainId" => FakeReply::Result(json!(format!("{:#x}", CHAIN.0))),
                "eth_blockNumber" => FakeReply::Result(json!(format!("{number:#x}"))),
                "eth_getBlockByNumber" if params[0] == "latest" => FakeReply::Result(block(number)),
                _ => FakeReply::Result(Value::Null),
            }
        })
        .await
    }

    pub(crate) async fn start_bare(
        accepts_batches: bool,
        script: impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        let node = Arc::new(Node {
            script: Box::new(script),
            accepts_batches,
            recorded: Mutex::default(),
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

    /// The methods that were called, without the background methods.
    pub(crate) fn methods(&self) -> Vec<String> {
        let recorded = self.node.recorded.lock().unwrap();
        recorded
            .methods
            .iter()
            .filter(|method| !UNCOUNTED_METHODS.contains(&method.as_str()))
            .cloned()
            .collect()
    }

    /// How often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        let recorded = self.node.recorded.lock().unwrap();
        recorded.methods.iter().filter(|one| *one == method).count()
    }

    /// How many calls each request had, without the background methods.
    pub(crate) fn request_sizes(&self) -> Vec<usize> {
        self.node.recorded.lock().unwrap().request_sizes.clone()
    }

    /// The first parameter of each `eth_sendRawTransaction`, in order of arrival.
    pub(crate) fn raws(&self) -> Vec<String> {
        self.node.recorded.lock().unwrap().raws.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.node.recorded.lock().unwrap().peers.len()
    }

    pub(crate) fn authorizations(&self) -> Vec<String> {
        self.node
            .recorded
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

fn with_chain_id(
    script: impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static,
) -> impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static {
    move |method: &str, params: &Value| match method {
        "eth_chainId" => FakeReply::Result(json!(format!("{:#x}", CHAIN.0))),
        "eth_blockNumber" => FakeReply::Error(-32601, "method not found"),
        _ => script(method, params),
    }
}

/// Polls until the condition holds, for a limited time (by the real clock).
pub(crate) async fn wait_until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = std::time::Instant::now();
    while !holds().await {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{what} did not happen"
        );
        tokio::task::yield_now().await;
    }
}

/// Advances the clock of the runtime.
pub(crate) async fn advance_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A URL without a listener.
pub(crate) async fn unreachable_url() -> EndpointUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    EndpointUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
}

async fn answer(
    State(node): State<Arc<Node>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let calls = request
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![request.clone()]);
    record(&node, peer, &headers, &calls);
    if request.is_array() && !node.accepts_batches {
        let error = json!({ "code": -32600, "message": "no batches here" });
        return axum_json(&json!({ "jsonrpc": "2.0", "id": null, "error": error }));
    }
    let mut answers = Vec::new();
    for call in &calls {
        let mut answer = json!({ "jsonrpc": "2.0", "id": call["id"] });
        match (node.script)(call["method"].as_str().unwrap(), &call["params"]) {
            FakeReply::Result(result) => answer["result"] = result,
            FakeReply::Late(time, result) => {
                tokio::time::sleep(time).await;
                answer["result"] = result;
            }
            FakeReply::Error(code, message) => {
                answer["error"] = json!({ "code": code, "message": message });
            }
            FakeReply::ErrorData(code, message, data) => {
                answer["error"] = json!({ "code": code, "message": message, "data": data });
            }
            FakeReply::Skip => continue,
            FakeReply::Raw(status, body) => {
                return (StatusCode::from_u16(status).unwrap(), body).into_response();
            }
            FakeReply::RetryAfter(status, retry_after) => {
                let status = StatusCode::from_u16(status).unwrap();
                return (status, [(header::RETRY_AFTER, retry_after)], "").into_response();
            }
            FakeReply::NoAnswer => std::future::pending().await,
            FakeReply::Hangup => {
                let broken = stream::iter([Ok("{"), Err(std::io::Error::other("hung up"))]);
                return Body::from_stream(broken).into_response();
            }
        }
        answers.push(answer);
    }
    // Any order is allowed; the reverse one is the hardest.
    answers.reverse();
    if request.is_array() {
        axum_json(&json!(answers))
    } else {
        axum_json(&answers[0])
    }
}

fn record(node: &Node, peer: SocketAddr, headers: &HeaderMap, calls: &[Value]) {
    let mut recorded = node.recorded.lock().unwrap();
    recorded.peers.insert(peer);
    for call in calls {
        let method = call["method"].as_str().unwrap().to_owned();
        if method == "eth_sendRawTransaction" {
            recorded
                .raws
                .push(call["params"][0].as_str().unwrap().to_owned());
        }
        recorded.methods.push(method);
    }
    let is_uncounted = |call: &Value| UNCOUNTED_METHODS.contains(&call["method"].as_str().unwrap());
    if !calls.iter().all(is_uncounted) {
        recorded.request_sizes.push(calls.len());
    }
    if let Some(authorization) = headers.get(header::AUTHORIZATION) {
        recorded
            .authorizations
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

/// Sends of one account without a limit that matters.
pub(crate) trait SendAll {
    async fn send_all(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome>;
}

impl SendAll for RpcChain {
    async fn send_all(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let trust = || Duration::from_secs(60);
        self.send(Address::repeat_byte(0xac), outgoing, &trust)
            .await
    }
}
