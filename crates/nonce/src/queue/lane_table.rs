//! The lanes with calls in progress: the call lock and the section queue of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::LaneKey;

use super::section_queue::SectionQueue;

/// The lanes in use; other lanes have no entry.
#[derive(Default)]
pub(super) struct LaneTable {
    entries: Mutex<BTreeMap<LaneKey, Arc<Shared>>>,
}

#[derive(Default)]
struct Shared {
    /// Held while a call of the lane runs.
    call_lock: tokio::sync::Mutex<()>,
    /// The `with_nonce` sections of the lane.
    sections: Mutex<SectionQueue>,
}

/// A reference to a lane's entry. The last one removes the entry.
pub(super) struct LaneRef {
    lanes: Arc<LaneTable>,
    lane: LaneKey,
    shared: Arc<Shared>,
}

impl LaneTable {
    pub(super) fn lane_ref(self: &Arc<Self>, lane: LaneKey) -> LaneRef {
        let shared = Arc::clone(self.lock().entry(lane).or_default());
        LaneRef {
            lanes: Arc::clone(self),
            lane,
            shared,
        }
    }

    // A poisoned lock is used anyway: no code panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Arc<Shared>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneRef {
    pub(super) fn lane(&self) -> LaneKey {
        self.lane
    }

    pub(super) fn call_lock(&self) -> &tokio::sync::Mutex<()> {
        &self.shared.call_lock
    }

    // A poisoned lock is used anyway: no code panics while it is held.
    pub(super) fn lock_sections(&self) -> MutexGuard<'_, SectionQueue> {
        let sections = self.shared.sections.lock();
        sections.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LaneRef {
    fn drop(&mut self) {
        let mut entries = self.lanes.lock();
        // References are created under this lock: two means the table's and this one.
        if Arc::strong_count(&self.shared) == 2 {
            entries.remove(&self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};

    use super::*;

    #[test]
    fn lane_entry_exists_only_while_referenced() {
        let lanes = Arc::new(LaneTable::default());
        let lane = LaneKey {
            chain_id: ChainId(1),
            signer: Address::ZERO,
        };
        let (first, second) = (lanes.lane_ref(lane), lanes.lane_ref(lane));
        assert!(Arc::ptr_eq(&first.shared, &second.shared));
        drop(first);
        assert_eq!(lanes.lock().len(), 1);
        drop(second);
        assert_eq!(lanes.lock().len(), 0);
    }
}
