//! All calls on one screen.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::http::HeaderValue;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use engine::node::NodeHandle;
use engine::ports::{Clock, NonceReservations};
use tokio::sync::{Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::keys::Scope;
use crate::access::{Auth, Need};
use crate::calls::{events, lanes, nonces, operations, stream, tx};
use crate::identify;
use crate::peers::{self, ClusterSecret};
use crate::serve::closed;

/// What the door needs besides the node.
#[derive(Clone)]
pub struct ApiConfig {
    /// The largest body, in bytes.
    pub max_body: usize,
    /// How many callers may wait for a tx at once.
    pub max_waiters: usize,
    /// How many event streams may be open at once.
    pub max_streams: usize,
    /// Whom the node serves.
    pub auth: Auth,
    /// What the nodes of the cluster know each other by.
    pub cluster_secret: Option<ClusterSecret>,
    /// Gives the body of `/metrics`, so that this room need not know the exporter.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Lends nonces; `None` where no account does.
    pub lender: Option<Arc<dyn NonceReservations>>,
    /// The node's source of time and chance.
    pub clock: Arc<dyn Clock>,
    /// Becomes true (or loses its sender) when the node stops: streams end and waiters are answered.
    pub closing: watch::Receiver<bool>,
}

impl ApiConfig {
    /// The default of `http.maxBody`.
    pub const MAX_BODY: usize = 1024 * 1024;
    /// The default of `http.maxWaiters`.
    pub const MAX_WAITERS: usize = 10_000;
    /// The default number of event streams.
    pub const MAX_STREAMS: usize = 256;
}

/// The HTTP face of a node.
pub fn router(node: NodeHandle, config: ApiConfig) -> Router {
    let api = Arc::new(Api::new(node, config));
    let mut router = Router::new();
    for (path, need, call) in calls() {
        router = router.route(path, need.before(&api, call));
    }
    router
        .fallback(identify::unknown_path)
        .method_not_allowed_fallback(identify::wrong_method)
        .layer(CatchPanicLayer::custom(identify::panicked))
        .layer(from_fn_with_state(Arc::clone(&api), identify::identify))
        .with_state(api)
}

/// Every call, with what it asks of its caller: there is no call without an entry.
fn calls() -> [(&'static str, Need, MethodRouter<Arc<Api>>); 24] {
    const SEND: Need = Need::AnyOf(&[Scope::Send]);
    const READ: Need = Need::AnyOf(&[Scope::Read]);
    const OPERATE: Need = Need::AnyOf(&[Scope::Operate]);
    // A scraper's key shows no tx to whoever finds it; who may read everything may read this too.
    const METRICS: Need = Need::AnyOf(&[Scope::Metrics, Scope::Read]);
    [
        ("/api/v1/tx", SEND, post(tx::create)),
        ("/api/v1/tx", READ, get(tx::list)),
        ("/api/v1/tx/batch", SEND, post(tx::create_many)),
        ("/api/v1/tx/by-request", READ, get(tx::by_request)),
        ("/api/v1/tx/by-hash/{hash}", READ, get(tx::by_hash)),
        ("/api/v1/tx/{txId}", READ, get(tx::by_id)),
        ("/api/v1/tx/{txId}/events", READ, get(events::of_tx)),
        ("/api/v1/events", READ, get(events::list)),
        ("/api/v1/events/stream", READ, get(stream::stream)),
        ("/api/v1/lanes", READ, get(lanes::list)),
        ("/api/v1/lanes/{chainId}/{signer}", READ, get(lanes::one)),
        (
            "/api/v1/lanes/{chainId}/{signer}/resume",
            OPERATE,
            post(lanes::resume),
        ),
        (
            "/api/v1/lanes/{chainId}/{signer}/nonces",
            SEND,
            post(nonces::allocate),
        ),
        (
            "/api/v1/lanes/{chainId}/{signer}/nonces",
            READ,
            get(nonces::list),
        ),
        (
            "/api/v1/lanes/{chainId}/{signer}/nonces/{nonce}/submitted",
            SEND,
            post(nonces::submitted),
        ),
        (
            "/api/v1/lanes/{chainId}/{signer}/nonces/{nonce}/used",
            SEND,
            post(nonces::used),
        ),
        (
            "/api/v1/lanes/{chainId}/{signer}/nonces/{nonce}/recyclable",
            SEND,
            post(nonces::recyclable),
        ),
        ("/api/v1/nodes", READ, get(operations::nodes)),
        ("/healthz", Need::Nothing, get(operations::health)),
        ("/readyz", Need::Nothing, get(operations::ready)),
        ("/metrics", METRICS, get(operations::metrics)),
        (peers::FORWARD_PATH, Need::Cluster, post(peers::forward)),
        (peers::MARK_PATH, Need::Cluster, post(peers::mark)),
        (peers::RING_PATH, Need::Cluster, post(peers::notify)),
    ]
}

/// What every call can reach.
pub(crate) struct Api {
    pub(crate) node: NodeHandle,
    pub(crate) config: ApiConfig,
    /// The node's name, ready to be sent.
    pub(crate) node_header: HeaderValue,
    /// Names for requests that bring none: random per process, then counted.
    pub(crate) request_prefix: u64,
    pub(crate) request_count: AtomicU64,
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
}

impl Api {
    fn new(node: NodeHandle, config: ApiConfig) -> Self {
        let node_header = HeaderValue::from_str(&node.name().0)
            // The configuration refuses such names; a header is no reason to refuse service.
            .unwrap_or(HeaderValue::from_static("unprintable"));
        let random = config.clock.random().to_be_bytes();
        let [a, b, c, d, e, f, g, h, ..] = random;
        Self {
            node_header,
            request_prefix: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            request_count: AtomicU64::new(0),
            waiters: Arc::new(Semaphore::new(
                config.max_waiters.min(Semaphore::MAX_PERMITS),
            )),
            streams: Arc::new(Semaphore::new(
                config.max_streams.min(Semaphore::MAX_PERMITS),
            )),
            node,
            config,
        }
    }

    /// Resolves when the node stops.
    pub(crate) async fn closing(&self) {
        closed(&mut self.config.closing.clone()).await;
    }
}
