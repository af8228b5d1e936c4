//! What all parts of one node share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use domain::{ChainId, Input, LaneKey, Moment};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::broadcaster::Outbox;
use crate::node::{ChainRules, NodeConfig, Ports};
use crate::ownership::Leases;
use crate::ports::{Ask, Chain};
use crate::shard::Message;
use crate::tasks::Tasks;
use crate::watch::{LatestView, Waiters, WatchedHashes};

/// The first wait after something outside failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Core {
    pub(crate) ports: Ports,
    pub(crate) config: NodeConfig,
    pub(crate) ask: Ask,
    pub(crate) tasks: Tasks,
    pub(crate) chains: BTreeMap<ChainId, ChainPart>,
    /// Every configured signer on every chain that it serves.
    pub(crate) lanes: BTreeMap<LaneKey, LanePlace>,
    pub(crate) shards: Vec<mpsc::Sender<Message>>,
    pub(crate) leases: Leases,
    pub(crate) outbox: Outbox,
    pub(crate) waiters: Waiters,
    pub(crate) event_bell: watch::Sender<u64>,
    pub(crate) draining: AtomicBool,
    /// When the store last took a write of this node, by its monotonic clock.
    pub(crate) heartbeat_at: AtomicU64,
}

/// Where a lane's requests go, and how many are on their way.
pub(crate) struct LanePlace {
    pub(crate) shard: usize,
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
    pub(crate) sent_bell: tokio::sync::Notify,
}

impl Core {
    pub(crate) fn chain(&self, id: ChainId) -> &ChainPart {
        self.chains.get(&id).expect("a lane's chain is configured")
    }

    pub(crate) fn shard_of(&self, lane: LaneKey) -> Option<&mpsc::Sender<Message>> {
        self.lanes.get(&lane).map(|place| &self.shards[place.shard])
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

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn wrote_heartbeat(&self) {
        self.heartbeat_at
            .store(self.ports.clock.moment().0, Ordering::Relaxed);
    }

    /// How long ago the store last took a write of this node.
    pub(crate) fn since_heartbeat(&self) -> Duration {
        let last = Moment(self.heartbeat_at.load(Ordering::Relaxed));
        self.ports.clock.moment().since(last)
    }

    /// Rings the bell of those who read events.
    pub(crate) fn ring_events(&self) {
        self.event_bell
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
