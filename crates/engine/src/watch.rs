//! What parts of a node wait for: hashes in blocks, the view of a chain, and progress of txs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use domain::{B256, ChainView, Header, LaneKey, TxId};
use tokio::sync::{Notify, Semaphore};

use crate::core::lock;

/// The hashes of one chain that may be mined. A hash is added before its bytes are sent.
#[derive(Default)]
pub(crate) struct WatchedHashes {
    lanes: Mutex<BTreeMap<B256, LaneKey>>,
}

impl WatchedHashes {
    pub(crate) fn add(&self, lane: LaneKey, hashes: impl Iterator<Item = B256>) {
        lock(&self.lanes).extend(hashes.map(|hash| (hash, lane)));
    }

    pub(crate) fn remove(&self, hash: B256) {
        lock(&self.lanes).remove(&hash);
    }

    pub(crate) fn remove_lane(&self, lane: LaneKey) {
        lock(&self.lanes).retain(|_, of| *of != lane);
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.lanes).is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.lanes).len()
    }

    pub(crate) fn lane_of(&self, hash: B256) -> Option<LaneKey> {
        lock(&self.lanes).get(&hash).copied()
    }
}

/// The newest view of one chain. (Not a `tokio::sync::watch`: that wakes its readers in random order,
/// and the same seed must give the same trace.)
#[derive(Default)]
pub(crate) struct LatestView {
    view: Mutex<Option<Arc<ChainView>>>,
    wakeup: Notify,
}

impl LatestView {
    pub(crate) fn get(&self) -> Option<Arc<ChainView>> {
        lock(&self.view).clone()
    }

    /// The oldest header of the view.
    pub(crate) fn base(&self) -> Option<Header> {
        self.get()?.headers.base().copied()
    }

    pub(crate) fn set(&self, view: Arc<ChainView>) {
        *lock(&self.view) = Some(view);
        self.wakeup.notify_waiters();
    }

    /// Waits until there is a view.
    pub(crate) async fn wait_until_set(&self) {
        loop {
            // Registered before the check, so that no view falls between the two.
            let notified = self.wakeup.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.get().is_some() {
                return;
            }
            notified.await;
        }
    }
}

/// How many waiters read their txs at once. Each wakeup of many waiters would otherwise fill the queue for connections,
/// and other readers would be refused.
const READS_AT_ONCE: usize = 16;

/// Callers that wait for the progress of a tx. A wakeup carries no data: the waiter reads the tx again.
pub(crate) struct Waiters {
    registry: Mutex<WaiterRegistry>,
    /// Notified when a caller begins to wait.
    added: Notify,
    /// Taken for each read of a waiter.
    pub(crate) reads: Semaphore,
}

impl Default for Waiters {
    fn default() -> Self {
        Self {
            registry: Mutex::default(),
            added: Notify::new(),
            reads: Semaphore::new(READS_AT_ONCE),
        }
    }
}

#[derive(Default)]
struct WaiterRegistry {
    txs: BTreeMap<TxId, WaitedTx>,
    waiting: usize,
}

/// A tx that callers wait for.
#[derive(Default)]
struct WaitedTx {
    wakeup: Arc<Notify>,
    waiting: usize,
    /// Its lane, once a waiter has read it.
    lane: Option<LaneKey>,
}

/// One waiting caller; it stops waiting when this is dropped.
pub(crate) struct WaiterGuard<'a> {
    waiters: &'a Waiters,
    id: TxId,
    pub(crate) wakeup: Arc<Notify>,
}

impl Waiters {
    /// Registers a waiter for this tx; `None` when `max` callers wait already.
    pub(crate) fn register(&self, id: TxId, max: usize) -> Option<WaiterGuard<'_>> {
        let mut registry = lock(&self.registry);
        if registry.waiting >= max {
            return None;
        }
        registry.waiting += 1;
        let tx = registry.txs.entry(id).or_default();
        tx.waiting += 1;
        self.added.notify_one();
        Some(WaiterGuard {
            waiters: self,
            id,
            wakeup: Arc::clone(&tx.wakeup),
        })
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.registry).waiting
    }

    /// Waits until at least one caller waits.
    pub(crate) async fn wait_until_any(&self) {
        while self.count() == 0 {
            self.added.notified().await; // keeps a notification that came before
        }
    }

    /// Whether a caller waits for a tx of none of these lanes. One that has not read its tx yet does not count.
    pub(crate) fn has_any_outside(&self, is_inside: impl Fn(LaneKey) -> bool) -> bool {
        let registry = lock(&self.registry);
        let mut lanes = registry.txs.values().filter_map(|tx| tx.lane);
        lanes.any(|lane| !is_inside(lane))
    }

    /// Wakes the waiters of these txs.
    pub(crate) fn notify_waiters_of(&self, ids: impl IntoIterator<Item = TxId>) {
        let registry = lock(&self.registry);
        if registry.waiting == 0 {
            return;
        }
        for id in ids {
            if let Some(tx) = registry.txs.get(&id) {
                tx.wakeup.notify_waiters();
            }
        }
    }

    /// Wakes all waiters but those of these lanes.
    pub(crate) fn notify_outside(&self, is_inside: impl Fn(LaneKey) -> bool) {
        let registry = lock(&self.registry);
        for tx in registry.txs.values() {
            if !tx.lane.is_some_and(&is_inside) {
                tx.wakeup.notify_waiters();
            }
        }
    }
}

impl WaiterGuard<'_> {
    /// Records the lane of the tx.
    pub(crate) fn set_lane(&self, lane: LaneKey) {
        if let Some(tx) = lock(&self.waiters.registry).txs.get_mut(&self.id) {
            tx.lane = Some(lane);
        }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        let mut registry = lock(&self.waiters.registry);
        registry.waiting -= 1;
        if let Some(tx) = registry.txs.get_mut(&self.id) {
            tx.waiting -= 1;
            if tx.waiting == 0 {
                registry.txs.remove(&self.id);
            }
        }
    }
}
