//! What waits inside a node. Each number has a bound, and monitoring shows how near it is.

use std::sync::atomic::Ordering;

use super::handle::{NodeHandle, inspect_lanes};

/// How loaded a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Messages in the inbox of each shard.
    pub inboxes: Vec<usize>,
    /// Callers that wait for a commit of one lane; of the lane that has most.
    pub callers: usize,
    /// Callers that wait for the progress of a tx.
    pub waiters: usize,
    /// Lanes that this node keeps.
    pub lanes: usize,
    /// Txs in memory that are not mined; of the lane that has most.
    pub unmined: usize,
    /// Envelopes that wait to be sent; of the lane that has most.
    pub outgoing: usize,
    /// Hashes that are watched for in blocks.
    pub watched: usize,
    /// Tasks of this node.
    pub tasks: usize,
}

impl NodeHandle {
    /// How loaded this node is.
    pub async fn load(&self) -> NodeLoad {
        let core = &self.core;
        let inspections = inspect_lanes(core, core.leases.lanes()).await;
        let unmined = inspections.values().map(|lane| lane.unmined).max();
        let callers = core.lanes.entries.values();
        let callers = callers.map(|entry| entry.callers.load(Ordering::Relaxed));
        let chains = || core.chains.values();
        let queues = chains().map(|state| state.outbox.longest_queue_len());
        NodeLoad {
            inboxes: core.lanes.inbox_lengths().collect(),
            callers: callers.max().unwrap_or(0),
            waiters: core.customers.waiters.count(),
            lanes: core.leases.lanes().len(),
            unmined: unmined.unwrap_or(0),
            outgoing: queues.max().unwrap_or(0),
            watched: chains().map(|state| state.watched.count()).sum(),
            tasks: core.tasks.count(),
        }
    }
}
