//! Routing: a request goes to this node's own shard, or to the node that keeps its lane.
//!
//! Known keepers save round trips and decide nothing: the lease does.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use domain::{LaneKey, MonotonicTime, NodeName};

use crate::cluster::Peer;
use crate::core::{Core, lock};
use crate::forwarding::Forwarding;
use crate::node::NonKeeper;

/// For how long a node that does not serve a lane gets none of its requests.
const NOT_SERVED_FOR: Duration = Duration::from_secs(30);

/// Where a request for a lane goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// This node's shard, which keeps the lane or acquires it.
    Local,
    Peer(Peer),
    /// This node drains, and no other node can be reached.
    Unavailable,
}

/// The known keepers of lanes, and the ways to other nodes.
#[derive(Default)]
pub(crate) struct Routes {
    keepers: Mutex<BTreeMap<LaneKey, KnownKeeper>>,
    /// Nodes that do not serve a lane, and until when that is assumed.
    not_served: Mutex<BTreeMap<(LaneKey, NodeName), MonotonicTime>>,
    pub(crate) forwarding: Forwarding,
}

struct KnownKeeper {
    node: NodeName,
    until: MonotonicTime,
}

impl Routes {
    /// Records the keeper of a lane, as the store or another node named it.
    pub(crate) fn record_keeper(&self, lane: LaneKey, node: NodeName, until: MonotonicTime) {
        lock(&self.keepers).insert(lane, KnownKeeper { node, until });
    }

    pub(crate) fn forget_keeper(&self, lane: LaneKey) {
        lock(&self.keepers).remove(&lane);
    }

    /// Records that a node has no key for this lane, or cannot reach its chain.
    pub(crate) fn record_not_served(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) {
        let until = now.plus(NOT_SERVED_FOR);
        lock(&self.not_served).insert((lane, node.clone()), until);
    }

    fn may_serve(&self, lane: LaneKey, node: &NodeName, now: MonotonicTime) -> bool {
        let not_served = lock(&self.not_served);
        let until = not_served.get(&(lane, node.clone()));
        until.is_none_or(|until| *until <= now)
    }

    pub(crate) fn known_keeper(&self, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
        let keepers = lock(&self.keepers);
        let keeper = keepers.get(&lane).filter(|keeper| keeper.until > now)?;
        Some(keeper.node.clone())
    }
}

/// Chooses the route of a request: the known keeper first, and where none is known, the preferred one.
pub(crate) fn choose_route(core: &Core, lane: LaneKey) -> Route {
    if core.config.non_keeper != NonKeeper::Forward && !core.is_draining() {
        return Route::Local;
    }
    choose_keeper_route(core, lane)
}

/// The same whatever the configuration says about requests for lanes of other keepers.
pub(crate) fn choose_keeper_route(core: &Core, lane: LaneKey) -> Route {
    let (me, now) = (&core.config.name, core.ports.clock.monotonic());
    let is_draining = core.is_draining();
    if !is_draining && core.leases.holds(lane) {
        return Route::Local;
    }
    match core.routes.known_keeper(lane, now) {
        // Other nodes named this one: the answer to its acquisition was lost, or it dropped the lane.
        Some(keeper) if keeper == *me && !is_draining => return Route::Local,
        Some(keeper) if keeper != *me => {
            if let Some(peer) = core.cluster.reachable_peer(&keeper, now) {
                return Route::Peer(peer);
            }
        }
        Some(_) | None => {}
    }
    if core.config.non_keeper == NonKeeper::Reject && !is_draining {
        // A refusal that names another node must be true: the store decides, not a guess.
        return Route::Local;
    }
    match choose_successor(core, lane, now) {
        Some(node) if node == *me => Route::Local,
        Some(node) => core
            .cluster
            .reachable_peer(&node, now)
            .map_or(Route::Local, Route::Peer),
        None if is_draining => Route::Unavailable,
        None => Route::Local,
    }
}

/// Whether this node neither keeps the lane nor can serve it.
pub(crate) fn is_useless_for_lane(core: &Core, lane: LaneKey) -> bool {
    let now = core.ports.clock.monotonic();
    !core.leases.holds(lane) && core.is_useless_for(lane, now)
}

/// Chooses the next keeper of a lane: this node only while it does not drain, reaches the lane's chain and gets answers
/// to its sends.
pub(crate) fn choose_successor(core: &Core, lane: LaneKey, now: MonotonicTime) -> Option<NodeName> {
    let me = &core.config.name;
    let can_keep = !core.is_draining() && !core.is_useless_for(lane, now);
    let may_keep = |node: &NodeName| {
        if node == me {
            can_keep
        } else {
            core.routes.may_serve(lane, node, now)
        }
    };
    core.cluster
        .preferred_keeper(lane, me, may_keep, core.config.lease.duration, now)
}
