//! Registered filters, each with the newest block that was reported to its client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use alloy_rpc_types_eth::Filter;

use crate::limits::{FILTER_IDLE, FILTERS_MAX};

#[derive(Clone)]
pub(super) enum FilterKind {
    Blocks,
    Logs(Arc<Filter>),
}

struct RegisteredFilter {
    kind: FilterKind,
    /// Id of the newest reported block.
    seen: u64,
    polled_at: Instant,
}

#[derive(Default)]
pub(crate) struct Filters {
    by_id: BTreeMap<u64, RegisteredFilter>,
    last_id: u64,
}

impl Filters {
    /// `None` if the limit is reached and all filters are in use.
    pub(super) fn add(&mut self, kind: FilterKind, seen: u64) -> Option<u64> {
        if self.by_id.len() >= FILTERS_MAX {
            self.by_id
                .retain(|_, filter| filter.polled_at.elapsed() < FILTER_IDLE);
        }
        if self.by_id.len() >= FILTERS_MAX {
            return None;
        }
        self.last_id += 1;
        let registered = RegisteredFilter {
            kind,
            seen,
            polled_at: Instant::now(),
        };
        self.by_id.insert(self.last_id, registered);
        Some(self.last_id)
    }

    pub(super) fn get(&mut self, id: u64) -> Option<(FilterKind, u64)> {
        let filter = self.by_id.get_mut(&id)?;
        filter.polled_at = Instant::now();
        Some((filter.kind.clone(), filter.seen))
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
