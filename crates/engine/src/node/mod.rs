//! A node: everything that runs in one process, its start, its drain and its end.

mod config;
mod handle;
mod refusal;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use domain::{ChainId, LaneKey};
use thiserror::Error;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

pub use config::{ChainRules, NodeConfig, NonKeeper, Ports};
pub use handle::{
    Accepted, ChainStatus, LaneStatus, NewTx, NodeHandle, Readiness, WaitFor, WaitingFor,
};
pub use refusal::Refusal;

use crate::broadcaster::Outbox;
use crate::core::{ChainPart, Core, LanePlace};
use crate::follower::Follower;
use crate::ownership::{self, Leases};
use crate::ports::{Ask, Member, StoreError};
use crate::shard::{Message, Shard};
use crate::tasks::Tasks;
use crate::watch::{LatestView, Waiters, WatchedHashes};

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
        let (core, inboxes) = build(ports, config, tasks)?;
        let now = core.ports.clock.now();
        let member = Member {
            node: core.ask.node.clone(),
            incarnation: core.ask.incarnation,
            advertise: core.config.advertise.clone(),
            started_at: now,
            seen_at: now,
            draining: false,
        };
        core.ports.store.heartbeat(&member).await?;
        core.wrote_heartbeat();
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
        core.tasks
            .spawn("renew", ownership::renew_for_ever(Arc::clone(&core)));
        core.tasks
            .spawn("adopt", ownership::adopt_for_ever(Arc::clone(&core)));
        core.tasks.spawn(
            "heartbeat",
            ownership::heartbeat_for_ever(Arc::clone(&core), member),
        );
        Ok(Self {
            handle: NodeHandle { core },
        })
    }

    /// What the outside can ask.
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Takes no new requests, finishes what is under way, and gives every lane back.
    pub async fn drain(&self) {
        let core = &self.handle.core;
        core.draining.store(true, Ordering::Release);
        for shard in &core.shards {
            let (done, finished) = oneshot::channel();
            if shard.send(Message::Drain { done }).await.is_ok() {
                finished.await.ok(); // a shard that is gone has nothing to give back
            }
        }
    }

    /// Ends every task. Without a drain before, this is like pulling the plug.
    pub async fn stop(self) {
        self.handle.core.tasks.kill();
        self.handle.core.tasks.ended().await;
    }
}

type Inboxes = Vec<mpsc::Receiver<Message>>;

fn build(
    ports: Ports,
    config: NodeConfig,
    tasks: Tasks,
) -> Result<(Arc<Core>, Inboxes), StartError> {
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
        let part = ChainPart {
            chain: Arc::clone(chain),
            rules: rules.clone(),
            watched: WatchedHashes::default(),
            view: LatestView::default(),
            receipt_workers: Semaphore::new(rules.receipt_workers.max(1)),
            sent_bell: Notify::new(),
        };
        chains.insert(chain.id(), part);
    }
    let lanes = lanes(&ports, &chains, config.shards);
    let (shards, inboxes) = (0..config.shards)
        .map(|_| mpsc::channel(config.inbox))
        .unzip();
    let ask = Ask {
        node: config.name.clone(),
        incarnation: ports.clock.incarnation(),
        duration: config.lease.duration,
        skew: config.lease.clock_skew_allowance,
    };
    let core = Core {
        ports,
        config,
        ask,
        tasks,
        chains,
        lanes,
        shards,
        leases: Leases::default(),
        outbox: Outbox::default(),
        waiters: Waiters::default(),
        event_bell: watch::Sender::new(0),
        draining: AtomicBool::new(false),
        heartbeat_at: AtomicU64::new(0),
    };
    Ok((Arc::new(core), inboxes))
}

/// Every configured signer on every chain that it serves, spread over the shards.
fn lanes(
    ports: &Ports,
    chains: &BTreeMap<ChainId, ChainPart>,
    shards: usize,
) -> BTreeMap<LaneKey, LanePlace> {
    let mut lanes = BTreeMap::new();
    for (signer, only) in ports.signer.accounts() {
        for chain_id in chains.keys().copied() {
            if only.is_empty() || only.contains(&chain_id) {
                let key = LaneKey { chain_id, signer };
                let place = LanePlace {
                    shard: shard_of(key, shards),
                    waiting: AtomicUsize::new(0),
                };
                lanes.insert(key, place);
            }
        }
    }
    lanes
}

fn shard_of(lane: LaneKey, shards: usize) -> usize {
    // FNV-1a: the same in every process and version, unlike the standard library's hasher.
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    lane.hash(&mut hasher);
    let shard = hasher.finish() % (shards as u64);
    usize::try_from(shard).expect("a shard's number is below a usize")
}
