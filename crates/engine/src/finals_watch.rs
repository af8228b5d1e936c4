//! Final results of lanes that no node keeps. A keeper watches those of its own lanes, but after a restart an idle lane
//! has none, and a reorg of its results would go unseen until a request opens it.
//!
//! The lane's row names the newest block with such a result. Whatever reorgs an older one out takes that block too, so one
//! comparison with the followed headers per lane is enough, and no finished tx is read. Every node compares; where another
//! block stands in its place the lane is opened, its lease decides by which node, and the lane itself reopens what is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::headers::BlockPosition;
use domain::lane::BELOW_VIEW_MAX;
use domain::{B256, ChainId, Header, LaneId, LaneKey};

use crate::core::Core;
use crate::ports::UnwatchedLane;
use crate::shard::{Message, headers_below_view};

/// The time between two pages: one query of the store each.
const PAGE_PERIOD: Duration = Duration::from_secs(1);
/// The most lanes of one page.
const PAGE_MAX: usize = 1_000;
/// How many blocks below the view are remembered as checked.
const CHECKED_MAX: usize = 100_000;

/// Compares the final results of lanes without keeper with the followed chain, a page at a time.
pub(crate) async fn run_finals_watch(core: Arc<Core>) {
    let mut watch = FinalsWatch::default();
    loop {
        if !core.is_draining() {
            watch.check_page(&core).await;
        }
        core.ports.clock.sleep(PAGE_PERIOD).await;
    }
}

#[derive(Default)]
struct FinalsWatch {
    /// Behind this lane the next page starts.
    after: Option<LaneId>,
    /// Blocks below the view that stand on the chain: what is that deep is checked once.
    checked: BTreeSet<(ChainId, B256)>,
}

impl FinalsWatch {
    async fn check_page(&mut self, core: &Core) {
        let request = core.lease_request();
        let read = core
            .ports
            .store
            .unwatched_lanes(&request, self.after, PAGE_MAX);
        let page = match read.await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "lanes with final results to watch could not be listed");
                return;
            }
        };
        self.after = page.next;
        let now = core.ports.clock.monotonic();
        let is_for_this_node = |of: &UnwatchedLane| {
            core.lanes.contains(of.lane)
                && !core.leases.holds(of.lane)
                && !core.is_useless_for(of.lane, now)
        };
        let mut below_view: BTreeMap<ChainId, Vec<UnwatchedLane>> = BTreeMap::new();
        for unwatched in page.lanes.into_iter().filter(is_for_this_node) {
            let Some(view) = core.chain(unwatched.lane.chain_id).view.get() else {
                continue;
            };
            let newest = unwatched.newest;
            let base = view.headers.base().map_or(0, |header| header.number);
            match view.headers.position_of(newest.number, newest.hash) {
                BlockPosition::On { .. } => {}
                BlockPosition::Replaced => open_lane(core, unwatched.lane).await,
                BlockPosition::Outside if newest.number < base => {
                    let of_chain = below_view.entry(unwatched.lane.chain_id).or_default();
                    of_chain.push(unwatched);
                }
                BlockPosition::Outside => {} // the view is behind it
            }
        }
        for (chain, lanes) in below_view {
            self.check_below_view(core, chain, lanes).await;
        }
    }

    /// Checks blocks that were final when the last node stopped and lie below the view by now: with one read of headers
    /// for all of them.
    async fn check_below_view(
        &mut self,
        core: &Core,
        chain: ChainId,
        mut lanes: Vec<UnwatchedLane>,
    ) {
        let base = core
            .chain(chain)
            .view
            .base()
            .map_or(0, |header| header.number);
        let lowest = base.saturating_sub(BELOW_VIEW_MAX);
        lanes.retain(|of| {
            of.newest.number >= lowest && !self.checked.contains(&(chain, of.newest.hash))
        });
        let Some(from) = lanes.iter().map(|of| of.newest.number).min() else {
            return;
        };
        let headers = headers_below_view(core, chain, from).await;
        let by_height = headers.into_iter().map(|header| (header.number, header));
        let by_height: BTreeMap<u64, Header> = by_height.collect();
        if self.checked.len() > CHECKED_MAX {
            self.checked.clear();
        }
        for UnwatchedLane { lane, newest } in lanes {
            match by_height.get(&newest.number) {
                Some(header) if header.hash == newest.hash => {
                    self.checked.insert((chain, newest.hash));
                }
                Some(_) => open_lane(core, lane).await,
                None => {} // not read: checked again
            }
        }
    }
}

/// Has a lane opened whose newest final result is not on the followed chain.
async fn open_lane(core: &Core, lane: LaneKey) {
    tracing::warn!(%lane, "a final result of this lane was reorged out while no node kept it; the lane is opened");
    let wake = Message::Wake {
        lane,
        has_queued: false,
    };
    core.send_to_shard(lane, wake).await;
}
