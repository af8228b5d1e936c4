//! What parts of a node wait for: hashes in blocks, the view of a chain, and progress of txs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use domain::{B256, ChainView, Header, LaneKey, TxId};
use tokio::sync::Notify;

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

/// Callers that wait for the progress of a tx. A wakeup carries no data: the waiter reads the tx again.
#[derive(Default)]
pub(crate) struct Waiters {
    registry: Mutex<WaiterRegistry>,
}

#[derive(Default)]
struct WaiterRegistry {
    wakeups: BTreeMap<TxId, (Arc<Notify>, usize)>,
    waiting: usize,
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
        let (wakeup, count) = registry.wakeups.entry(id).or_default();
        *count += 1;
        Some(WaiterGuard {
            waiters: self,
            id,
            wakeup: Arc::clone(wakeup),
        })
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.registry).waiting
    }

    /// Wakes the waiters of these txs.
    pub(crate) fn notify_waiters_of(&self, ids: impl IntoIterator<Item = TxId>) {
        let registry = lock(&self.registry);
        if registry.waiting == 0 {
            return;
        }
        for id in ids {
            if let Some((wakeup, _)) = registry.wakeups.get(&id) {
                wakeup.notify_waiters();
            }
        }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        let mut registry = lock(&self.waiters.registry);
        registry.waiting -= 1;
        if let Some((_, count)) = registry.wakeups.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                registry.wakeups.remove(&self.id);
            }
        }
    }
}
