//! The world: three nodes, each with its own fault-injecting links to the database, to the chain and from its
//! peers.

use std::path::PathBuf;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use proof::balancer::Balancer;
use proof::cluster::{Node, logs_of, migrate};
use proof::config::{Config, Lease};
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::network::{Network, NodeKind, Terms, signer};
use proof::{Outcome, Scratch, print_step};
use rig::postgres::majors;
use rig::proxy::TcpProxy;
use rig::rpc_proxy::RpcProxy;

use crate::torture::clock::{Clock, Clocks};
use crate::torture::database::Database;
use crate::torture::fault_kind::NODES;
use crate::torture::nodes::Nodes;
use crate::torture::plan::letter;

const PROOF: &str = "05-3-torture";

/// Freezes and cuts of the plan may last longer than these leases.
pub(crate) const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew: Duration::from_millis(900),
    skew: Duration::from_millis(500),
};

pub(crate) const LANES: u32 = 6;

/// With one failing endpoint there is another.
pub(crate) const ENDPOINTS: usize = 2;

pub(crate) const CONFIRMATIONS: u64 = 6;

/// Clients per lane with and without a readiness check. Only the latter omit gas at times: without a chain it
/// cannot be estimated, and all clients would wait.
const CLIENTS: [usize; 2] = [2, 1];
const BLIND: usize = 1;

/// The pause of a client. So there are at most 26 payments per second, and 47,000 in half an hour: each is an
/// account on chain, and anvil copies all accounts for every block.
const CLIENT_PAUSE: Duration = Duration::from_millis(700);

/// Then it retries at another node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Anvil keeps this many states: more than the final depth, and no more than fits in memory.
const STATES: u32 = 64;

/// Further settings: short times, so that the run takes less time. Bumps create attempts, of which any may be
/// mined.
const MORE: &str = "[nonce]\nstateTimeout = \"5s\"\n\
                    [lane]\ngapFillAfter = \"5s\"\n\
                    [resubmit]\ninterval = \"5s\"\npolicy = \"bump\"\n\
                    [confirmations]\nstaleReceiptTimeout = \"5s\"\n";

/// The parts. They end with the value: the nodes first.
pub(crate) struct World {
    pub(crate) nodes: Nodes,
    pub(crate) links: Vec<Links>,
    pub(crate) database: Database,
    pub(crate) network: Network,
    /// The height of anvil's last start: it has no state below.
    pub(crate) chain_since: AtomicU64,
    pub(crate) lanes: Vec<String>,
    pub(crate) ledger: Arc<Ledger>,
    logs: PathBuf,
}

/// The links of one node.
pub(crate) struct Links {
    pub(crate) database: TcpProxy,
    /// The link from its peers.
    pub(crate) peers: TcpProxy,
    pub(crate) chain: Vec<Arc<RpcProxy>>,
    pub(crate) clock: Clock,
}

impl World {
    pub(crate) async fn start(node_kind: NodeKind, seed: u64) -> Outcome<Self> {
        let major = majors().last().copied().ok_or("no PostgreSQL")?;
        print_step(format!(
            "PostgreSQL {major} twice, {}, three nodes",
            node_kind.name()
        ));
        let home = Arc::new(Scratch::new()?);
        std::fs::remove_dir_all(logs_of(PROOF)?)?; // logs of an earlier run
        let logs = logs_of(PROOF)?;
        let database = Database::start(major, logs.clone()).await?;
        let terms = Terms {
            states: Some(STATES),
            ..Terms::default()
        };
        let network = Network::start(node_kind, terms).await?;
        let clocks = Clocks::build(&home).await?;
        let (mut nodes, mut links) = (Vec::new(), Vec::new());
        for number in 0..NODES {
            let to_database = TcpProxy::in_front_of(database.port());
            let store = database.url_through(to_database.port()).await;
            let name = letter(number).to_string();
            let (clock, env) = clocks.add(&name)?;
            let mut node = Node::new(name, store, &home, &logs)?;
            node.env = env;
            let peers = TcpProxy::in_front_of(node.listen().port());
            let seeds =
                (0..ENDPOINTS).map(|endpoint| seed ^ (number * ENDPOINTS + endpoint) as u64);
            let chain: Vec<Arc<RpcProxy>> = seeds
                .map(|seed| Arc::new(RpcProxy::in_front_of(network.url(), seed)))
                .collect();
            config(&peers, &chain).write(&node)?;
            nodes.push(node);
            links.push(Links {
                database: to_database,
                peers,
                chain,
                clock,
            });
        }
        migrate(nodes[0].config()).await?;
        Ok(Self {
            nodes: Nodes::start(nodes, home).await?,
            links,
            database,
            network,
            chain_since: AtomicU64::new(0),
            lanes: (0..LANES).map(signer).collect(),
            ledger: Arc::default(),
            logs,
        })
    }

    /// The load, with separate clients per lane, so that a stalled lane does not delay the clients of another.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let apis = self.nodes.apis();
        let balancers = [
            Balancer::in_front_of(apis.clone()),
            Balancer::without_checks(apis),
        ];
        let mut loads = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            for (way, (balancer, clients)) in balancers.iter().zip(CLIENTS).enumerate() {
                let plan = Plan {
                    pause: CLIENT_PAUSE,
                    timeout: REQUEST_TIMEOUT,
                    estimates: way == BLIND,
                    ..Plan::new(&format!("l{number}w{way}"), from_ref(lane), clients)
                };
                loads.push(Load::start(plan, balancer, &self.ledger));
            }
        }
        loads
    }

    /// Repairs everything that a fault may have left, and waits until all nodes are ready.
    pub(crate) async fn heal(&self) -> Outcome<()> {
        for (number, links) in self.links.iter().enumerate() {
            links.database.heal();
            links.peers.heal();
            links.clock.set(0)?;
            for proxy in &links.chain {
                proxy.heal();
            }
            self.nodes.start_again(number).await?;
        }
        self.network.resume_mining().await?;
        self.nodes.ready().await?;
        self.database.is_sound().await
    }
}

impl World {
    /// Keeps the logs of the servers too: their directories are deleted.
    pub(crate) async fn keep_logs(&self) -> Outcome<()> {
        self.database.keep_logs().await?;
        if let Some(log) = self.network.log() {
            std::fs::write(self.logs.join("chain.log"), log)?;
        }
        Ok(())
    }
}

fn config(peers: &TcpProxy, chain: &[Arc<RpcProxy>]) -> Config {
    Config {
        advertise: Some(format!("http://127.0.0.1:{}", peers.port())),
        drain_delay: Duration::from_millis(500),
        rpc: chain.iter().map(|proxy| proxy.url()).collect(),
        block_time: Some(Duration::from_secs(1)),
        confirmations: CONFIRMATIONS,
        lease: Some(LEASE),
        lanes: LANES,
        more: MORE.to_owned(),
        ..Config::default()
    }
}
