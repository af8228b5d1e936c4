//! What all parts of one node share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::lane::reservations::ReservationRules;
use domain::{ChainId, Incarnation, Input, LaneKey, LeaseGrant, MonotonicTime, Timestamp};
use metrics::gauge;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::broadcaster::Outbox;
use crate::cluster::{Cluster, Observations};
use crate::customers::Customers;
use crate::feed::Feed;
use crate::head_limits::KnownLimits;
use crate::history::HistoryWatch;
use crate::node::{ChainRules, NodeConfig, Ports, Refusal};
use crate::ownership::Leases;
use crate::ports::{Chain, LeaseRequest, Member, StoreError};
use crate::revert_reasons::RevertReasons;
use crate::routing::Routes;
use crate::send_health::SendHealth;
use crate::shard::Message;
use crate::tasks::Tasks;
use crate::watch::{LatestView, WatchedHashes};

/// The first wait after a port failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("nothing panics while it holds this lock")
}

pub(crate) struct Core {
    pub(crate) ports: Ports,
    pub(crate) config: NodeConfig,
    pub(crate) tasks: Tasks,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) chains: BTreeMap<ChainId, ChainState>,
    pub(crate) lanes: LaneRegistry,
    pub(crate) leases: Leases,
    pub(crate) cluster: Cluster,
    pub(crate) routes: Routes,
    pub(crate) history: HistoryWatch,
    pub(crate) feed: Feed,
    pub(crate) customers: Customers,
}

/// This incarnation of the node.
pub(crate) struct Lifecycle {
    incarnation: Incarnation,
    started_at: Timestamp,
    draining: AtomicBool,
    /// When the store last took a heartbeat of this node, by its monotonic clock.
    heartbeat_at: AtomicU64,
}

impl Lifecycle {
    pub(crate) fn new(incarnation: Incarnation, started_at: Timestamp) -> Self {
        Self {
            incarnation,
            started_at,
            draining: AtomicBool::new(false),
            heartbeat_at: AtomicU64::new(0),
        }
    }
}

/// Every configured account on every chain that it serves, and how its shard is reached.
pub(crate) struct LaneRegistry {
    pub(crate) entries: BTreeMap<LaneKey, LaneEntry>,
    pub(crate) shards: Vec<mpsc::Sender<Message>>,
    /// Lanes to acquire and read; each is in this channel at most once.
    pub(crate) opener: mpsc::Sender<LaneKey>,
    /// Until when the hash of every mark is looked up first: a mark failed a while ago.
    pub(crate) check_mark_hashes_until: Mutex<Option<MonotonicTime>>,
    /// Bounds how many requests are looked up at once.
    pub(crate) lookups: Semaphore,
}

pub(crate) struct LaneEntry {
    /// The index of its shard.
    pub(crate) shard: usize,
    /// Set when its nonces are reserved by holders who sign elsewhere.
    pub(crate) reservations: Option<ReservationRules>,
    /// How many callers wait for a commit of the lane.
    pub(crate) callers: AtomicUsize,
}

impl LaneRegistry {
    pub(crate) fn contains(&self, lane: LaneKey) -> bool {
        self.entries.contains_key(&lane)
    }

    /// How many messages wait in the inbox of each shard.
    pub(crate) fn inbox_lengths(&self) -> impl Iterator<Item = usize> {
        let length =
            |shard: &mpsc::Sender<Message>| shard.max_capacity().saturating_sub(shard.capacity());
        self.shards.iter().map(length)
    }
}

/// One chain, with what this node knows of it.
pub(crate) struct ChainState {
    pub(crate) chain: Arc<dyn Chain>,
    pub(crate) rules: ChainRules,
    pub(crate) outbox: Outbox,
    pub(crate) watched: WatchedHashes,
    /// Whether a second endpoint can confirm what one of them answers.
    pub(crate) has_second_endpoint: bool,
    pub(crate) view: LatestView,
    pub(crate) head_limits: KnownLimits,
    /// Bounds how many lanes fetch receipts by hash at once.
    pub(crate) receipt_workers: Semaphore,
    pub(crate) revert_reasons: RevertReasons,
    /// Notified when bytes were sent: the next block is likely to be of interest.
    pub(crate) sent_wakeup: Notify,
    unreachable_since: Mutex<Option<MonotonicTime>>,
    pub(crate) send_health: SendHealth,
}

impl ChainState {
    pub(crate) fn new(chain: Arc<dyn Chain>, rules: ChainRules) -> Self {
        Self {
            has_second_endpoint: chain.endpoints().len() > 1,
            chain,
            outbox: Outbox::default(),
            receipt_workers: Semaphore::new(rules.receipt_workers.max(1)),
            rules,
            watched: WatchedHashes::default(),
            view: LatestView::default(),
            head_limits: KnownLimits::default(),
            revert_reasons: RevertReasons::default(),
            sent_wakeup: Notify::new(),
            unreachable_since: Mutex::default(),
            send_health: SendHealth::default(),
        }
    }

    pub(crate) fn mark_reachable(&self) {
        *lock(&self.unreachable_since) = None;
    }

    pub(crate) fn mark_unreachable(&self, now: MonotonicTime) {
        lock(&self.unreachable_since).get_or_insert(now);
    }
}

impl Core {
    /// The request with which this node acquires lanes: who it is, and which other incarnations it saw at work.
    pub(crate) fn lease_request(&self) -> LeaseRequest {
        let lease = &self.config.lease;
        let Observations { alive, silent } = self.observations();
        LeaseRequest {
            node: self.config.name.clone(),
            incarnation: self.lifecycle.incarnation,
            duration: lease.duration,
            skew: lease.clock_skew_allowance,
            alive,
            silent,
        }
    }

    pub(crate) async fn release_grants(&self, grants: &[LeaseGrant]) -> Result<(), StoreError> {
        let request = self.lease_request();
        self.ports.store.release(&request, grants).await
    }

    fn observations(&self) -> Observations {
        let now = self.ports.clock.monotonic();
        let lease = self.config.lease.duration;
        self.cluster.observations(&self.config.name, lease, now)
    }

    /// This node as the others see it.
    pub(crate) fn member(&self) -> Member {
        Member {
            node: self.config.name.clone(),
            incarnation: self.lifecycle.incarnation,
            advertise: self.config.advertise.clone(),
            started_at: self.lifecycle.started_at,
            seen_at: self.ports.clock.now(),
            heartbeats: 0, // the store counts
            draining: self.is_draining(),
        }
    }

    /// Checks that chain and signer of a lane are configured.
    pub(crate) fn check_configured(&self, lane: LaneKey) -> Result<(), Refusal> {
        if !self.chains.contains_key(&lane.chain_id) {
            return Err(Refusal::UnknownChain(lane.chain_id));
        }
        if !self.lanes.contains(lane) {
            return Err(Refusal::UnknownSigner(lane.chain_id, lane.signer));
        }
        Ok(())
    }

    pub(crate) fn chain(&self, id: ChainId) -> &ChainState {
        self.chains.get(&id).expect("a lane's chain is configured")
    }

    /// Whether this node could not reach a chain for a whole lease, while other nodes are at work that may reach it.
    pub(crate) fn is_chain_unreachable(&self, chain: ChainId, now: MonotonicTime) -> bool {
        let lease = self.config.lease.duration;
        let unreachable_since = *lock(&self.chain(chain).unreachable_since);
        unreachable_since.is_some_and(|since| now.since(since) >= lease)
            && !self.observations().alive.is_empty()
    }

    /// Whether this node could not reach a lane's chain, or got no answer to its sends, for a whole lease, while other
    /// nodes are at work that may.
    pub(crate) fn is_useless_for(&self, lane: LaneKey, now: MonotonicTime) -> bool {
        let was_released = self
            .chain(lane.chain_id)
            .send_health
            .was_released(lane, now);
        let is_alone = || self.observations().alive.is_empty();
        self.is_chain_unreachable(lane.chain_id, now)
            || self.is_send_blocked(lane, now)
            || (was_released && !is_alone())
    }

    /// Whether no endpoint answered the sends of a lane for a whole lease, while other nodes are at work.
    pub(crate) fn is_send_blocked(&self, lane: LaneKey, now: MonotonicTime) -> bool {
        let lease = self.config.lease.duration;
        let health = &self.chain(lane.chain_id).send_health;
        health.is_unanswered(lane, lease, now) && !self.observations().alive.is_empty()
    }

    /// The rules of a lane whose nonces are reserved by holders; `None` for a lane that sends.
    pub(crate) fn reservations(&self, lane: LaneKey) -> Option<ReservationRules> {
        self.lanes.entries.get(&lane)?.reservations
    }

    /// Records how loaded this node is, for the metrics.
    pub(crate) fn record_load(&self) {
        gauge!("lanekeeper_lanes_kept").set(self.leases.lanes().len() as f64);
        let waiting = self.lanes.inbox_lengths().max().unwrap_or(0);
        gauge!("lanekeeper_inbox_depth").set(waiting as f64);
    }

    /// Sends inputs to a lane, waiting for room: an answer of the chain must not be lost to a full inbox.
    pub(crate) async fn send_inputs(&self, lane: LaneKey, epoch: Option<u64>, inputs: Vec<Input>) {
        let message = Message::Inputs {
            lane,
            epoch,
            inputs,
        };
        self.send_to_shard(lane, message).await;
    }

    pub(crate) async fn send_to_shard(&self, lane: LaneKey, message: Message) {
        if let Some(entry) = self.lanes.entries.get(&lane) {
            let shard = &self.lanes.shards[entry.shard];
            shard.send(message).await.ok(); // the shard ends only with the node
        }
    }

    /// Has a lane acquired and read.
    pub(crate) fn request_open(&self, lane: LaneKey) {
        match self.lanes.opener.try_send(lane) {
            Ok(()) | Err(TrySendError::Closed(_)) => {} // closed only when the node ends
            Err(TrySendError::Full(_)) => unreachable!("a lane is opened once at a time"),
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.lifecycle.draining.load(Ordering::Acquire)
    }

    pub(crate) fn start_draining(&self) {
        self.lifecycle.draining.store(true, Ordering::Release);
    }

    pub(crate) fn record_heartbeat(&self) {
        let now = self.ports.clock.monotonic().0;
        self.lifecycle.heartbeat_at.store(now, Ordering::Relaxed);
    }

    /// How long ago the store last took a heartbeat of this node.
    pub(crate) fn heartbeat_age(&self) -> Duration {
        let last = MonotonicTime(self.lifecycle.heartbeat_at.load(Ordering::Relaxed));
        self.ports.clock.monotonic().since(last)
    }

    /// Waits longer each time, up to a bound.
    pub(crate) async fn back_off(&self, tries: &mut u32) {
        let wait = BACKOFF_FIRST
            .saturating_mul(2_u32.saturating_pow(*tries))
            .min(BACKOFF_MAX);
        *tries = tries.saturating_add(1);
        self.ports.clock.sleep(wait).await;
    }
}
