//! The configuration of a scenario's nodes: short times, so that a scenario takes seconds instead of minutes.

use std::time::Duration;

use proof::config::{Config, Lease};

/// Settings that scenarios change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The number of sending accounts.
    pub(crate) lanes: u32,
    /// Endpoints per node.
    pub(crate) endpoints: usize,
    /// Endpoints that get each transaction.
    pub(crate) send_to: u64,
    pub(crate) confirmations: u64,
    pub(crate) state_timeout: &'static str,
    pub(crate) mempool_depth: &'static str,
    pub(crate) resubmit: &'static str,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            lanes: 1,
            endpoints: 1,
            send_to: 1,
            confirmations: 2,
            state_timeout: "2s",
            mempool_depth: "\"auto\"",
            resubmit: "interval = \"5s\"",
        }
    }
}

impl Tuning {
    /// With a large fixed mempool depth, so that a whole burst is at the node when the fault is injected.
    pub(crate) fn deep() -> Self {
        Self {
            mempool_depth: "200",
            ..Self::default()
        }
    }

    /// The configuration of a node with these endpoints, with the shortest allowed lease.
    pub(crate) fn config(&self, rpc: Vec<String>) -> Config {
        let Self {
            state_timeout,
            mempool_depth,
            resubmit,
            ..
        } = self;
        Config {
            rpc,
            send_to: self.send_to,
            block_time: Some(Duration::from_secs(1)),
            confirmations: self.confirmations,
            lease: Some(Lease::SHORT),
            lanes: self.lanes,
            more: format!(
                "[nonce]\nstateTimeout = \"{state_timeout}\"\n\
                 [lane]\nmempoolDepth = {mempool_depth}\ngapFillAfter = \"4s\"\n\
                 [resubmit]\n{resubmit}\n\
                 [confirmations]\nstaleReceiptTimeout = \"4s\"\n"
            ),
            ..Config::default()
        }
    }
}
