//! What the nodes of a cluster are told.

use std::time::Duration;

use super::Node;
use crate::config::{Config, Lease};

/// The file with the cluster's secret, in the folder where all nodes work.
pub(super) const SECRET_FILE: &str = "cluster-secret";
pub(super) const SECRET: &str = "a-secret-of-this-proof-that-only-its-own-nodes-know\n";

/// What the nodes of a cluster have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The proof, for the folder of its logs.
    pub proof: String,
    /// How many accounts it sends from.
    pub lanes: usize,
    /// The times of leases.
    pub lease: Lease,
    /// How long a stopping node goes on answering.
    pub drain_delay: Duration,
    /// Further lines of the file, each under its own section.
    pub more: String,
}

impl Settings {
    /// Short leases and a short drain.
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
