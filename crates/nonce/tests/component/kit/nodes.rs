//! Books that the nodes of a cluster keep: every process is a node of its own at one store, and they reach each
//! other by calls in this process. Time must stand still but for them: a node looks after loans by itself, and
//! only time that is moved by hand makes that quick and certain.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use domain::lane::reserve::ReservationRules;
use domain::lane::{ChainQuery, Finality, OnForeignNonce, Resubmit, ResubmitPolicy};
use domain::lease::LeaseTerms;
use domain::window::{Depth, Release, Window};
use domain::{ChainId, FeeRules, Holder, LaneKey, LaneRules, Mark, NodeName, Nonce, Reservation};
use engine::node::{
    Accepted, ChainRules, NewTx, Node, NodeConfig, NodeHandle, NonKeeper, OnTimelineChange, Ports,
    Refusal, ReservedAccounts,
};
use engine::ports::{Chain, Clock, LaneReservations, PeerError, Peers, ReservationError};
use engine::reservations::{MarkError, MarkRequest};
use engine::tasks::Tasks;
use nonce::scheme::LaneScheme;
use nonce::{Borrow, Scheme, SchemeKind, Settlement, Watched};
use sim::chain::MemorySigner;
use sim::store::MemoryStore;

use super::{FINAL_DEPTH, FakeChain, TestClock, WATCH_DEPTH, lane};

/// The signers whose nonces are lent.
const SIGNERS: [u8; 3] = [1, 2, 9];

/// What all nodes share.
pub(crate) struct Nodes {
    store: MemoryStore,
    clock: Arc<dyn Clock>,
    board: Board,
    started: AtomicUsize,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
        Self {
            store: MemoryStore::new(Arc::clone(&clock)),
            clock,
            board: Board::default(),
            started: AtomicUsize::new(0),
        }
    }

    /// One more node.
    pub(crate) async fn start(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let address = format!("test://{number}");
        let ports = Ports {
            store: Arc::new(self.store.clone()),
            chains: chains.iter().map(|chain| Arc::clone(chain) as _).collect(),
            signer: Arc::new(MemorySigner::new(Vec::new())),
            clock: Arc::clone(&self.clock),
            peers: Arc::new(self.board.clone()),
        };
        let ids = chains.iter().map(|chain| chain.id());
        let config = config(format!("node-{number}"), &address, ids.collect());
        let tasks = Tasks::new();
        let node = Node::start(ports, config, tasks.clone()).await;
        let node = node.expect("the settings work");
        self.board.lock().insert(address.clone(), node.handle());
        Arc::new(NodeScheme {
            lane: LaneScheme::new(node.handle()),
            node,
            tasks,
            address,
            board: self.board.clone(),
        })
    }
}

/// A node as a scheme; dropped as a process that is killed.
struct NodeScheme {
    lane: LaneScheme,
    node: Node,
    tasks: Tasks,
    address: String,
    board: Board,
}

impl Drop for NodeScheme {
    fn drop(&mut self) {
        self.tasks.kill();
        self.board.lock().remove(&self.address);
    }
}

#[async_trait]
impl Scheme for NodeScheme {
    fn kind(&self) -> SchemeKind {
        self.lane.kind()
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        self.lane.allocate(lane, borrow).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        self.lane.mark(lane, nonce, holder, mark).await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.lane.reservation(lane, nonce, holder).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.lane.list_reservations(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        self.lane.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.lane.settle(settlements).await
    }

    /// With its component a process ends its node.
    async fn close(&self) -> Result<(), ReservationError> {
        self.lane.close().await?;
        self.node.drain().await;
        Ok(())
    }
}

/// Which node has which address.
#[derive(Clone, Default)]
struct Board(Arc<Mutex<BTreeMap<String, NodeHandle>>>);

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, NodeHandle>> {
        self.0.lock().unwrap()
    }

    fn find(&self, address: &str) -> Result<NodeHandle, PeerError> {
        let gone = || PeerError::NotReached(format!("nobody is at {address}"));
        self.lock().get(address).cloned().ok_or_else(gone)
    }
}

#[async_trait]
impl Peers for Board {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        _patience: Duration,
    ) -> Result<Vec<Result<Accepted, Refusal>>, PeerError> {
        Ok(self.find(address)?.create_forwarded(requests).await)
    }

    async fn mark(
        &self,
        address: &str,
        call: &MarkRequest,
        _patience: Duration,
    ) -> Result<Result<Reservation, MarkError>, PeerError> {
        Ok(self.find(address)?.mark_forwarded(call).await)
    }

    async fn notify(&self, address: &str, lanes: &[LaneKey]) -> Result<(), PeerError> {
        self.find(address)?
            .receive_notification(lanes.to_vec())
            .await;
        Ok(())
    }
}

fn config(name: String, address: &str, chains: Vec<ChainId>) -> NodeConfig {
    let rules = ChainRules {
        lane: lane_rules(),
        gas_margin_percent: 120,
        poll_interval: Duration::from_millis(100),
        receipt_workers: 4,
    };
    let accounts = SIGNERS.map(|signer| (lane(signer).signer, Vec::new()));
    NodeConfig {
        name: NodeName(name),
        advertise: Some(address.to_owned()),
        lease: LeaseTerms {
            duration: Duration::from_secs(3),
            renew_interval: Duration::from_secs(1),
            clock_skew_allowance: Duration::from_millis(500),
            idle_release: Duration::from_secs(60),
        },
        shards: 2,
        inbox: 4_096,
        waiters: 4_096,
        chains: chains.into_iter().map(|id| (id, rules.clone())).collect(),
        non_keeper: NonKeeper::Forward,
        on_timeline_change: OnTimelineChange::Halt,
        lent: ReservedAccounts {
            accounts: accounts.into(),
            reservations: ReservationRules {
                timeout: Duration::from_secs(60),
                grace: Duration::ZERO,
            },
        },
    }
}

fn lane_rules() -> LaneRules {
    LaneRules {
        window: Window {
            limit: None,
            releases: Release::Mined,
        },
        depth: Depth::auto(),
        fee: FeeRules::OPEN,
        finality: Finality::Depth(FINAL_DEPTH),
        watch_depth: WATCH_DEPTH,
        emit_progress: false,
        fetch_receipt_upon_entry: false,
        resubmit: Resubmit {
            interval: Some(Duration::from_secs(5)),
            policy: ResubmitPolicy::Rebroadcast,
            max_attempts: None,
        },
        on_foreign_nonce: OnForeignNonce::Requeue,
        lent: None,
        gap_fill_after: Duration::from_secs(1),
        max_chain_jump: 64,
        chain_query: ChainQuery::Pending,
        chain_nonce_timeout: Duration::from_secs(1),
        stale_receipt_timeout: Duration::from_secs(5),
    }
}
