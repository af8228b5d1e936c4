//! The lanes with calls in progress: the call lock and the section queue of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::LaneKey;
use parking_lot::{Mutex, MutexGuard};

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
        let shared = Arc::clone(self.entries.lock().entry(lane).or_default());
        LaneRef {
            lanes: Arc::clone(self),
            lane,
            shared,
        }
    }
}

impl LaneRef {
    pub(super) fn lane(&self) -> LaneKey {
        self.lane
    }

    pub(super) fn call_lock(&self) -> &tokio::sync::Mutex<()> {
        &self.shared.call_lock
    }

    pub(super) fn lock_sections(&self) -> MutexGuard<'_, SectionQueue> {
        self.shared.sections.lock()
    }
}

impl Drop for LaneRef {
    fn drop(&mut self) {
        let mut entries = self.lanes.entries.lock();
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
        assert_eq!(lanes.entries.lock().len(), 1);
        drop(second);
        assert_eq!(lanes.entries.lock().len(), 0);
    }
}
