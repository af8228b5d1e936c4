//! Nodes, chain and database, made for one phase and gone after it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, keccak256};
use chain::keys::{self, KeyEntry, KeySource};
use engine::ports::Signer as _;
use futures::future::try_join_all;

use super::super::AcceptArgs;
use super::super::null_chain::{self, CHAIN_ID};
use super::super::server::address_of;
use super::database::Database;
use super::fill::{Fill, fill};
use crate::commands::read_generated;
use crate::config::show_duration;
use crate::failure::Failure;
use crate::fleet::{Child, NodeProcess, Settings, node_name, start_node, table};
use crate::open;

/// Long, so that a saturated machine loses no lease, and sends are held for as long as a run lasts.
pub(super) const LEASE: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);

pub(super) struct Bed<'d> {
    pub(super) database: &'d Database,
    pub(super) nodes: Vec<NodeProcess>,
    pub(super) chain: Child,
    pub(super) addresses: Arc<[SocketAddr]>,
    /// The accounts of the measured lanes.
    pub(super) signers: Arc<[String]>,
    /// Deleted at the end: it holds keys and passwords.
    _folder: tempfile::TempDir,
}

impl<'d> Bed<'d> {
    pub(super) async fn make(
        args: &AcceptArgs,
        database: &'d Database,
        finished: u64,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|e| Failure::refused("a temporary folder", &e))?;
        let keys = Keys::derive(args.lanes, args.idle_lanes).await?;
        let filled = Fill::plan(&keys.measured, &keys.idle, finished);
        let chain = null_chain::start(folder.path(), &filled.nonces(), args.sends).await?;
        let (chain, chain_url) = chain;
        let settings = settings(args, database, &keys, &chain_url);
        let mut files = Vec::new();
        for number in 1..=usize::from(args.nodes) {
            let mut settings = settings.clone();
            settings.set("node", "name", node_name(number).into());
            let path = folder.path().join(format!("{}.toml", node_name(number)));
            settings.write(&path)?;
            files.push((node_name(number), path));
        }
        let (_, first) = files.first().expect("there is at least one node");
        let config = read_generated(first)?;
        open::migrate(&config, None).await?;
        if finished > 0 {
            fill(open::store(&config).await?, &filled).await?;
            database.tidy_up().await?;
        }
        let starts = files
            .iter()
            .map(|(name, path)| start_node(name, path, None));
        let nodes = try_join_all(starts).await?;
        let addresses: Option<Vec<SocketAddr>> =
            nodes.iter().map(|node| address_of(&node.url)).collect();
        let addresses =
            addresses.ok_or_else(|| Failure::Refused("a node has no address".into()))?;
        let signers: Vec<String> = keys.measured.iter().map(Address::to_string).collect();
        Ok(Self {
            database,
            nodes,
            chain,
            addresses: addresses.into(),
            signers: signers.into(),
            _folder: folder,
        })
    }

    /// Ends all processes. Nodes are killed: what they would finish is of no use to anybody.
    pub(super) async fn close(self) {
        for node in self.nodes {
            node.child.kill().await;
        }
        self.chain.kill().await;
    }
}

/// The accounts of the nodes: keys that everybody can derive, without funds on any chain.
struct Keys {
    /// In hex.
    secrets: Vec<String>,
    measured: Vec<Address>,
    idle: Vec<Address>,
}

impl Keys {
    async fn derive(measured: u32, idle: u32) -> Result<Self, Failure> {
        let derive = move || {
            let secret = |n: u32| keccak256(format!("lanekeeper bench {n}")).to_string();
            let secrets: Vec<String> = (0..measured.saturating_add(idle)).map(secret).collect();
            let entries = secrets.iter().map(|secret| KeyEntry {
                source: KeySource::Inline(secret.clone()),
                chains: Vec::new(),
            });
            keys::load(entries.collect()).map(|signer| (secrets, signer.accounts()))
        };
        let derived = tokio::task::spawn_blocking(derive).await;
        let (secrets, accounts) = derived
            .map_err(|e| Failure::refused("the accounts", &e))?
            .map_err(|e| Failure::refused("the accounts", &e))?;
        let mut addresses = accounts.into_iter().map(|(address, _)| address);
        let count = usize::try_from(measured).unwrap_or(usize::MAX);
        Ok(Self {
            secrets,
            measured: addresses.by_ref().take(count).collect(),
            idle: addresses.collect(),
        })
    }
}

fn settings(args: &AcceptArgs, database: &Database, keys: &Keys, chain_url: &str) -> Settings {
    let mut settings = Settings::default();
    let signer = |secret: &String| table([("kind", "key".into()), ("key", secret.clone().into())]);
    let signers: Vec<toml::Value> = keys.secrets.iter().map(signer).collect();
    settings.put("signer", signers.into());
    let chain = table([
        ("id", i64::try_from(CHAIN_ID).unwrap_or(i64::MAX).into()),
        ("rpc", vec![chain_url.to_owned()].into()),
    ]);
    settings.put("chain", vec![chain].into());
    settings.put("node", table([("drainDelay", "0s".into())]));
    settings.put("http", table([("listen", "127.0.0.1:0".into())]));
    settings.put("store", table([("url", database.url().secret().into())]));
    let lease = table([
        ("duration", show_duration(LEASE).into()),
        ("renewInterval", show_duration(RENEW).into()),
        ("idleRelease", "1h".into()),
    ]);
    settings.put("lease", lease);
    let depth = match args.depth().parse::<i64>() {
        Ok(depth) => depth.into(),
        Err(_) => args.depth().into(),
    };
    let lane = table([("mempoolDepth", depth), ("gapFillAfter", "1h".into())]);
    settings.put("lane", lane);
    // Nothing is ever mined here, so nothing is looked for.
    settings.put("resubmit", table([("enabled", false.into())]));
    settings.put("nonce", table([("stateTimeout", "1h".into())]));
    let confirmations = table([("staleReceiptTimeout", "1h".into())]);
    settings.put("confirmations", confirmations);
    settings
}
