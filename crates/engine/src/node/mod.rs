//! A node: everything that runs in one process, its start, its drain and its end.

mod config;
mod handle;
mod load;
mod refusal;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{ChainId, LaneKey, NodeName};
use futures::future::join_all;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

pub use config::{ChainRules, NodeConfig, NonKeeper, OnTimelineChange, Ports, ReservedAccounts};
pub use handle::{
    Accepted, ChainStatus, LaneStatus, NewTx, NodeHandle, Origin, Readiness, WaitFor, WaitingFor,
};
pub use load::NodeLoad;
pub use refusal::Refusal;

use crate::broadcaster::Outbox;
use crate::cluster::{Cluster, Fnv};
use crate::core::{ChainPart, Core, LanePlace};
use crate::feed::{self, Feed};
use crate::follower::Follower;
use crate::ownership::{self, Leases, Life};
use crate::ports::StoreError;
use crate::routing::{self, Routes};
use crate::shard::{Message, Shard};
use crate::tasks::Tasks;
use crate::watch::Waiters;

/// When a node that has just started looks around for others.
const LOOK_AROUND_AFTER: [Duration; 3] = [
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
    /// The store did not take the node.
    #[error("the store did not take this node")]
    Store(#[from] StoreError),
}

/// A running node.
pub struct Node {
    handle: NodeHandle,
}

impl Node {
    /// Starts every part of a node as tasks of this group.
    pub async fn start(ports: Ports, config: NodeConfig, tasks: Tasks) -> Result<Self, StartError> {
        config.lease.check().map_err(StartError::Config)?;
        let (core, Inputs { inboxes, openings }) = build(ports, config, tasks)?;
        join(&core).await?;
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
        tasks.spawn("greet", greet(Arc::clone(&core)));
        let opener = ownership::open_for_ever(Arc::clone(&core), openings);
        tasks.spawn("opener", opener);
        let renewer = ownership::renew_for_ever(Arc::clone(&core));
        tasks.spawn("renew", renewer);
        tasks.spawn("adopt", ownership::adopt_for_ever(Arc::clone(&core)));
        tasks.spawn("feed", feed::extend_for_ever(Arc::clone(&core)));
        tasks.spawn("feed sweep", feed::sweep_for_ever(Arc::clone(&core)));
        Ok(Self {
            handle: NodeHandle { core },
        })
    }

    /// What the outside can ask.
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Takes no new lanes, finishes what is under way, gives every lane back, and rings those who should
    /// keep them from now on. Requests are still handed to them until [`Node::stop`].
    pub async fn drain(&self) {
        let core = &self.handle.core;
        core.draining.store(true, Ordering::Release);
        // The others learn at once that nothing is to be sent here.
        ownership::heartbeat(core).await;
        let lanes: Vec<LaneKey> = core.leases.lanes();
        for shard in &core.shards {
            let (done, finished) = oneshot::channel();
            if shard.send(Message::Drain { done }).await.is_ok() {
                finished.await.ok(); // a shard that is gone has nothing to give back
            }
        }
        ring_successors(core, lanes).await;
    }

    /// Ends every task. Without a drain before, this is like pulling the plug.
    pub async fn stop(self) {
        self.handle.core.tasks.kill();
        self.handle.core.tasks.ended().await;
    }
}

/// Says for the first time that this node lives, and learns who else does.
async fn join(core: &Core) -> Result<(), StartError> {
    match ownership::beat(core).await? {
        Life::GoesOn => Ok(()),
        Life::Replaced => Err(StartError::Config(format!(
            "another process runs under the name {}: give every node its own node.name",
            core.config.name
        ))),
    }
}

/// Tells the others that somebody came, so that they count with this node at once and lanes spread.
async fn greet(core: Arc<Core>) {
    let calls = core.cluster.addresses(&core.config.name);
    let calls = calls.into_iter().map(|address| {
        let core = &core;
        async move {
            // Whoever does not hear it sees this node with its own next heartbeat.
            core.ports.peers.notify(&address, &[]).await.ok();
        }
    });
    join_all(calls).await;
    // Those who start at the same moment may not have heard it: look around soon.
    for pause in LOOK_AROUND_AFTER {
        core.ports.clock.sleep(pause).await;
        ownership::beat(&core).await.ok(); // the regular one follows
    }
}

/// Tells each lane's next keeper that it is free. Only a bell: whoever misses it finds the lane itself.
async fn ring_successors(core: &Core, lanes: Vec<LaneKey>) {
    let now = core.ports.clock.monotonic();
    let mut by_node: BTreeMap<NodeName, Vec<LaneKey>> = BTreeMap::new();
    for lane in lanes {
        if let Some(node) = routing::successor(core, lane, now) {
            by_node.entry(node).or_default().push(lane);
        }
    }
    let calls = by_node.into_iter().filter_map(|(node, lanes)| {
        let peer = core.cluster.peer(&node, now)?;
        Some(async move {
            if let Err(error) = core.ports.peers.notify(&peer.address, &lanes).await {
                tracing::warn!(%error, node = %peer.node, "a successor did not hear the bell");
            }
        })
    });
    join_all(calls).await;
}

/// What the parts of a node read from.
struct Inputs {
    inboxes: Vec<mpsc::Receiver<Message>>,
    openings: mpsc::Receiver<LaneKey>,
}

fn build(
    ports: Ports,
    config: NodeConfig,
    tasks: Tasks,
) -> Result<(Arc<Core>, Inputs), StartError> {
    if config.shards == 0 || config.inbox == 0 {
        return Err(StartError::Config(
            "worker.count and worker.queueCapacity must be at least 1".into(),
        ));
    }
    let mut chains: BTreeMap<ChainId, ChainPart> = BTreeMap::new();
    for chain in &ports.chains {
        let Some(rules) = config.chains.get(&chain.id()) else {
            return Err(StartError::Config(format!(
                "chain {} has no rules",
                chain.id()
            )));
        };
        let part = ChainPart::new(Arc::clone(chain), rules.clone());
        chains.insert(chain.id(), part);
    }
    let lanes = lanes(&ports, &config)?;
    let (shards, inboxes) = (0..config.shards)
        .map(|_| mpsc::channel(config.inbox))
        .unzip();
    // Every lane is asked for at most once at a time.
    let (opener, openings) = mpsc::channel(lanes.len().max(1));
    let core = Core {
        incarnation: ports.clock.incarnation(),
        started_at: ports.clock.now(),
        ports,
        config,
        tasks,
        chains,
        lanes,
        shards,
        leases: Leases::default(),
        opener,
        cluster: Cluster::default(),
        routes: Routes::default(),
        feed: Feed::default(),
        remembered: Mutex::default(),
        marks_looked_up_until: Mutex::default(),
        tokens: Mutex::default(),
        outbox: Outbox::default(),
        waiters: Waiters::default(),
        event_wakeup: watch::Sender::new(0),
        draining: AtomicBool::new(false),
        heartbeat_at: AtomicU64::new(0),
        history: Mutex::default(),
        history_moved: AtomicBool::new(false),
    };
    Ok((Arc::new(core), Inputs { inboxes, openings }))
}

/// The lanes of this node, spread over the shards.
fn lanes(ports: &Ports, config: &NodeConfig) -> Result<BTreeMap<LaneKey, LanePlace>, StartError> {
    let mut lanes = BTreeMap::new();
    for (key, lent) in config.lanes(&*ports.signer) {
        let place = LanePlace {
            shard: shard_of(key, config.shards),
            lent,
            waiting: AtomicUsize::new(0),
        };
        let before = lanes.insert(key, place);
        if before.is_some_and(|other: LanePlace| other.lent != lent) {
            return Err(StartError::Config(format!(
                "{} has a key here and is set to lend its nonces too: it can do one of both",
                key.signer
            )));
        }
    }
    Ok(lanes)
}

fn shard_of(lane: LaneKey, shards: usize) -> usize {
    let mut hasher = Fnv::default();
    lane.hash(&mut hasher);
    let shard = hasher.finish() % (shards as u64);
    usize::try_from(shard).expect("a shard's number is below a usize")
}
