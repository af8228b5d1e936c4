//! What waits inside a node. Each of these has a bound, and whoever watches the node sees how near it is.

use std::sync::atomic::Ordering;

use futures::future::join_all;

use super::handle::NodeHandle;

/// How full a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Messages in the inbox of each shard.
    pub inboxes: Vec<usize>,
    /// Callers whose requests are on their way through one lane; of the lane that has most.
    pub callers: usize,
    /// Callers who wait for a tx to get further.
    pub waiters: usize,
    /// Lanes that this node keeps.
    pub lanes: usize,
    /// Txs in memory that no block has yet; of the lane that has most.
    pub unmined: usize,
    /// Envelopes that wait to be sent; of the lane that has most.
    pub outgoing: usize,
    /// Hashes that are looked for in blocks.
    pub watched: usize,
    /// Tasks of this node.
    pub tasks: usize,
}

impl NodeHandle {
    /// How full this node is.
    pub async fn load(&self) -> NodeLoad {
        let core = &self.core;
        let inspections = core.lanes.keys().map(|lane| self.inspect(*lane));
        let unmined = join_all(inspections).await.into_iter();
        let unmined = unmined.map(|lane| lane.unmined).max().unwrap_or(0);
        let callers = core.lanes.values();
        let callers = callers.map(|place| place.waiting.load(Ordering::Relaxed));
        NodeLoad {
            inboxes: core.inboxes().collect(),
            callers: callers.max().unwrap_or(0),
            waiters: core.waiters.count(),
            lanes: core.leases.lanes().len(),
            unmined,
            outgoing: core.outbox.longest(),
            watched: core.chains.values().map(|part| part.watched.count()).sum(),
            tasks: core.tasks.count(),
        }
    }
}
