//! A node: everything that runs in one process, its start, its drain and its end.

mod config;
mod handle;
mod load;
mod refusal;
mod types;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{ChainId, LaneKey, NodeName};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use config::{
    ChainRules, NodeConfig, NonKeeper, OnTimelineChange, Ports, ReservedAccounts, Simulate,
};
pub use handle::NodeHandle;
pub use load::NodeLoad;
pub use refusal::Refusal;
pub use types::{AcceptedTx, ChainStatus, LaneStatus, NewTx, Origin, Readiness, WaitFor};

use crate::cluster::Cluster;
use crate::core::{ChainState, Core, LaneEntry, LaneRegistry, Lifecycle};
use crate::customers::Customers;
use crate::feed::{self, Feed};
use crate::finals_watch;
use crate::follower::Follower;
use crate::history::HistoryWatch;
use crate::intake::LOOKUPS_MAX;
use crate::ownership::{self, IncarnationStatus, Leases};
use crate::ports::StoreError;
use crate::rendezvous::Fnv;
use crate::routing::{self, Routes};
use crate::shard::{Message, Shard};
use crate::tasks::Tasks;
use crate::witness;

/// When a node that has just started sends further heartbeats, to see nodes that start at the same time.
const EXTRA_HEARTBEATS_AFTER: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// Why a node did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The settings do not fit together.
    #[error("{0}")]
    Config(String),
    /// The store could not be reached.
    #[error("the store did not answer when the node started")]
    Store(#[from] StoreError),
}

/// A running node.
pub struct Node {
    handle: NodeHandle,
}

impl Node {
    /// Starts every part of a node as tasks of this group.
    pub fn start(
        ports: Ports,
        config: NodeConfig,
        tasks: Tasks,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        async move {
            config.lease.check().map_err(StartError::Config)?;
            let (core, Receivers { inboxes, openings }) = build_core(ports, config, tasks)?;
            join_cluster(&core).await?;
            witness::check_witness(&core).await?;
            for inbox in inboxes {
                core.tasks
                    .spawn("shard", Shard::new(Arc::clone(&core), inbox).run());
            }
            for chain_id in core.chains.keys() {
                core.tasks.spawn(
                    "follower",
                    Follower::new(Arc::clone(&core), *chain_id).run(),
                );
            }
            let tasks = &core.tasks;
            tasks.spawn("announce start", announce_start(Arc::clone(&core)));
            let opener = ownership::run_opener(Arc::clone(&core), openings);
            tasks.spawn("opener", opener);
            let renewer = ownership::run_renewals(Arc::clone(&core));
            tasks.spawn("renew", renewer);
            tasks.spawn("adopt", ownership::run_adoption(Arc::clone(&core)));
            let finals_watch = finals_watch::run_finals_watch(Arc::clone(&core));
            tasks.spawn("watch finals", finals_watch);
            if let Some(witness) = core.ports.witness.clone() {
                tasks.spawn("witness", witness::run_witness(Arc::clone(&core), witness));
            }
            tasks.spawn("feed", feed::run_feed(Arc::clone(&core)));
            tasks.spawn("feed tail", feed::run_feed_tail(Arc::clone(&core)));
            tasks.spawn("feed sweep", feed::run_feed_sweep(Arc::clone(&core)));
            Ok(Self {
                handle: NodeHandle { core },
            })
        }
        .boxed()
    }

    /// The interface for adapters.
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Acquires no new lanes, finishes what is in flight, releases every lane, and notifies the next keepers of
    /// those that have work.
    /// Requests are still forwarded to them until [`Node::stop`].
    pub fn drain(&self) -> BoxFuture<'_, ()> {
        async move {
            let core = &self.handle.core;
            core.start_draining();
            // The other nodes learn at once that this one takes no requests.
            ownership::process_heartbeat(core).await;
            let mut busy = Vec::new();
            for shard in &core.lanes.shards {
                let (done, finished) = oneshot::channel();
                if shard.send(Message::Drain { done }).await.is_ok() {
                    // A shard that has ended holds no lanes.
                    busy.extend(finished.await.unwrap_or_default());
                }
            }
            notify_successors(core, busy).await;
        }
        .boxed()
    }

    /// Ends every task. Without a drain before, this is like `kill -9`.
    pub async fn stop(self) {
        self.handle.core.tasks.kill();
        self.handle.core.tasks.ended().await;
    }
}

/// Sends the first heartbeat, which also observes the other nodes.
async fn join_cluster(core: &Core) -> Result<(), StartError> {
    match ownership::send_heartbeat(core).await? {
        IncarnationStatus::Current => Ok(()),
        IncarnationStatus::Replaced => Err(StartError::Config(format!(
            "another process runs under the name {}: give every node its own node.name",
            core.config.name
        ))),
    }
}

/// Notifies the other nodes that this one started, so that lanes spread to it at once.
async fn announce_start(core: Arc<Core>) {
    let calls = core.cluster.peer_addresses(&core.config.name);
    let calls = calls.into_iter().map(|address| {
        let core = &core;
        async move {
            // A node that misses it sees this one with its own next heartbeat.
            core.ports.peers.notify(&address, &[]).await.ok();
        }
    });
    join_all(calls).await;
    // Nodes that start at the same time may have missed it.
    for pause in EXTRA_HEARTBEATS_AFTER {
        core.ports.clock.sleep(pause).await;
        ownership::send_heartbeat(&core).await.ok(); // the regular heartbeat follows
    }
}

/// Notifies each lane's next keeper of its release. Only a wakeup: a node that misses it finds the lane in the store.
async fn notify_successors(core: &Core, lanes: Vec<LaneKey>) {
    let now = core.ports.clock.monotonic();
    let mut by_node: BTreeMap<NodeName, Vec<LaneKey>> = BTreeMap::new();
    for lane in lanes {
        if let Some(node) = routing::choose_successor(core, lane, now) {
            by_node.entry(node).or_default().push(lane);
        }
    }
    let calls = by_node.into_iter().filter_map(|(node, lanes)| {
        let peer = core.cluster.reachable_peer(&node, now)?;
        Some(async move {
            if let Err(error) = core.ports.peers.notify(&peer.address, &lanes).await {
                tracing::warn!(%error, node = %peer.node, "the next keeper of released lanes could not be notified");
            }
        })
    });
    join_all(calls).await;
}

/// The receiving ends of a node's channels.
struct Receivers {
    inboxes: Vec<mpsc::Receiver<Message>>,
    openings: mpsc::Receiver<LaneKey>,
}

fn build_core(
    ports: Ports,
    config: NodeConfig,
    tasks: Tasks,
) -> Result<(Arc<Core>, Receivers), StartError> {
    if config.shards == 0 || config.inbox == 0 {
        return Err(StartError::Config(
            "worker.count and worker.queueCapacity must be at least 1".into(),
        ));
    }
    let mut chains: BTreeMap<ChainId, ChainState> = BTreeMap::new();
    for chain in &ports.chains {
        let Some(rules) = config.chains.get(&chain.id()) else {
            return Err(StartError::Config(format!(
                "chain {} has no rules",
                chain.id()
            )));
        };
        let chain_state = ChainState::new(Arc::clone(chain), rules.clone());
        chains.insert(chain.id(), chain_state);
    }
    let entries = assign_lanes(&ports, &config)?;
    let (shards, inboxes) = (0..config.shards)
        .map(|_| mpsc::channel(config.inbox))
        .unzip();
    // A lane is opened once at a time.
    let (opener, openings) = mpsc::channel(entries.len().max(1));
    let customer_store = Arc::clone(&ports.store).for_customers();
    let customers = Customers::new(customer_store, Arc::clone(&ports.clock), config.shards);
    let core = Core {
        lifecycle: Lifecycle::new(ports.clock.incarnation(), ports.clock.now()),
        ports,
        config,
        tasks,
        chains,
        lanes: LaneRegistry {
            entries,
            shards,
            opener,
            check_mark_hashes_until: Mutex::default(),
            lookups: Semaphore::new(LOOKUPS_MAX),
        },
        leases: Leases::default(),
        cluster: Cluster::default(),
        routes: Routes::default(),
        history: HistoryWatch::default(),
        feed: Feed::default(),
        customers,
    };
    Ok((Arc::new(core), Receivers { inboxes, openings }))
}

/// The lanes of this node, spread over the shards.
fn assign_lanes(
    ports: &Ports,
    config: &NodeConfig,
) -> Result<BTreeMap<LaneKey, LaneEntry>, StartError> {
    let mut entries = BTreeMap::new();
    for (key, reservations) in config.lanes(&*ports.signer) {
        let entry = LaneEntry {
            shard: shard_of(key, config.shards),
            reservations,
            callers: AtomicUsize::new(0),
        };
        let before = entries.insert(key, entry);
        if before.is_some_and(|other: LaneEntry| other.reservations != reservations) {
            return Err(StartError::Config(format!(
                "{} has a key here and is also a signer of kind external: configure only one of the two",
                key.signer
            )));
        }
    }
    Ok(entries)
}

fn shard_of(lane: LaneKey, shards: usize) -> usize {
    let mut hasher = Fnv::default();
    lane.hash(&mut hasher);
    let shard = hasher.finish() % (shards as u64);
    usize::try_from(shard).expect("a shard's number is below a usize")
}
