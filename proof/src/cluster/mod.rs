//! A real cluster: `lanekeeper serve` processes, one PostgreSQL, `lanekeeper devchain` as the chain.

mod deposed;
mod node;
mod settings;

pub use deposed::{Deposed, wires};
pub use node::{Node, Signal, send};
pub use settings::Settings;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rig::postgres::{Postgres, majors};
use rig::proxy::TcpProxy;
use serde_json::Value;

use crate::audit::{Audit, Counted};
use crate::balancer::Balancer;
use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::load::{Load, Reply};
use crate::{Outcome, Scratch, Server, binary, demand, eventually, flag, run};

/// The id of the dev chain.
pub const CHAIN_ID: u64 = 31_337;

/// How long a lane may go without accepting anything before something must be wrong.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(30);

/// How long open work may take when everything is well again.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// A running cluster. Everything of it ends with the value.
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its chain.
    pub chain: Server,
    /// What stands between the nodes and the chain. (Proofs themselves ask the chain directly.)
    pub chain_wire: TcpProxy,
    /// The accounts it sends from.
    pub lanes: Vec<String>,
    settings: Settings,
    scratch: Scratch,
}

/// Who keeps a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The number of the node.
    pub node: usize,
    /// Under this token.
    pub token: u64,
}

/// A server of one's own: starting one blocks for a second or two.
pub async fn postgres(major: u32) -> Outcome<Arc<Postgres>> {
    let started = tokio::task::spawn_blocking(move || Postgres::start(major));
    Ok(Arc::new(started.await?))
}

/// The majors of PostgreSQL to prove something on: `--major N`, `--major all` for every installed one, or
/// the newest and the oldest; the newest alone when one of these flags has made the run a short one.
pub fn chosen_majors(shortening: &[&str]) -> Outcome<Vec<u32>> {
    let installed = majors();
    let mut chosen: Vec<u32> = [installed.last(), installed.first()]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    chosen.dedup(); // there may be one only
    match flag("major", "").as_str() {
        "" if shortening.iter().any(|name| !flag(name, "").is_empty()) => chosen.truncate(1),
        "" => {}
        "all" => chosen = installed,
        major => {
            let major = major.parse()?;
            let is_there = installed.contains(&major);
            demand(is_there, format!("PostgreSQL {major} is not installed"))?;
            chosen = vec![major];
        }
    }
    Ok(chosen)
}

/// Does something slow with a server while the load runs on.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

impl Cluster {
    /// Makes the tables and starts a node per address of the database, which may differ: a proxy of
    /// its own for each, for example.
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
        demand(lanes.len() == settings.lanes, "the chain has few accounts")?;
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

    /// Stops all nodes in order and starts them with other settings.
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

    /// Starts a node that ended, without waiting for it.
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
        Balancer::before(self.nodes.iter().map(|node| node.api.clone()).collect())
    }

    /// Gives every node its share, ready or not.
    pub fn blind_balancer(&self) -> Arc<Balancer> {
        Balancer::blind(self.nodes.iter().map(|node| node.api.clone()).collect())
    }

    /// Until a load's lane (the `lane`th of its plan) is accepted with a nonce under at least this
    /// token, by an answer from the `from`th on.
    pub async fn accepted_under(
        &self,
        load: &Load,
        from: usize,
        lane: usize,
        token: u64,
    ) -> Outcome<Reply> {
        let what = format!("lane {lane} is accepted with a nonce under token {token}");
        eventually(&what, ACCEPTED_WITHIN, || async {
            Ok(load.find(from, |reply| {
                reply.lane == lane && reply.said.has_nonce_under(token)
            }))
        })
        .await
    }

    /// The lane as a node tells it.
    pub async fn lane(&self, asked: usize, lane: usize) -> Outcome<Value> {
        let path = format!("/api/v1/lanes/{CHAIN_ID}/{}", self.lanes[lane]);
        let (status, body) = self.nodes[asked].api.get(&path).await?;
        demand(status.is_success(), format!("{path}: {status} {body}"))?;
        Ok(body)
    }

    /// The disk on which they and their database are.
    pub fn disk(&self) -> Outcome<Disk> {
        Disk::watch(&self.scratch)
    }

    /// Who keeps a lane, by what a node tells.
    pub async fn keeper(&self, asked: usize, lane: usize) -> Outcome<Option<Keeper>> {
        let told = self.lane(asked, lane).await?;
        let keeper = &told["keeper"];
        let node = self
            .nodes
            .iter()
            .position(|node| keeper["node"] == *node.name);
        Ok(node.map(|node| Keeper {
            node,
            token: keeper["token"].as_u64().unwrap_or_default(),
        }))
    }

    /// Who keeps a lane, once somebody does.
    pub async fn some_keeper(&self, asked: usize, lane: usize) -> Outcome<Keeper> {
        let within = Duration::from_secs(20);
        eventually("somebody keeps the lane", within, || {
            self.keeper(asked, lane)
        })
        .await
    }

    /// The number of another node.
    pub fn other_than(&self, number: usize) -> usize {
        (number + 1) % self.nodes.len()
    }

    /// Every promised payment exactly once in the store and on chain, and nothing else.
    pub async fn audit(&self, ledger: &Ledger) -> Outcome<Counted> {
        self.auditor(ledger).run().await
    }

    /// The same, to be asked for parts of it.
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

/// Makes the tables of the store that a configuration names.
pub async fn migrate(config: &Path) -> Outcome<()> {
    let config = config.to_string_lossy();
    let output = run(&["migrate", "--config", &config], &[]).await?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    demand(output.status.success(), format!("migrate: {error}"))
}

/// Where the logs of the nodes go: they are to be read after the proof.
pub fn logs_of(proof: &str) -> Outcome<PathBuf> {
    let folder = binary().with_file_name("proof-logs").join(proof);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
