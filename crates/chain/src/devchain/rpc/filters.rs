//! Registered filters: who asked to be told what, and up to which block they have been told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use alloy_rpc_types_eth::Filter;

use crate::devchain::limits::{FILTER_IDLE, FILTERS_MAX};

#[derive(Clone)]
pub(super) enum Watch {
    Blocks,
    Logs(Arc<Filter>),
}

struct Registered {
    watch: Watch,
    /// Id of the newest block that has been told.
    seen: u64,
    polled_at: Instant,
}

#[derive(Default)]
pub(in crate::devchain) struct Filters {
    by_id: BTreeMap<u64, Registered>,
    last_id: u64,
}

impl Filters {
    /// `None` when there are too many, and all of them are in use.
    pub(super) fn add(&mut self, watch: Watch, seen: u64) -> Option<u64> {
        if self.by_id.len() >= FILTERS_MAX {
            self.by_id
                .retain(|_, filter| filter.polled_at.elapsed() < FILTER_IDLE);
        }
        if self.by_id.len() >= FILTERS_MAX {
            return None;
        }
        self.last_id += 1;
        let registered = Registered {
            watch,
            seen,
            polled_at: Instant::now(),
        };
        self.by_id.insert(self.last_id, registered);
        Some(self.last_id)
    }

    pub(super) fn get(&mut self, id: u64) -> Option<(Watch, u64)> {
        let filter = self.by_id.get_mut(&id)?;
        filter.polled_at = Instant::now();
        Some((filter.watch.clone(), filter.seen))
    }

    pub(super) fn advance(&mut self, id: u64, seen: u64) {
        if let Some(filter) = self.by_id.get_mut(&id) {
            filter.seen = filter.seen.max(seen);
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> bool {
        self.by_id.remove(&id).is_some()
    }
}
