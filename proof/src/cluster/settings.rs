//! The settings of a cluster.

use std::time::Duration;

use super::Node;
use crate::config::{Config, Lease};

/// In the working directory of all nodes.
pub(super) const SECRET_FILE: &str = "cluster-secret";
pub(super) const SECRET: &str = "a-secret-of-this-proof-that-only-its-own-nodes-know\n";

/// The common settings of all nodes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The proof's name, for the log directory.
    pub proof: String,
    /// The number of sending accounts.
    pub lanes: usize,
    pub lease: Lease,
    pub drain_delay: Duration,
    /// Further lines of the configuration, each with its section.
    pub more: String,
}

impl Settings {
    /// With short leases and a short drain.
    pub fn new(proof: &str, lanes: usize) -> Self {
        Self {
            proof: proof.to_owned(),
            lanes,
            lease: Lease::SHORT,
            drain_delay: Duration::from_millis(500),
            more: String::new(),
        }
    }

    pub(super) fn config(&self, node: &Node, chain_port: u16) -> Config {
        Config {
            advertise: Some(node.api.url().to_owned()),
            secret_file: Some(SECRET_FILE.to_owned()),
            drain_delay: self.drain_delay,
            rpc: vec![format!("http://127.0.0.1:{chain_port}")],
            block_time: Some(Duration::from_millis(200)),
            lease: Some(self.lease),
            lanes: u32::try_from(self.lanes).expect("a few lanes"),
            more: self.more.clone(),
            ..Config::default()
        }
    }
}
