//! The table of all calls, and the state that they share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use browser_guard::BrowserGuard;
use domain::MonotonicTime;
use engine::node::{NodeHandle, Readiness};
use engine::ports::{Clock, NonceReservations};
use tokio::sync::{Mutex, Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::keys::Scope;
use crate::access::{AccessRule, Auth};
use crate::calls::{events, lanes, nonces, operations, stream, tx};
use crate::middleware;
use crate::peers::{self, ClusterSecret};
use crate::serve::wait_closed;

/// For how long a check of the node's parts is shown by `/readyz`.
const READINESS_AGE_MAX: Duration = Duration::from_secs(1);

/// What the API needs besides the node.
#[derive(Clone)]
pub struct ApiConfig {
    /// The largest body, in bytes.
    pub max_body: usize,
    /// The most callers that wait for a tx at once.
    pub max_waiters: usize,
    /// The most open event streams.
    pub max_streams: usize,
    /// How callers authenticate.
    pub auth: Auth,
    /// What browsers may send.
    pub browser_guard: BrowserGuard,
    /// Authenticates calls between the nodes of the cluster.
    pub cluster_secret: Option<ClusterSecret>,
    /// Renders the body of `/metrics`, so that this crate does not depend on the exporter.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// The nonce component; `None` without an external signer.
    pub reservations: Option<Arc<dyn NonceReservations>>,
    /// The node's source of time and randomness.
    pub clock: Arc<dyn Clock>,
    /// Becomes true (or loses its sender) when the node stops: streams end and waiting calls return.
    pub closing: watch::Receiver<bool>,
}

impl ApiConfig {
    /// The default of `http.maxBody`.
    pub const MAX_BODY: usize = 1024 * 1024;
    /// The default of `http.maxWaiters`.
    pub const MAX_WAITERS: usize = 10_000;
    /// The default number of event streams.
    pub const MAX_STREAMS: usize = 256;

    /// An API without authentication, reservations and metrics, with the default limits.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, closing: watch::Receiver<bool>) -> Self {
        Self {
            max_body: Self::MAX_BODY,
            max_waiters: Self::MAX_WAITERS,
            max_streams: Self::MAX_STREAMS,
            auth: Auth::None,
            browser_guard: BrowserGuard::default(),
            cluster_secret: None,
            metrics: Arc::new(String::new),
            reservations: None,
            clock,
            closing,
        }
    }
}

/// Builds the HTTP router of a node.
pub fn router(node: NodeHandle, config: ApiConfig) -> Router {
    let api = Arc::new(Api::new(node, config));
    let mut router = Router::new();
    for (prefix, calls) in call_table() {
        for (path, need, call) in calls {
            router = router.route(&format!("{prefix}{path}"), need.guard(&api, call));
        }
    }
    let allowed_origins = middleware::allowed_origins(&api.config.browser_guard);
    let router = router
        .fallback(middleware::unknown_path)
        .method_not_allowed_fallback(middleware::wrong_method)
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(from_fn_with_state(
            Arc::clone(&api),
            middleware::identify_request,
        ))
        .with_state(api);
    match allowed_origins {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// The path below a prefix, what its caller needs, and the call.
type Call = (&'static str, AccessRule, MethodRouter<Arc<Api>>);

/// Every call by the prefix of its path, with its access rule: a call cannot be added without one.
fn call_table() -> [(&'static str, Vec<Call>); 3] {
    const SEND: AccessRule = AccessRule::AnyOf(&[Scope::Send]);
    const READ: AccessRule = AccessRule::AnyOf(&[Scope::Read]);
    const OPERATE: AccessRule = AccessRule::AnyOf(&[Scope::Operate]);
    // A scraper's key gives no access to txs if it leaks; a key with `read` may read the metrics too.
    const METRICS: AccessRule = AccessRule::AnyOf(&[Scope::Metrics, Scope::Read]);
    const PUBLIC: AccessRule = AccessRule::Public;
    const CLUSTER: AccessRule = AccessRule::Cluster;
    let api = vec![
        ("/tx", SEND, post(tx::create)),
        ("/tx", READ, get(tx::list)),
        ("/tx/batch", SEND, post(tx::create_many)),
        ("/tx/by-request", READ, get(tx::by_request)),
        ("/tx/by-hash/{hash}", READ, get(tx::by_hash)),
        ("/tx/{txId}", READ, get(tx::by_id)),
        ("/tx/{txId}/events", READ, get(events::list_of_tx)),
        ("/events", READ, get(events::list)),
        ("/events/stream", READ, get(stream::stream)),
        ("/lanes", READ, get(lanes::list)),
        ("/nodes", READ, get(operations::nodes)),
    ];
    let lane = vec![
        ("", READ, get(lanes::get_lane)),
        ("/resume", OPERATE, post(lanes::resume)),
        ("/nonces", SEND, post(nonces::allocate)),
        ("/nonces", READ, get(nonces::list)),
        ("/nonces/{nonce}/submitted", SEND, post(nonces::submitted)),
        ("/nonces/{nonce}/used", SEND, post(nonces::used)),
        ("/nonces/{nonce}/recyclable", SEND, post(nonces::recyclable)),
    ];
    let other = vec![
        ("/healthz", PUBLIC, get(operations::health)),
        ("/readyz", PUBLIC, get(operations::ready)),
        ("/metrics", METRICS, get(operations::metrics)),
        (peers::FORWARD_PATH, CLUSTER, post(peers::forward)),
        (peers::MARK_PATH, CLUSTER, post(peers::mark)),
        (peers::NOTIFY_PATH, CLUSTER, post(peers::notify)),
    ];
    [
        ("/api/v1", api),
        ("/api/v1/lanes/{chainId}/{signer}", lane),
        ("", other),
    ]
}

/// The state that every call shares.
pub(crate) struct Api {
    pub(crate) node: NodeHandle,
    pub(crate) config: ApiConfig,
    /// The node's name as a header value.
    pub(crate) node_header: HeaderValue,
    /// Request ids for requests without one: a random prefix per process, then a counter.
    pub(crate) request_prefix: u64,
    pub(crate) request_count: AtomicU64,
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
    /// The last check of the node's parts, and when it was made.
    readiness: Mutex<Option<(MonotonicTime, Readiness)>>,
}

impl Api {
    fn new(node: NodeHandle, config: ApiConfig) -> Self {
        let node_header = HeaderValue::from_str(&node.name().0)
            // The configuration refuses such names; this is only a fallback.
            .unwrap_or(HeaderValue::from_static("unprintable"));
        let random = config.clock.random().to_be_bytes();
        let [a, b, c, d, e, f, g, h, ..] = random;
        let permits = |max: usize| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self {
            node_header,
            request_prefix: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            request_count: AtomicU64::new(0),
            waiters: permits(config.max_waiters),
            streams: permits(config.max_streams),
            readiness: Mutex::new(None),
            node,
            config,
        }
    }

    /// Whether this node should get requests. However many ask, its parts are checked once in a while; that it
    /// drains shows at once.
    pub(crate) async fn readiness(&self) -> Readiness {
        let clock = &self.config.clock;
        let mut last = self.readiness.lock().await;
        let is_fresh = |at: MonotonicTime| clock.monotonic().since(at) < READINESS_AGE_MAX;
        let readiness = match &*last {
            Some((at, readiness)) if is_fresh(*at) => readiness.clone(),
            Some(_) | None => {
                let readiness = self.node.readiness().await;
                // Stamped when it is known: it also answers those who waited while the store was slow.
                *last = Some((clock.monotonic(), readiness.clone()));
                readiness
            }
        };
        Readiness {
            draining: self.node.is_draining(),
            ..readiness
        }
    }

    /// Resolves when the node stops.
    pub(crate) async fn wait_closing(&self) {
        wait_closed(&mut self.config.closing.clone()).await;
    }
}
