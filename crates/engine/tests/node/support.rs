//! Nodes on the twins of one store and one chain, with a store and peers that a test can make fail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::lane::Finality;
use domain::lease::LeaseTerms;
use domain::window::Release;
use domain::{Address, ChainId, LaneKey, LaneRules, NodeName, Payload, RequestId, U256};
use engine::node::{ChainRules, NewTx, Node, NodeConfig, Origin, Ports};
use engine::ports::{Clock, CommitOutcome};
use engine::tasks::Tasks;
use sim::chain::{MemoryChain, MemorySigner, RemoteChain, Staleness};
use sim::clock::SimClock;
use sim::disk::MemoryDisk;
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use sim::store::MemoryStore;
use tokio::sync::Notify;

use crate::peers::Network;
use crate::scripted_store::ScriptedStore;

pub(crate) const CHAIN: ChainId = ChainId(31_337);
pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const RENEW: Duration = Duration::from_secs(3);
/// After this long without a renewal, another node may have taken the lane over.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(25);

/// What the scripted store does with the next commit that inserts a tx.
pub(crate) enum CommitScript {
    /// Returns this outcome without applying anything.
    Return(CommitOutcome),
    /// Applies the batch and returns `Unknown`.
    ApplyThenUnknown,
    /// Waits for the wakeup, then applies the batch.
    Hold(Arc<Notify>),
}

/// What a test makes of a store.
#[derive(Default)]
pub(crate) struct StoreScript {
    pub(crate) commits: Mutex<VecDeque<CommitScript>>,
    /// Regrants wait while this is set.
    pub(crate) hold_regrants: AtomicBool,
    pub(crate) fail_renewals: AtomicBool,
    pub(crate) fail_suspicions: AtomicBool,
    /// The response of the next commit that confirms a tx is lost.
    pub(crate) lose_confirmation: AtomicBool,
    /// How long it takes to read a tx, or a list of them.
    pub(crate) read_time: Mutex<Duration>,
    pub(crate) lists_begun: AtomicUsize,
    /// How many lanes were read for customers.
    pub(crate) lanes_read: AtomicUsize,
    /// How many look-ups by request id run, and the most that ran at once.
    pub(crate) lookups: AtomicU64,
    pub(crate) lookups_max: AtomicU64,
    /// Every call fails.
    pub(crate) is_cut: AtomicBool,
    calls: Mutex<Vec<&'static str>>,
}

impl StoreScript {
    pub(crate) fn script(&self, script: CommitScript) {
        self.commits.lock().unwrap().push_back(script);
    }

    pub(crate) fn record(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    /// The recorded calls since the last time: `acquire`, `create` (a commit that inserts), `regrant`, `find`.
    pub(crate) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

/// One store, one chain and the network between nodes.
pub(crate) struct Cluster {
    pub(crate) store: MemoryStore,
    pub(crate) chain: MemoryChain,
    pub(crate) network: Arc<Network>,
    clock: SimClock,
    /// The disk of each node, which survives its restarts.
    disks: Mutex<BTreeMap<String, Arc<MemoryDisk>>>,
    /// How many nodes were started; each has its own randomness.
    started: AtomicU64,
    /// How many endpoints the chain has.
    endpoints: usize,
}

pub(crate) struct TestNode {
    pub(crate) node: Node,
    /// Its way to the chain.
    pub(crate) chain: RemoteChain,
    pub(crate) script: Arc<StoreScript>,
    pub(crate) tasks: Tasks,
}

impl Cluster {
    /// A chain that mines only when a test says so.
    pub(crate) fn new() -> Self {
        Self::with_chain(MemoryChain::new(CHAIN))
    }

    /// The same with so many endpoints.
    pub(crate) fn with_endpoints(count: usize) -> Self {
        Self {
            endpoints: count,
            ..Self::with_chain(MemoryChain::new(CHAIN).with_endpoints(count))
        }
    }

    pub(crate) fn with_chain(chain: MemoryChain) -> Self {
        let clock = SimClock::new(7);
        let store_clock: Arc<dyn Clock> = Arc::new(clock.clone());
        Self {
            store: MemoryStore::new(store_clock),
            chain,
            network: Arc::default(),
            clock,
            disks: Mutex::default(),
            started: AtomicU64::new(100),
            endpoints: 1,
        }
    }

    pub(crate) fn disk(&self, name: &str) -> Arc<MemoryDisk> {
        let mut disks = self.disks.lock().unwrap();
        Arc::clone(disks.entry(name.to_owned()).or_default())
    }

    pub(crate) async fn start(&self, name: &str) -> TestNode {
        self.start_with(name, |_| {}).await
    }

    pub(crate) async fn start_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut NodeConfig),
    ) -> TestNode {
        let script = Arc::new(StoreScript::default());
        let seed = self.started.fetch_add(1, Ordering::SeqCst);
        let clock = self.clock.machine(Duration::ZERO, Rng::new(seed));
        let link = |_| Link::new(Rng::new(seed), LinkFaults::NONE);
        let links = (0..self.endpoints).map(link).collect();
        let chain = RemoteChain::with_links(self.chain.clone(), links, Staleness::NONE);
        let ports = Ports {
            store: Arc::new(ScriptedStore::new(self.store.clone(), Arc::clone(&script))),
            chains: vec![Arc::new(chain.clone())],
            signer: Arc::new(MemorySigner::new((1..=8).map(account).collect())),
            clock: Arc::new(clock),
            peers: Arc::new(self.network.peers_of(name)),
            witness: Some(self.disk(name)),
        };
        let mut config = node_config(name);
        change(&mut config);
        let tasks = Tasks::new();
        let node = Node::start(ports, config, tasks.clone()).await.unwrap();
        self.network.add(name, node.handle());
        TestNode {
            node,
            chain,
            script,
            tasks,
        }
    }

    /// A node with one tx accepted in lane 1: the lane is in memory, and nonce 1 is next.
    pub(crate) async fn start_warm(&self, name: &str) -> TestNode {
        let test_node = self.start(name).await;
        let first = test_node.node.handle().create(transfer(1, "first")).await;
        assert_eq!(first.unwrap().record.tx.nonce, Some(domain::Nonce(0)));
        test_node.script.take_calls();
        test_node
    }
}

pub(crate) fn account(number: u8) -> Address {
    Address::repeat_byte(number)
}

pub(crate) fn lane(number: u8) -> LaneKey {
    LaneKey {
        chain_id: CHAIN,
        signer: account(number),
    }
}

/// A transfer from an account; its gas is named, so that nothing is looked up or estimated.
pub(crate) fn transfer(from: u8, request_id: &str) -> NewTx {
    NewTx {
        lane: lane(from),
        request_id: RequestId::parse(request_id).unwrap(),
        payload: Payload {
            gas: Some(21_000),
            ..Payload::transfer(Address::repeat_byte(0x33), U256::from(1))
        },
        estimated_gas: None,
        origin: Origin::default(),
    }
}

pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

fn node_config(name: &str) -> NodeConfig {
    let mut rules = ChainRules::new(LaneRules::default());
    rules.lane.capacity.window.releases = Release::Mined;
    rules.lane.confirmations.finality = Finality::Depth(3);
    rules.lane.resubmit.interval = Some(Duration::from_secs(5));
    rules.poll_interval = Duration::from_millis(100);
    NodeConfig {
        advertise: Some(name.to_owned()),
        lease: LeaseTerms {
            duration: LEASE,
            renew_interval: RENEW,
            idle_release: Duration::from_secs(600),
            ..LeaseTerms::default()
        },
        inbox: 1_000,
        ..NodeConfig::new(NodeName(name.to_owned()), [(CHAIN, rules)])
    }
}
