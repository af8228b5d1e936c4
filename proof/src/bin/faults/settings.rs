//! The configuration of a scenario's nodes: short times, so that what takes minutes in production takes
//! seconds here.

use std::time::Duration;

use proof::config::{Config, Lease};

/// What scenarios set differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// How many accounts are sent from.
    pub(crate) lanes: u32,
    /// How many endpoints each node has.
    pub(crate) endpoints: usize,
    /// How many of them get a transaction at once.
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
    /// The configuration of a node with these endpoints. Everything that waits for the end of a lease
    /// waits for the shortest that is allowed.
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
