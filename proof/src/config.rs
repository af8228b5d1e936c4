//! The configuration file of a node, as an operator would write it.

use std::fmt::Write as _;
use std::time::Duration;

use rig::evm::{CHAIN_ID, account};

use crate::Outcome;
use crate::cluster::Node;

/// What proofs set. Everything else is Lanekeeper's own default, or stands in `more`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where other nodes reach it; its own address when this is `None`.
    pub advertise: Option<String>,
    /// The file with the cluster's secret.
    pub secret_file: Option<String>,
    /// How long it goes on answering when it is stopped.
    pub drain_delay: Duration,
    /// The chain's endpoints, the preferred one first.
    pub rpc: Vec<String>,
    /// Where the chain announces heads.
    pub ws: Option<String>,
    /// How many endpoints get a transaction at once.
    pub send_to: u64,
    /// How often the chain makes a block.
    pub block_time: Option<Duration>,
    /// How many blocks must stand on a result.
    pub confirmations: u64,
    /// The times of leases.
    pub lease: Option<Lease>,
    /// How many accounts of the test mnemonic it sends from.
    pub lanes: u32,
    /// Further lines, each under its own section.
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

impl Default for Config {
    fn default() -> Self {
        Self {
            advertise: None,
            secret_file: None,
            drain_delay: Duration::from_millis(100),
            rpc: Vec::new(),
            ws: None,
            send_to: 1,
            block_time: None,
            confirmations: 1,
            lease: None,
            lanes: 1,
            more: String::new(),
        }
    }
}

impl Config {
    /// Writes it where a node looks for it.
    pub fn write(&self, node: &Node) -> Outcome<()> {
        std::fs::write(node.config(), self.text(node)?)?;
        Ok(())
    }

    fn text(&self, node: &Node) -> Outcome<String> {
        let mut text = String::new();
        let file = &mut text;
        writeln!(file, "[node]\nname = {:?}", node.name)?;
        writeln!(file, "drainDelay = {:?}", time(self.drain_delay))?;
        optional(file, "advertise", self.advertise.as_deref())?;
        optional(file, "clusterSecretFile", self.secret_file.as_deref())?;
        writeln!(file, "[http]\nlisten = \"{}\"", node.listen())?;
        writeln!(file, "[store]\nurl = {:?}", node.store)?;
        writeln!(file, "[[chain]]\nid = {CHAIN_ID}\nrpc = {:?}", self.rpc)?;
        optional(file, "ws", self.ws.as_deref())?;
        writeln!(file, "sendTo = {}", self.send_to)?;
        optional(file, "blockTime", self.block_time.map(time).as_deref())?;
        writeln!(file, "confirmations = {}", self.confirmations)?;
        if let Some(lease) = self.lease {
            writeln!(file, "[lease]\nduration = {:?}", time(lease.duration))?;
            writeln!(file, "renewInterval = {:?}", time(lease.renew))?;
            writeln!(file, "clockSkewAllowance = {:?}", time(lease.skew))?;
        }
        for index in 0..self.lanes {
            let key = account(index).1;
            writeln!(file, "[[signer]]\nkind = \"key\"\nkey = \"{key}\"")?;
        }
        text.push_str(&self.more);
        Ok(text)
    }
}

fn time(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn optional(file: &mut String, key: &str, value: Option<&str>) -> Outcome<()> {
    if let Some(value) = value {
        writeln!(file, "{key} = {value:?}")?;
    }
    Ok(())
}
