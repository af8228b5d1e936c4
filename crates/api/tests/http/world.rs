//! A node with its API, and a client.

use std::sync::Arc;
use std::time::Duration;

use api::ApiConfig;
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::HOST;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use domain::lane::Finality;
use domain::lane::reservations::ReservationTerms;
use domain::window::Release;
use domain::{Address, ChainId, Holder, LaneKey, LaneRules, Mark, NodeName, Nonce, Reservation};
use engine::node::{AcceptedTx, ChainRules, NewTx, Node, NodeConfig, NodeHandle, Ports, Refusal};
use engine::ports::{
    Chain, Clock, LaneReservations, NonceReservations, PeerError, Peers, ReservationError,
};
use engine::reservations::{MarkError, MarkRequest};
use engine::tasks::Tasks;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use sim::chain::{MemoryChain, MemorySigner};
use sim::clock::SimClock;
use sim::store::MemoryStore;
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

pub(crate) const CHAIN: ChainId = ChainId(31_337);
pub(crate) const SIGNER: Address = Address::repeat_byte(0x11);
pub(crate) const OTHER_SIGNER: Address = Address::repeat_byte(0x22);
pub(crate) const TO: Address = Address::repeat_byte(0x33);
/// An external signer's account, whose nonces are reserved.
pub(crate) const RESERVABLE: Address = Address::repeat_byte(0x44);

pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) chain: MemoryChain,
    pub(crate) router: Router,
    pub(crate) closing: watch::Sender<bool>,
}

/// A response with its whole body.
pub(crate) struct ApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// The parts of a node and its API, before they are started.
pub(crate) struct Plan {
    pub(crate) ports: Ports,
    pub(crate) node: NodeConfig,
    pub(crate) api: ApiConfig,
    chain: MemoryChain,
    closing: watch::Sender<bool>,
}

impl Plan {
    /// A node `a` without peers, on this chain.
    pub(crate) fn new(chain: MemoryChain) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SimClock::new(7));
        let chains: Vec<Arc<dyn Chain>> = vec![Arc::new(chain.clone())];
        let ports = Ports {
            store: Arc::new(MemoryStore::new(Arc::clone(&clock))),
            chains,
            signer: Arc::new(MemorySigner::new(vec![SIGNER, OTHER_SIGNER])),
            clock: Arc::clone(&clock),
            peers: Arc::new(NoPeers),
            witness: None,
        };
        let (closing, closed) = watch::channel(false);
        let api = ApiConfig {
            max_waiters: 10,
            max_streams: 2,
            metrics: Arc::new(|| "lanekeeper_up 1\n".to_owned()),
            ..ApiConfig::new(clock, closed)
        };
        Self {
            ports,
            node: node_config(),
            api,
            chain,
            closing,
        }
    }

    /// Adds an account whose nonces are reservable.
    pub(crate) fn reservations(mut self) -> Self {
        self.node.reserved_accounts.accounts = vec![(RESERVABLE, Vec::new())];
        self
    }

    pub(crate) async fn start(mut self) -> World {
        let has_reservations = !self.node.reserved_accounts.accounts.is_empty();
        let clock = Arc::clone(&self.ports.clock);
        let node = Node::start(self.ports, self.node, Tasks::new())
            .await
            .unwrap();
        if has_reservations {
            let node = node.handle();
            self.api.reservations = Some(Arc::new(NodeReservations { node, clock }));
        }
        let router = api::router(node.handle(), self.api);
        World {
            node,
            chain: self.chain,
            router,
            closing: self.closing,
        }
    }
}

/// Reserves nonces through the lane's keeper (scheme `lane`).
struct NodeReservations {
    node: NodeHandle,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl NonceReservations for NodeReservations {
    async fn allocate(&self, lane: LaneKey) -> Result<Reservation, ReservationError> {
        let terms = ReservationTerms {
            timeout: Duration::from_secs(60),
            at_least: Nonce(0),
        };
        let holder = Holder(Uuid::from_u128(self.clock.random()));
        self.node.reserve_nonce(lane, holder, terms).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let call = MarkRequest {
            lane,
            nonce,
            holder,
            mark,
        };
        self.node.mark(call).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.node.list_reservations(lane).await
    }
}

/// A node that listens on a socket.
pub(crate) struct Served {
    pub(crate) world: World,
    pub(crate) address: String,
    _closing: watch::Sender<bool>,
}

impl World {
    pub(crate) fn serve(self, listener: TcpListener) -> Served {
        let address = address_of(&listener);
        let (closing, closed) = watch::channel(false);
        tokio::spawn(api::serve(
            listener,
            self.router.clone(),
            api::CONNECTIONS_PER_ADDRESS,
            closed,
        ));
        Served {
            world: self,
            address,
            _closing: closing,
        }
    }
}

/// A free socket on this machine.
pub(crate) async fn socket() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(crate) fn address_of(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

/// The peers of a node without a cluster.
struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    async fn forward(
        &self,
        _address: &str,
        _requests: Vec<NewTx>,
        _patience: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        Err(PeerError::NotReached("there are no peers".into()))
    }

    async fn mark(
        &self,
        _: &str,
        _: &MarkRequest,
        _: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        Err(PeerError::NotReached("there are no peers".to_owned()))
    }

    async fn notify(&self, _address: &str, _lanes: &[LaneKey]) -> Result<(), PeerError> {
        Err(PeerError::NotReached("there are no peers".into()))
    }
}

impl World {
    /// A node whose chain mines at once.
    pub(crate) async fn new() -> Self {
        Self::with_chain(MemoryChain::new(CHAIN).auto_mining(), |_| {}).await
    }

    /// A node on this chain, with a changed API configuration.
    pub(crate) async fn with_chain(
        chain: MemoryChain,
        change: impl FnOnce(&mut ApiConfig),
    ) -> Self {
        let mut plan = Plan::new(chain);
        change(&mut plan.api);
        plan.start().await
    }

    /// A node that knows the account's nonce on chain, so that an accepted request has a nonce at once.
    pub(crate) async fn with_known_nonces() -> Self {
        let world = Self::new().await;
        let first = world.create("first", "/api/v1/tx?wait=mined").await;
        assert_eq!(first.body["receipt"]["status"], "success", "{}", first.body);
        world
    }

    /// Sends a request as clients do: with a host.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Response {
        let host = HeaderValue::from_static("localhost");
        request.headers_mut().entry(HOST).or_insert(host);
        self.send_as_it_is(request).await
    }

    pub(crate) async fn send_as_it_is(&self, request: Request<Body>) -> Response {
        let service = TowerToHyperService::new(self.router.clone());
        service.call(request).await.unwrap()
    }

    pub(crate) async fn request(&self, request: Request<Body>) -> ApiResponse {
        let response = self.send(request).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 64 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        ApiResponse {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> ApiResponse {
        self.request(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.request(post(path, body)).await
    }

    /// Posts one tx with this idempotency key.
    pub(crate) async fn create(&self, request_id: &str, path: &str) -> ApiResponse {
        self.post(path, &transfer(request_id)).await
    }
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

pub(crate) fn transfer(request_id: &str) -> Value {
    json!({
        "chainId": CHAIN.0, "signer": SIGNER.to_string(), "requestId": request_id,
        "payload": {"to": TO.to_string(), "value": "1", "gas": "21000"},
    })
}

impl ApiResponse {
    /// Expects a problem document of this kind and status, and returns its detail.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, slug: &str) -> &str {
        assert_eq!(
            self.body["type"],
            format!("urn:lanekeeper:problem:{slug}"),
            "{}",
            self.body
        );
        assert_eq!(self.status, status);
        assert_eq!(self.body["status"], status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(
            self.body["requestId"].as_str().map(str::as_bytes),
            Some(self.headers["x-request-id"].as_bytes()),
            "{}",
            self.body
        );
        self.body["detail"].as_str().unwrap()
    }
}

fn node_config() -> NodeConfig {
    let mut rules = ChainRules::new(LaneRules::default());
    rules.lane.capacity.window.releases = Release::Mined;
    rules.lane.confirmations.finality = Finality::Depth(2);
    rules.lane.resubmit.interval = None;
    rules.poll_interval = Duration::from_millis(100);
    NodeConfig {
        inbox: 1_000,
        waiters: 1_000,
        ..NodeConfig::new(NodeName("a".into()), [(CHAIN, rules)])
    }
}
