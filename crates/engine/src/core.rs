//! What all parts of one node share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::lane::reserve::ReservationRules;
use domain::{ChainId, Incarnation, Input, LaneKey, MonotonicTime, Timestamp, Token};
use metrics::{counter, gauge};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::broadcaster::Outbox;
use crate::cluster::{Cluster, Sightings};
use crate::feed::Feed;
use crate::node::{ChainRules, NodeConfig, Ports};
use crate::ownership::{Leases, Remembered};
use crate::ports::{Chain, LeaseRequest, Member};
use crate::routing::Routes;
use crate::shard::Message;
use crate::tasks::Tasks;
use crate::watch::{LatestView, Waiters, WatchedHashes};

/// The first wait after something outside failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("nothing panics while it holds this lock")
}

pub(crate) struct Core {
    pub(crate) ports: Ports,
    pub(crate) config: NodeConfig,
    /// This life of the node.
    pub(crate) incarnation: Incarnation,
    pub(crate) started_at: Timestamp,
    pub(crate) tasks: Tasks,
    pub(crate) chains: BTreeMap<ChainId, ChainPart>,
    /// Every configured signer on every chain that it serves.
    pub(crate) lanes: BTreeMap<LaneKey, LanePlace>,
    pub(crate) shards: Vec<mpsc::Sender<Message>>,
    pub(crate) leases: Leases,
    /// Lanes that are to be acquired and read; each is here at most once.
    pub(crate) opener: mpsc::Sender<LaneKey>,
    pub(crate) cluster: Cluster,
    pub(crate) routes: Routes,
    pub(crate) feed: Feed,
    /// What this node knew of lanes that it lost.
    pub(crate) remembered: Mutex<BTreeMap<LaneKey, Remembered>>,
    /// Until when the hash of every mark is looked up first: one was not taken a while ago.
    pub(crate) marks_looked_up_until: Mutex<Option<MonotonicTime>>,
    /// The highest token of each lane that this node has seen.
    pub(crate) tokens: Mutex<BTreeMap<LaneKey, Token>>,
    pub(crate) outbox: Outbox,
    pub(crate) waiters: Waiters,
    pub(crate) event_wakeup: watch::Sender<u64>,
    pub(crate) draining: AtomicBool,
    /// When the store last took a write of this node, by its monotonic clock.
    pub(crate) heartbeat_at: AtomicU64,
    /// The store's history as last seen.
    pub(crate) history: Mutex<Option<u64>>,
    /// Whether it changed, and nobody has acted upon that yet.
    pub(crate) history_moved: AtomicBool,
}

/// Where a lane's requests go, and how many are on their way.
pub(crate) struct LanePlace {
    pub(crate) shard: usize,
    /// How its nonces are lent, when its key is elsewhere.
    pub(crate) lent: Option<ReservationRules>,
    pub(crate) waiting: AtomicUsize,
}

/// One chain, with what is known of it.
pub(crate) struct ChainPart {
    pub(crate) chain: Arc<dyn Chain>,
    pub(crate) rules: ChainRules,
    pub(crate) watched: WatchedHashes,
    pub(crate) view: LatestView,
    /// Bounds how many lanes ask for receipts by hash at once.
    pub(crate) receipt_workers: Semaphore,
    /// Rings when bytes were sent: the next block is likely to be of interest.
    pub(crate) sent_bell: Notify,
    /// Since when it gives no usable answer.
    unheard_since: Mutex<Option<MonotonicTime>>,
}

impl ChainPart {
    pub(crate) fn new(chain: Arc<dyn Chain>, rules: ChainRules) -> Self {
        Self {
            chain,
            receipt_workers: Semaphore::new(rules.receipt_workers.max(1)),
            rules,
            watched: WatchedHashes::default(),
            view: LatestView::default(),
            sent_bell: Notify::new(),
            unheard_since: Mutex::default(),
        }
    }

    pub(crate) fn was_heard(&self) {
        *lock(&self.unheard_since) = None;
    }

    pub(crate) fn was_not_heard(&self, now: MonotonicTime) {
        lock(&self.unheard_since).get_or_insert(now);
    }
}

impl Core {
    /// What this node shows when it asks for lanes, with what it saw of the others.
    pub(crate) fn lease_request(&self) -> LeaseRequest {
        let lease = &self.config.lease;
        let now = self.ports.clock.monotonic();
        let Sightings { alive, silent } =
            self.cluster
                .sightings(&self.config.name, lease.duration, now);
        LeaseRequest {
            node: self.config.name.clone(),
            incarnation: self.incarnation,
            duration: lease.duration,
            skew: lease.clock_skew_allowance,
            alive,
            silent,
        }
    }

    /// This node as the others see it.
    pub(crate) fn member(&self) -> Member {
        Member {
            node: self.config.name.clone(),
            incarnation: self.incarnation,
            advertise: self.config.advertise.clone(),
            started_at: self.started_at,
            seen_at: self.ports.clock.now(),
            heartbeats: 0, // the store counts
            draining: self.is_draining(),
        }
    }

    /// Takes note of the store's history.
    pub(crate) fn saw_history(&self, history: u64) {
        let before = lock(&self.history).replace(history);
        if before.is_some_and(|before| before != history) {
            self.history_moved.store(true, Ordering::Release);
        }
    }

    /// Keeps what a lane knew that leaves memory against this node's will.
    pub(crate) fn remember(&self, lane: LaneKey, remembered: Remembered) {
        lock(&self.remembered).insert(lane, remembered);
    }

    pub(crate) fn remembered(&self, lane: LaneKey) -> Option<Remembered> {
        lock(&self.remembered).get(&lane).cloned()
    }

    pub(crate) fn forget_remembered(&self, lane: LaneKey) {
        lock(&self.remembered).remove(&lane);
    }

    pub(crate) fn saw_token(&self, lane: LaneKey, token: Token) {
        lock(&self.tokens).insert(lane, token);
    }

    /// Whether a lane's token is below one that was granted before: the store has lost commits.
    pub(crate) fn moved_backwards(&self, lane: LaneKey, token: Token) -> bool {
        let highest = lock(&self.tokens).get(&lane).copied();
        let is_lower = highest.is_some_and(|highest| token < highest);
        if is_lower {
            counter!("lanekeeper_lease_token_backwards_total").increment(1);
            tracing::error!(%lane, %token, ?highest, "a lane's token moved backwards");
        }
        is_lower
    }

    pub(crate) fn chain(&self, id: ChainId) -> &ChainPart {
        self.chains.get(&id).expect("a lane's chain is configured")
    }

    /// Whether this node has not heard of a chain for a whole lease, while others are at work who may have.
    pub(crate) fn is_deaf(&self, chain: ChainId, now: MonotonicTime) -> bool {
        let lease = self.config.lease.duration;
        let unheard_since = *lock(&self.chain(chain).unheard_since);
        unheard_since.is_some_and(|since| now.since(since) >= lease)
            && !self
                .cluster
                .sightings(&self.config.name, lease, now)
                .alive
                .is_empty()
    }

    /// How a lane's nonces are lent, where they are.
    pub(crate) fn reservations(&self, lane: LaneKey) -> Option<ReservationRules> {
        self.lanes.get(&lane)?.lent
    }

    pub(crate) fn shard_of(&self, lane: LaneKey) -> Option<&mpsc::Sender<Message>> {
        self.lanes.get(&lane).map(|place| &self.shards[place.shard])
    }

    /// How full this node is, for the metrics.
    pub(crate) fn tell_load(&self) {
        gauge!("lanekeeper_lanes_kept").set(self.leases.lanes().len() as f64);
        let waiting = self.inboxes().max().unwrap_or(0);
        gauge!("lanekeeper_inbox_depth").set(waiting as f64);
    }

    /// How many messages wait in the inbox of each shard.
    pub(crate) fn inboxes(&self) -> impl Iterator<Item = usize> {
        let taken =
            |shard: &mpsc::Sender<Message>| shard.max_capacity().saturating_sub(shard.capacity());
        self.shards.iter().map(taken)
    }

    /// Gives inputs to a lane, waiting for room: what the chain showed must not be lost to a full inbox.
    pub(crate) async fn give(&self, lane: LaneKey, epoch: u64, inputs: Vec<Input>) {
        self.tell_shard(
            lane,
            Message::Inputs {
                lane,
                epoch,
                inputs,
            },
        )
        .await;
    }

    pub(crate) async fn tell_shard(&self, lane: LaneKey, message: Message) {
        if let Some(shard) = self.shard_of(lane) {
            shard.send(message).await.ok(); // the shard is gone only when the node is
        }
    }

    /// Has a lane acquired and read.
    pub(crate) fn want(&self, lane: LaneKey) {
        match self.opener.try_send(lane) {
            Ok(()) | Err(TrySendError::Closed(_)) => {} // closed only when the node ends
            Err(TrySendError::Full(_)) => unreachable!("every lane is asked for once at a time"),
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn wrote_heartbeat(&self) {
        self.heartbeat_at
            .store(self.ports.clock.monotonic().0, Ordering::Relaxed);
    }

    /// How long ago the store last took a write of this node.
    pub(crate) fn since_heartbeat(&self) -> Duration {
        let last = MonotonicTime(self.heartbeat_at.load(Ordering::Relaxed));
        self.ports.clock.monotonic().since(last)
    }

    /// Rings the bell of those who read events.
    pub(crate) fn ring_events(&self) {
        self.event_wakeup
            .send_modify(|count| *count = count.wrapping_add(1));
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
