//! A real cluster: `lanekeeper serve` processes, one PostgreSQL, `lanekeeper devchain` as the chain.

mod fenced_keeper;
mod node;
mod settings;

pub use fenced_keeper::{FencedKeeper, database_proxies};
pub use node::{Node, Signal, send};
pub use settings::Settings;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rig::postgres::{Postgres, majors};
use rig::proxy::TcpProxy;
use serde_json::Value;

use crate::audit::{Audit, AuditCounts};
use crate::balancer::Balancer;
use crate::disk_probe::DiskProbe;
use crate::ledger::Ledger;
use crate::load::{Load, Reply};
use crate::{Outcome, Scratch, Server, binary, ensure, eventually, flag, run};

/// The id of the dev chain.
pub const CHAIN_ID: u64 = 31_337;

/// A lane that accepts nothing for longer is broken.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(30);

/// Open work ends within this time when everything is healthy.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// A running cluster. Everything ends with the value.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub chain: Server,
    /// The proxy between nodes and chain. (Proofs query the chain directly.)
    pub chain_wire: TcpProxy,
    /// The sending accounts.
    pub lanes: Vec<String>,
    settings: Settings,
    scratch: Scratch,
}

/// The keeper of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The node's index.
    pub node: usize,
    pub token: u64,
}

/// A private server; starting one blocks for a second or two.
pub async fn postgres(major: u32) -> Outcome<Arc<Postgres>> {
    let started = tokio::task::spawn_blocking(move || Postgres::start(major));
    Ok(Arc::new(started.await?))
}

/// The majors of PostgreSQL for a proof: `--major N`, `--major all` for every installed one, else the newest and
/// the oldest; only the newest if one of these flags makes the run short.
pub fn chosen_majors(shortening: &[&str]) -> Outcome<Vec<u32>> {
    let installed = majors();
    let mut chosen: Vec<u32> = [installed.last(), installed.first()]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    chosen.dedup(); // only one may be installed
    match flag("major", "").as_str() {
        "" if shortening.iter().any(|name| !flag(name, "").is_empty()) => chosen.truncate(1),
        "" => {}
        "all" => chosen = installed,
        major => {
            let major = major.parse()?;
            let is_there = installed.contains(&major);
            ensure(is_there, format!("PostgreSQL {major} is not installed"))?;
            chosen = vec![major];
        }
    }
    Ok(chosen)
}

/// Runs a blocking call while the load continues.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

impl Cluster {
    /// Migrates the store and starts one node per database URL; the URLs may differ, for example by a proxy per
    /// node.
    pub async fn start(settings: Settings, stores: &[String]) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let chain = Server::devchain(&scratch.folder("chain")?, &[]).await?;
        let chain_wire = TcpProxy::in_front_of(port_of(chain.chain.url())?);
        let lanes: Vec<String> = chain
            .accounts
            .iter()
            .take(settings.lanes)
            .cloned()
            .collect();
        ensure(lanes.len() == settings.lanes, "the chain has few accounts")?;
        let mut nodes = Vec::new();
        for (number, store) in stores.iter().enumerate() {
            let name = char::from(b'a' + u8::try_from(number)?).to_string();
            nodes.push(Node::new(
                name,
                store.clone(),
                &scratch,
                &logs_of(&settings.proof)?,
            )?);
        }
        let mut cluster = Self {
            nodes,
            chain,
            chain_wire,
            lanes,
            settings,
            scratch,
        };
        cluster.write_configs()?;
        cluster.migrate().await?;
        cluster.start_all().await?;
        Ok(cluster)
    }

    /// Drains all nodes and restarts them with other settings.
    pub async fn reconfigure(&mut self, settings: Settings) -> Outcome<()> {
        self.settings = settings;
        try_join_all(self.nodes.iter_mut().map(Node::terminate)).await?;
        self.write_configs()?;
        self.start_all().await
    }

    async fn start_all(&mut self) -> Outcome<()> {
        for node in &mut self.nodes {
            node.start(&self.scratch)?;
        }
        try_join_all(self.nodes.iter().map(Node::ready)).await?;
        Ok(())
    }

    /// Starts a stopped node, without waiting for it.
    pub fn start_node(&mut self, number: usize) -> Outcome<()> {
        self.nodes[number].start(&self.scratch)
    }

    fn write_configs(&self) -> Outcome<()> {
        for node in &self.nodes {
            let config = self.settings.config(node, self.chain_wire.port());
            config.write(node)?;
        }
        let secret = self.scratch.path().join(settings::SECRET_FILE);
        std::fs::write(secret, settings::SECRET)?;
        Ok(())
    }

    async fn migrate(&self) -> Outcome<()> {
        migrate(self.nodes[0].config()).await
    }

    /// A load balancer in front of all nodes.
    pub fn balancer(&self) -> Arc<Balancer> {
        Balancer::in_front_of(self.nodes.iter().map(|node| node.api.clone()).collect())
    }

    /// A balancer without checks: every node gets its share, ready or not.
    pub fn unchecked_balancer(&self) -> Arc<Balancer> {
        Balancer::without_checks(self.nodes.iter().map(|node| node.api.clone()).collect())
    }

    /// Waits until a lane (by index in the load's plan) accepts with a nonce and at least this token, in a reply at
    /// or after index `from`.
    pub async fn wait_accepted_with_token(
        &self,
        load: &Load,
        from: usize,
        lane: usize,
        token: u64,
    ) -> Outcome<Reply> {
        let what = format!("lane {lane} accepts with a nonce and token {token}");
        eventually(&what, ACCEPTED_WITHIN, || async {
            Ok(load.find(from, |reply| {
                reply.lane == lane && reply.outcome.has_nonce_under(token)
            }))
        })
        .await
    }

    /// The lane as a node shows it.
    pub async fn lane(&self, asked: usize, lane: usize) -> Outcome<Value> {
        let path = format!("/api/v1/lanes/{CHAIN_ID}/{}", self.lanes[lane]);
        let (status, body) = self.nodes[asked].api.get(&path).await?;
        ensure(status.is_success(), format!("{path}: {status} {body}"))?;
        Ok(body)
    }

    /// The disk of the nodes and their database.
    pub fn disk(&self) -> Outcome<DiskProbe> {
        DiskProbe::watch(&self.scratch)
    }

    /// The keeper of a lane according to a node.
    pub async fn keeper(&self, asked: usize, lane: usize) -> Outcome<Option<Keeper>> {
        let reported = self.lane(asked, lane).await?;
        let keeper = &reported["keeper"];
        let node = self
            .nodes
            .iter()
            .position(|node| keeper["node"] == *node.name);
        Ok(node.map(|node| Keeper {
            node,
            token: keeper["token"].as_u64().unwrap_or_default(),
        }))
    }

    /// Waits until the lane has a keeper.
    pub async fn wait_keeper(&self, asked: usize, lane: usize) -> Outcome<Keeper> {
        let within = Duration::from_secs(20);
        eventually("the lane has a keeper", within, || self.keeper(asked, lane)).await
    }

    /// The index of another node.
    pub fn another_node(&self, number: usize) -> usize {
        (number + 1) % self.nodes.len()
    }

    /// Checks that every promised payment is in the store and on chain exactly once, and nothing else.
    pub async fn audit(&self, ledger: &Ledger) -> Outcome<AuditCounts> {
        self.auditor(ledger).run().await
    }

    /// The audit, for checking parts of it.
    pub fn auditor<'a>(&'a self, ledger: &'a Ledger) -> Audit<'a> {
        let running = self.nodes.iter().find(|node| node.is_started());
        Audit {
            api: &running.unwrap_or(&self.nodes[0]).api,
            chain: &self.chain.chain,
            lanes: &self.lanes,
            ledger,
            within: QUIET_WITHIN,
        }
    }
}

fn port_of(url: &str) -> Outcome<u16> {
    let port = url.rsplit(':').next().unwrap_or_default();
    Ok(port.parse()?)
}

/// Migrates the store of a configuration.
pub async fn migrate(config: &Path) -> Outcome<()> {
    let config = config.to_string_lossy();
    let output = run(&["migrate", "--config", &config], &[]).await?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), format!("migrate: {error}"))
}

/// The log directory of the nodes, kept after the proof.
pub fn logs_of(proof: &str) -> Outcome<PathBuf> {
    let folder = binary().with_file_name("proof-logs").join(proof);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
