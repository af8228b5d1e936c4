//! The configuration file of a node, as an operator would write it.

use std::fmt::Write as _;
use std::time::Duration;

use rig::evm::{CHAIN_ID, account};

use crate::Outcome;
use crate::cluster::Node;

/// The settings of proofs; other settings have Lanekeeper's defaults or are in `more`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address for other nodes; `None`: the listen address.
    pub advertise: Option<String>,
    /// The file with the cluster's secret.
    pub secret_file: Option<String>,
    /// How long a stopping node keeps serving.
    pub drain_delay: Duration,
    /// The chain's endpoints, the preferred one first.
    pub rpc: Vec<String>,
    /// The WebSocket endpoint for new heads.
    pub ws: Option<String>,
    /// The number of endpoints that get each transaction.
    pub send_to: u64,
    /// The chain's block time.
    pub block_time: Option<Duration>,
    /// The confirmations of a final result.
    pub confirmations: u64,
    /// Further lines of the chain's section.
    pub chain_more: String,
    /// The lease settings.
    pub lease: Option<Lease>,
    /// The number of signers, from the test mnemonic.
    pub lanes: u32,
    /// Further lines, each with its section.
    pub more: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// How long a grant or renewal lasts.
    pub duration: Duration,
    /// How often a keeper renews.
    pub renew: Duration,
    /// How long after its end a foreign lease is left alone.
    pub skew: Duration,
}

impl Lease {
    /// The shortest allowed leases, for proofs that wait for their end.
    pub const SHORT: Self = Self {
        duration: Duration::from_secs(2),
        renew: Duration::from_millis(600),
        skew: Duration::from_millis(300),
    };

    /// When another node may take over, counted from the last renewal of a dead keeper.
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
            chain_more: String::new(),
            lease: None,
            lanes: 1,
            more: String::new(),
        }
    }
}

impl Config {
    /// Writes the node's configuration file.
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
        file.push_str(&self.chain_more);
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
