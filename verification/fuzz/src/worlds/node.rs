//! A node without peers on the in-memory twins, with its HTTP router.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::peers::ClusterSecret;
use api::{ApiConfig, Auth};
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request};
use axum::response::Response;
use domain::lane::Finality;
use domain::{
    Address, ChainId, ConfirmationRules, FeeRules, LaneKey, LaneRules, NodeName, Reservation,
};
use engine::node::{AcceptedTx, ChainRules, NewTx, Node, NodeConfig, Ports, Refusal};
use engine::ports::{Clock, PeerError, Peers, Store};
use engine::reservations::{MarkError, MarkRequest};
use engine::tasks::Tasks;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use sim::chain::{MemoryChain, MemorySigner};
use sim::clock::SimClock;
use sim::store::MemoryStore;
use tokio::sync::watch;

pub(crate) const CHAIN: ChainId = ChainId(31_337);
pub(crate) const SIGNER: Address = Address::repeat_byte(0x11);

/// Where requests seem to come from: this machine, whose nodes may talk without a secret.
const CALLER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_000);

/// A node and its HTTP router.
pub(crate) struct NodeWorld {
    pub(crate) node: Node,
    pub(crate) chain: MemoryChain,
    pub(crate) clock: Arc<dyn Clock>,
    router: Router,
    tasks: Tasks,
    _closing: watch::Sender<bool>,
}

impl NodeWorld {
    /// Starts it on a store, or on one in memory.
    pub(crate) async fn start(
        store: Option<Arc<dyn Store>>,
        auth: Auth,
        cluster_secret: Option<ClusterSecret>,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SimClock::new(7));
        let chain = MemoryChain::new(CHAIN).auto_mining();
        let in_memory = || Arc::new(MemoryStore::new(Arc::clone(&clock))) as Arc<dyn Store>;
        let ports = Ports {
            store: store.unwrap_or_else(in_memory),
            chains: vec![Arc::new(chain.clone())],
            signer: Arc::new(MemorySigner::new(vec![SIGNER])),
            clock: Arc::clone(&clock),
            peers: Arc::new(NoPeers),
            witness: None,
        };
        let (closing, closed) = watch::channel(false);
        let api = ApiConfig {
            max_waiters: 10,
            max_streams: 2,
            auth,
            cluster_secret,
            metrics: Arc::new(|| "lanekeeper_up 1\n".to_owned()),
            ..ApiConfig::new(Arc::clone(&clock), closed)
        };
        let tasks = Tasks::new();
        let node = Node::start(ports, node_config(), tasks.clone())
            .await
            .expect("a node starts on twins");
        Self {
            router: api::router(node.handle(), api),
            node,
            chain,
            clock,
            tasks,
            _closing: closing,
        }
    }

    /// Sends a request to its router.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Response {
        request.extensions_mut().insert(ConnectInfo(CALLER));
        let host = HeaderValue::from_static("localhost");
        request.headers_mut().entry(HOST).or_insert(host);
        let service = TowerToHyperService::new(self.router.clone());
        match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl Drop for NodeWorld {
    fn drop(&mut self) {
        self.tasks.kill();
    }
}

/// A node that is alone.
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
        Err(PeerError::NotReached("nobody is there".to_owned()))
    }

    async fn notify(&self, _address: &str, _lanes: &[LaneKey]) -> Result<(), PeerError> {
        Err(PeerError::NotReached("there are no peers".into()))
    }
}

fn node_config() -> NodeConfig {
    let defaults = LaneRules::default();
    let rules = LaneRules {
        confirmations: ConfirmationRules {
            finality: Finality::Depth(2),
            ..defaults.confirmations
        },
        fee: FeeRules::OPEN,
        ..defaults
    };
    NodeConfig::new(NodeName("a".into()), [(CHAIN, ChainRules::new(rules))])
}
