//! Which hashes are looked for in blocks, and who waits for which tx.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use domain::{B256, ChainView, LaneKey, TxId};
use tokio::sync::Notify;

/// The hashes of one chain that may be mined. A hash is here before its bytes leave.
#[derive(Default)]
pub(crate) struct WatchedHashes {
    lanes: Mutex<BTreeMap<B256, LaneKey>>,
}

impl WatchedHashes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<B256, LaneKey>> {
        self.lanes
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    pub(crate) fn add(&self, lane: LaneKey, hashes: impl Iterator<Item = B256>) {
        self.lock().extend(hashes.map(|hash| (hash, lane)));
    }

    pub(crate) fn remove(&self, hash: B256) {
        self.lock().remove(&hash);
    }

    pub(crate) fn remove_lane(&self, lane: LaneKey) {
        self.lock().retain(|_, of| *of != lane);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn lane_of(&self, hash: B256) -> Option<LaneKey> {
        self.lock().get(&hash).copied()
    }
}

/// The newest view of one chain. (Not a `tokio::sync::watch`: that wakes its readers in random order,
/// and the same seed must give the same trace.)
#[derive(Default)]
pub(crate) struct LatestView {
    view: Mutex<Option<Arc<ChainView>>>,
    bell: Notify,
}

impl LatestView {
    pub(crate) fn get(&self) -> Option<Arc<ChainView>> {
        self.view
            .lock()
            .expect("nothing panics while it holds this lock")
            .clone()
    }

    pub(crate) fn set(&self, view: Arc<ChainView>) {
        *self
            .view
            .lock()
            .expect("nothing panics while it holds this lock") = Some(view);
        self.bell.notify_waiters();
    }

    /// Waits until there is one.
    pub(crate) async fn known(&self) {
        loop {
            // Enlisted before the look, so that no view falls between the two.
            let rung = self.bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if self.get().is_some() {
                return;
            }
            rung.await;
        }
    }
}

/// Callers who wait for a tx to get further. A bell per tx: it carries nothing, the waiter re-reads.
#[derive(Default)]
pub(crate) struct Waiters {
    room: Mutex<WaitingRoom>,
}

#[derive(Default)]
struct WaitingRoom {
    bells: BTreeMap<TxId, (Arc<Notify>, usize)>,
    waiting: usize,
}

/// A place among the waiters, given back when dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    id: TxId,
    pub(crate) bell: Arc<Notify>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, WaitingRoom> {
        self.room
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// Waits for this tx; `None` when `max` callers wait already.
    pub(crate) fn enter(&self, id: TxId, max: usize) -> Option<Waiting<'_>> {
        let mut room = self.lock();
        if room.waiting >= max {
            return None;
        }
        room.waiting += 1;
        let (bell, count) = room.bells.entry(id).or_default();
        *count += 1;
        Some(Waiting {
            waiters: self,
            id,
            bell: Arc::clone(bell),
        })
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.lock().waiting
    }

    /// Wakes who waits for one of these txs.
    pub(crate) fn ring(&self, ids: impl Iterator<Item = TxId>) {
        let room = self.lock();
        if room.waiting == 0 {
            return;
        }
        for id in ids {
            if let Some((bell, _)) = room.bells.get(&id) {
                bell.notify_waiters();
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut room = self.waiters.lock();
        room.waiting -= 1;
        if let Some((_, count)) = room.bells.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                room.bells.remove(&self.id);
            }
        }
    }
}
