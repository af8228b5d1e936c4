//! The nodes and the chain of one phase.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, keccak256};
use chain::keys::{self, KeyEntry, KeySource};
use cli::process::{ChildProcess, NodeFile, NodeProcess, node_name, start_node, table};
use cli::{Failure, duration};
use engine::ports::Signer as _;
use futures::future::try_join_all;

use super::database::Database;
use super::open_store;
use super::prefill::{PrefillPlan, prefill};
use crate::AcceptArgs;
use crate::migration::migrate_store;
use crate::null_chain::{self, CHAIN_ID};
use crate::server::socket_address;

/// Long, so that no lease expires on a saturated machine while sends are held.
pub(super) const LEASE: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);

pub(super) struct TestCluster<'d> {
    pub(super) database: &'d Database,
    pub(super) nodes: Vec<NodeProcess>,
    pub(super) chain: ChildProcess,
    pub(super) addresses: Arc<[SocketAddr]>,
    /// The accounts of the measured lanes.
    pub(super) signers: Arc<[String]>,
    /// Deleted at the end: it contains keys and passwords.
    _folder: tempfile::TempDir,
}

impl<'d> TestCluster<'d> {
    pub(super) async fn start(
        args: &AcceptArgs,
        database: &'d Database,
        finished: u64,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()
            .map_err(|e| Failure::refused("cannot create a temporary folder", &e))?;
        let keys = BenchKeys::derive(args.lanes, args.idle_lanes).await?;
        let plan = PrefillPlan::new(&keys.measured, &keys.idle, finished);
        let chain = null_chain::start_process(folder.path(), &plan.nonces(), args.sends).await?;
        let (chain, chain_url) = chain;
        let common = common_file(args, database, &keys, &chain_url);
        let mut files = Vec::new();
        for number in 1..=usize::from(args.nodes) {
            let mut file = common.clone();
            file.set_key("node", "name", node_name(number).into());
            let path = folder.path().join(format!("{}.toml", node_name(number)));
            file.write(&path)?;
            files.push((node_name(number), path));
        }
        let (_, first) = files.first().expect("there is at least one node");
        migrate_store(first).await?;
        if finished > 0 {
            prefill(open_store(database).await?, &plan).await?;
            database.vacuum().await?;
        }
        let starts = files
            .iter()
            .map(|(name, path)| start_node(name, path, None));
        let nodes = try_join_all(starts).await?;
        let addresses: Option<Vec<SocketAddr>> =
            nodes.iter().map(|node| socket_address(&node.url)).collect();
        let addresses = addresses.ok_or_else(|| {
            Failure::Refused("the URL of a node contains no socket address".into())
        })?;
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

    /// Kills all processes: nothing needs the work that a graceful stop would finish.
    pub(super) async fn close(self) {
        for node in self.nodes {
            node.child.kill().await;
        }
        self.chain.kill().await;
    }
}

/// The accounts of the nodes: publicly derivable keys without funds on any chain.
struct BenchKeys {
    /// In hex.
    secrets: Vec<String>,
    measured: Vec<Address>,
    idle: Vec<Address>,
}

impl BenchKeys {
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
            .map_err(|e| Failure::refused("cannot derive the accounts", &e))?
            .map_err(|e| Failure::refused("cannot derive the accounts", &e))?;
        let mut addresses = accounts.into_iter().map(|(address, _)| address);
        let count = usize::try_from(measured).unwrap_or(usize::MAX);
        Ok(Self {
            secrets,
            measured: addresses.by_ref().take(count).collect(),
            idle: addresses.collect(),
        })
    }
}

/// The configuration that all nodes share.
fn common_file(
    args: &AcceptArgs,
    database: &Database,
    keys: &BenchKeys,
    chain_url: &str,
) -> NodeFile {
    let mut file = NodeFile::default();
    let signer = |secret: &String| table([("kind", "key".into()), ("key", secret.clone().into())]);
    let signers: Vec<toml::Value> = keys.secrets.iter().map(signer).collect();
    file.add_section("signer", signers.into());
    let chain = table([
        ("id", i64::try_from(CHAIN_ID).unwrap_or(i64::MAX).into()),
        ("rpc", vec![chain_url.to_owned()].into()),
    ]);
    file.add_section("chain", vec![chain].into());
    file.add_section("node", table([("drainDelay", "0s".into())]));
    file.add_section("http", table([("listen", "127.0.0.1:0".into())]));
    file.add_section("store", table([("url", database.url().secret().into())]));
    let lease = table([
        ("duration", duration::format(LEASE).into()),
        ("renewInterval", duration::format(RENEW).into()),
        ("idleRelease", "1h".into()),
    ]);
    file.add_section("lease", lease);
    let depth = match args.mempool_depth().parse::<i64>() {
        Ok(depth) => depth.into(),
        Err(_) => args.mempool_depth().into(),
    };
    let lane = table([("mempoolDepth", depth), ("gapFillAfter", "1h".into())]);
    file.add_section("lane", lane);
    // Nothing is ever mined here, so nothing is polled or sent again.
    file.add_section("resubmit", table([("enabled", false.into())]));
    file.add_section("nonce", table([("stateTimeout", "1h".into())]));
    let confirmations = table([("staleReceiptTimeout", "1h".into())]);
    file.add_section("confirmations", confirmations);
    file
}
