//! The configuration files of a cluster's nodes.

use std::time::Duration;

use super::{CHAIN_ID, Node};

/// The file with the cluster's secret, in the folder where all nodes work.
pub(super) const SECRET_FILE: &str = "cluster-secret";
pub(super) const SECRET: &str = "a-secret-of-this-proof-that-only-its-own-nodes-know\n";

/// Private keys of the public test mnemonic, in the order of the dev chain's accounts.
const KEYS: [&str; 6] = [
    "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
    "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
    "0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a",
    "0x7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6",
    "0x47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a",
    "0x8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba",
];

/// What the nodes of a cluster have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The proof, for the folder of its logs.
    pub proof: String,
    /// How many accounts it sends from, at most 6.
    pub lanes: usize,
    /// The times of leases.
    pub lease: Lease,
    /// How long a stopping node goes on answering.
    pub drain_delay: Duration,
    /// Further lines of the file, each under its own section.
    pub more: String,
}

/// The times of leases.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// How long a grant or renewal lasts.
    pub duration: Duration,
    /// How often a keeper renews.
    pub renew: Duration,
    /// How long after its end a lease of another is left alone.
    pub skew: Duration,
}

impl Lease {
    /// The shortest leases that are allowed, for proofs that wait for their end.
    pub const SHORT: Self = Self {
        duration: Duration::from_secs(2),
        renew: Duration::from_millis(600),
        skew: Duration::from_millis(300),
    };

    /// When another may try to take the lane of a keeper that is gone, counted from its last renewal.
    pub fn over_after(&self) -> Duration {
        self.duration + self.skew
    }
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

    pub(super) fn file(&self, node: &Node, chain_port: u16) -> String {
        let Lease {
            duration,
            renew,
            skew,
        } = self.lease;
        let signers: String = KEYS
            .iter()
            .take(self.lanes)
            .map(|key| format!("[[signer]]\nkind = \"key\"\nkey = \"{key}\"\n"))
            .collect();
        format!(
            "[node]\nname = \"{name}\"\nadvertise = \"{url}\"\n\
             clusterSecretFile = \"{SECRET_FILE}\"\ndrainDelay = \"{drain}ms\"\n\
             [http]\nlisten = \"{listen}\"\n\
             [store]\nurl = \"{store}\"\n\
             [[chain]]\nid = {CHAIN_ID}\nrpc = [\"http://127.0.0.1:{chain_port}\"]\nblockTime = \"200ms\"\n\
             confirmations = 1\n\
             [lease]\nduration = \"{duration}ms\"\nrenewInterval = \"{renew}ms\"\n\
             clockSkewAllowance = \"{skew}ms\"\n\
             {signers}{more}",
            name = node.name,
            url = node.api.url(),
            drain = self.drain_delay.as_millis(),
            listen = node.listen(),
            store = node.store,
            duration = duration.as_millis(),
            renew = renew.as_millis(),
            skew = skew.as_millis(),
            more = self.more,
        )
    }
}
