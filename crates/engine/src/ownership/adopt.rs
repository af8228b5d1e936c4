//! Adopting lanes: those that have work and no keeper are opened by the node that should keep them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{LaneKey, MonotonicTime};

use crate::core::Core;
use crate::ports::LaneWork;
use crate::routing;
use crate::shard::Message;

/// The longest time between two queries for lanes with work.
const ADOPT_PERIOD: Duration = Duration::from_secs(1);

/// Finds lanes that have work and no keeper, and queued txs of lanes that this node keeps, in one query
/// per period; the first time at once.
pub(crate) async fn run_adoption(core: Arc<Core>) {
    let period = core.config.lease.renew_interval.min(ADOPT_PERIOD);
    let mut orphans = OrphanedLanes::default();
    loop {
        if !core.is_draining() {
            let request = core.lease_request();
            match core.ports.store.lanes_with_work(&request).await {
                Ok(found) => {
                    let now = core.ports.clock.monotonic();
                    for LaneWork { lane, has_queued } in
                        orphans.select_for_this_node(&core, found, now)
                    {
                        let wake = Message::Wake { lane, has_queued };
                        core.send_to_shard(lane, wake).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "lanes with work could not be listed"),
            }
        }
        core.ports.clock.sleep(period).await;
    }
}

/// Lanes that have work and no keeper, and since when this node observes them.
#[derive(Default)]
struct OrphanedLanes(BTreeMap<LaneKey, MonotonicTime>);

impl OrphanedLanes {
    /// Selects the lanes for this node: its own, those that it should keep, and those that their preferred keeper
    /// has not acquired for a while.
    fn select_for_this_node(
        &mut self,
        core: &Core,
        found: Vec<LaneWork>,
        now: MonotonicTime,
    ) -> Vec<LaneWork> {
        let before = std::mem::take(&mut self.0);
        let mut selected = Vec::new();
        for work in found {
            let needs_nothing = core.leases.holds(work.lane) && !work.has_queued;
            if needs_nothing || !core.lanes.contains(work.lane) {
                continue;
            }
            if core.is_useless_for(work.lane, now) {
                continue; // another node may serve it; here it cannot progress
            }
            let since = before.get(&work.lane).copied().unwrap_or(now);
            let is_for_this_node = core.leases.holds(work.lane)
                || routing::choose_successor(core, work.lane, now).as_ref()
                    == Some(&core.config.name)
                || now.since(since) >= core.config.lease.renew_interval;
            if is_for_this_node {
                selected.push(work);
            } else {
                self.0.insert(work.lane, since);
            }
        }
        selected
    }
}
