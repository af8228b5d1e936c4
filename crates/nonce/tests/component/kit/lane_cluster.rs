//! Scheme `lane`: every process is a node of its own on one store, and the nodes call each other in this process.
//!
//! Nodes handle expiry, receipts and reorgs by themselves, which takes them seconds. On the store in memory tokio's clock
//! is paused and advances by itself; on PostgreSQL, whose answers take real time, the nodes' clock is set forward in steps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use domain::lane::Finality;
use domain::lane::reservations::ReservationRules;
use domain::lease::LeaseTerms;
use domain::window::Release;
use domain::{ChainId, LaneKey, LaneRules, Mark, NodeName, Reservation};
use engine::node::{
    AcceptedTx, ChainRules, NewTx, Node, NodeConfig, NodeHandle, Ports, Refusal, ReservedAccounts,
};
use engine::ports::{Chain, Clock, LaneReservations, PeerError, Peers, ReservationError, Store};
use engine::reservations::{MarkError, MarkRequest};
use engine::tasks::Tasks;
use nonce::scheme::LaneScheme;
use nonce::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, WatchedReservation,
};
use rig::postgres::{Database, majors, shared};
use sim::chain::MemorySigner;
use sim::store::MemoryStore;
use store::postgres::{PostgresConfig, PostgresStore, migrate};

use super::{FINAL_DEPTH, FakeChain, TestClock, WATCH_DEPTH, lane};

/// The signers whose nonces are reserved.
const RESERVED_SIGNERS: [u8; 3] = [1, 2, 9];

/// Longer on PostgreSQL, so that no lease ends while time is skipped.
const MEMORY_LEASE: Duration = Duration::from_secs(3);
const POSTGRES_LEASE: Duration = Duration::from_secs(30);

/// How far the clock is set forward at once, and the real time that the nodes get to act on it.
const SKIP_STEP: Duration = Duration::from_millis(250);
const SKIP_PAUSE: Duration = Duration::from_millis(15);

/// The store and everything else that all nodes share.
pub(crate) struct LaneCluster {
    store: Arc<dyn Store>,
    lease: Duration,
    clock: Arc<TestClock>,
    peers: PeerDirectory,
    /// `None`: the store is in memory.
    database: Option<Arc<Database>>,
    started: AtomicUsize,
}

impl LaneCluster {
    /// On the simulator's store. Needs a paused clock.
    pub(crate) fn in_memory() -> Self {
        let clock = Arc::new(TestClock::new());
        let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Self::new(Arc::new(store), MEMORY_LEASE, clock, None)
    }

    /// On a database of its own.
    pub(crate) async fn on_postgres() -> Self {
        let database = shared(majors()[0]).database("lane");
        let (url, lease) = (database.url().to_owned(), POSTGRES_LEASE);
        migrate(&url, None, lease)
            .await
            .expect("the schema is created");
        let pool_size = 8;
        let config = PostgresConfig {
            url,
            pool_size,
            lease,
        };
        let store = PostgresStore::open(config)
            .await
            .expect("PostgreSQL answers");
        let clock = Arc::new(TestClock::new());
        Self::new(Arc::new(store), lease, clock, Some(Arc::new(database)))
    }

    fn new(
        store: Arc<dyn Store>,
        lease: Duration,
        clock: Arc<TestClock>,
        database: Option<Arc<Database>>,
    ) -> Self {
        Self {
            store,
            lease,
            clock,
            peers: PeerDirectory::default(),
            database,
            started: AtomicUsize::new(0),
        }
    }

    /// Starts one more node.
    pub(crate) async fn start(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let address = format!("test://{number}");
        let ports = Ports {
            store: Arc::clone(&self.store),
            chains: chains.iter().map(|chain| Arc::clone(chain) as _).collect(),
            signer: Arc::new(MemorySigner::new(Vec::new())),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            peers: Arc::new(self.peers.clone()),
            witness: None,
        };
        let ids = chains.iter().map(|chain| chain.id());
        let config = config(
            format!("node-{number}"),
            &address,
            self.lease,
            ids.collect(),
        );
        let tasks = Tasks::new();
        let node = Node::start(ports, config, tasks.clone()).await;
        let node = node.expect("valid settings");
        self.peers.lock().insert(address.clone(), node.handle());
        Arc::new(NodeProcess {
            lane: LaneScheme::new(node.handle()),
            node,
            tasks,
            address,
            peers: self.peers.clone(),
            database: self.database.clone(),
        })
    }

    /// Lets time pass for the nodes.
    pub(crate) async fn pass_time(&self, by: Duration) {
        if self.database.is_none() {
            return tokio::time::sleep(by).await;
        }
        let mut passed = Duration::ZERO;
        while passed < by {
            self.clock.skip(SKIP_STEP);
            passed += SKIP_STEP;
            tokio::time::sleep(SKIP_PAUSE).await;
        }
    }
}

/// A node as a scheme; dropping it is like killing its process.
struct NodeProcess {
    lane: LaneScheme,
    node: Node,
    tasks: Tasks,
    address: String,
    peers: PeerDirectory,
    database: Option<Arc<Database>>,
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.tasks.kill();
        self.peers.lock().remove(&self.address);
        // Its leases end by the database's clock, which cannot be set forward.
        if let Some(database) = &self.database {
            let lease_ms = POSTGRES_LEASE.as_millis();
            database.exec(&format!(
                "UPDATE signer_lease SET expires_at = expires_at - {lease_ms} WHERE expires_at <> 0"
            ));
        }
    }
}

#[async_trait]
impl Scheme for NodeProcess {
    fn kind(&self) -> SchemeKind {
        self.lane.kind()
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation, ReservationError> {
        self.lane.allocate(lane, request).await
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation, ReservationError> {
        self.lane.mark(key, mark).await
    }

    async fn find_reservation(
        &self,
        key: ReservationKey,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.lane.find_reservation(key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.lane.list_reservations(lane).await
    }

    async fn list_watched(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
        self.lane.list_watched(limit).await
    }

    async fn list_overdue(
        &self,
        limit: usize,
    ) -> Result<Vec<WatchedReservation>, ReservationError> {
        self.lane.list_overdue(limit).await
    }

    async fn apply_verdicts(
        &self,
        verdicts: &[ConditionalVerdict],
    ) -> Result<(), ReservationError> {
        self.lane.apply_verdicts(verdicts).await
    }

    /// A process that closes its component drains its node.
    async fn close(&self) -> Result<(), ReservationError> {
        self.lane.close().await?;
        self.node.drain().await;
        Ok(())
    }
}

/// The nodes by their addresses.
#[derive(Clone, Default)]
struct PeerDirectory(Arc<Mutex<BTreeMap<String, NodeHandle>>>);

impl PeerDirectory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, NodeHandle>> {
        self.0.lock().unwrap()
    }

    fn find(&self, address: &str) -> Result<NodeHandle, PeerError> {
        let gone = || PeerError::NotReached(format!("no node at {address}"));
        self.lock().get(address).cloned().ok_or_else(gone)
    }
}

#[async_trait]
impl Peers for PeerDirectory {
    async fn forward(
        &self,
        address: &str,
        requests: Vec<NewTx>,
        patience: Duration,
    ) -> Result<Vec<Result<AcceptedTx, Refusal>>, PeerError> {
        Ok(self
            .find(address)?
            .create_forwarded(requests, patience)
            .await)
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

fn config(name: String, address: &str, lease: Duration, chains: Vec<ChainId>) -> NodeConfig {
    let mut rules = ChainRules::new(LaneRules::default());
    rules.lane.capacity.window.releases = Release::Mined;
    rules.lane.confirmations.finality = Finality::Depth(FINAL_DEPTH);
    rules.lane.confirmations.watch_depth = WATCH_DEPTH;
    rules.lane.confirmations.stale_receipt_timeout = Duration::from_secs(5);
    rules.lane.resubmit.interval = Some(Duration::from_secs(5));
    rules.lane.nonce.gap_fill_after = Duration::from_secs(1);
    rules.lane.nonce.chain_nonce_timeout = Duration::from_secs(1);
    rules.poll_interval = Duration::from_millis(100);
    let accounts = RESERVED_SIGNERS.map(|signer| (lane(signer).signer, Vec::new()));
    let chains = chains.into_iter().map(|id| (id, rules.clone()));
    NodeConfig {
        advertise: Some(address.to_owned()),
        lease: LeaseTerms {
            duration: lease,
            renew_interval: Duration::from_secs(1),
            clock_skew_allowance: Duration::from_millis(500),
            ..LeaseTerms::default()
        },
        reserved_accounts: ReservedAccounts {
            accounts: accounts.into(),
            reservations: ReservationRules {
                timeout: Duration::from_secs(60),
                grace: Duration::ZERO,
            },
        },
        ..NodeConfig::new(NodeName(name), chains)
    }
}
