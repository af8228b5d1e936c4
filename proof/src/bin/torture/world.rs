//! Everything that is real here: three nodes, each with lines of its own to the database, to the chain and
//! from its peers, which fail on command.

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
use proof::network::{Make, Network, Terms, signer};
use proof::{Outcome, Scratch, say};
use rig::postgres::majors;
use rig::proxy::TcpProxy;
use rig::rpc_proxy::RpcProxy;

use crate::clock::{Clock, Clocks};
use crate::database::Database;
use crate::kind::NODES;
use crate::nodes::Nodes;
use crate::plan::letter;

/// The name of this proof.
pub(crate) const PROOF: &str = "05-3-torture";

/// The times of leases: every freeze and every cut of the plan may outlast them.
pub(crate) const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew: Duration::from_millis(900),
    skew: Duration::from_millis(500),
};

/// How many accounts are paid from.
pub(crate) const LANES: u32 = 6;

/// Endpoints per node: with one of them in trouble there is another.
pub(crate) const ENDPOINTS: usize = 2;

/// Blocks that make a result final.
pub(crate) const CONFIRMATIONS: u64 = 6;

/// Clients per lane behind a load balancer that asks for readiness, and behind one that asks nothing. Only
/// the latter leave gas out at times: without a chain nobody can estimate it, and all would wait for that.
const CLIENTS: [usize; 2] = [2, 1];
const BLIND: usize = 1;

/// How long each rests between two payments. So there are at most 26 payments per second, and 47,000 in
/// half an hour: each is an account on chain, and anvil copies all accounts for every block.
const CLIENT_RESTS: Duration = Duration::from_millis(700);

/// How long a client waits for an answer before it repeats at another node.
const PATIENCE: Duration = Duration::from_secs(3);

/// Of so many blocks anvil remembers the state: more than final depth, and no more than it can hold.
const STATES: u32 = 64;

/// What the nodes are told besides: short times, so that what takes minutes in production takes seconds.
/// Bumps make new attempts, of which any may be mined.
const MORE: &str = "[nonce]\nstateTimeout = \"5s\"\n\
                    [lane]\ngapFillAfter = \"5s\"\n\
                    [resubmit]\ninterval = \"5s\"\npolicy = \"bump\"\n\
                    [confirmations]\nstaleReceiptTimeout = \"5s\"\n";

/// The whole. Ends with the value: the nodes first, what they need after them.
pub(crate) struct World {
    pub(crate) nodes: Nodes,
    pub(crate) lines: Vec<Lines>,
    pub(crate) database: Database,
    pub(crate) network: Network,
    /// The height at which anvil was started last: it knows no state below.
    pub(crate) chain_since: AtomicU64,
    pub(crate) lanes: Vec<String>,
    pub(crate) ledger: Arc<Ledger>,
    logs: PathBuf,
}

/// What leads to and from one node.
pub(crate) struct Lines {
    pub(crate) database: TcpProxy,
    /// On which its peers reach it.
    pub(crate) peers: TcpProxy,
    pub(crate) chain: Vec<Arc<RpcProxy>>,
    pub(crate) clock: Clock,
}

impl World {
    pub(crate) async fn start(make: Make, seed: u64) -> Outcome<Self> {
        let major = majors().last().copied().ok_or("no PostgreSQL")?;
        say(format!(
            "PostgreSQL {major} twice, {}, three nodes",
            make.name()
        ));
        let home = Arc::new(Scratch::new()?);
        std::fs::remove_dir_all(logs_of(PROOF)?)?; // what a former run left
        let logs = logs_of(PROOF)?;
        let database = Database::start(major, logs.clone()).await?;
        let terms = Terms {
            states: Some(STATES),
            ..Terms::default()
        };
        let network = Network::start(make, terms).await?;
        let clocks = Clocks::build(&home).await?;
        let (mut nodes, mut lines) = (Vec::new(), Vec::new());
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
            lines.push(Lines {
                database: to_database,
                peers,
                chain,
                clock,
            });
        }
        migrate(nodes[0].config()).await?;
        Ok(Self {
            nodes: Nodes::start(nodes, home).await?,
            lines,
            database,
            network,
            chain_since: AtomicU64::new(0),
            lanes: (0..LANES).map(signer).collect(),
            ledger: Arc::default(),
            logs,
        })
    }

    /// Businesses that pay, some of them on each lane alone, so that a lane that stands still holds up
    /// nobody who pays from another.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let apis = self.nodes.apis();
        let balancers = [Balancer::before(apis.clone()), Balancer::blind(apis)];
        let mut loads = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            for (way, (balancer, clients)) in balancers.iter().zip(CLIENTS).enumerate() {
                let plan = Plan {
                    pause: CLIENT_RESTS,
                    patience: PATIENCE,
                    estimates: way == BLIND,
                    ..Plan::new(&format!("l{number}w{way}"), from_ref(lane), clients)
                };
                loads.push(Load::start(plan, balancer, &self.ledger));
            }
        }
        loads
    }

    /// Takes back everything that a fault may have left, and waits until all nodes are ready.
    pub(crate) async fn heal(&self) -> Outcome<()> {
        for (number, lines) in self.lines.iter().enumerate() {
            lines.database.heal();
            lines.peers.heal();
            lines.clock.set(0)?;
            for proxy in &lines.chain {
                proxy.heal();
            }
            self.nodes.start_again(number).await?;
        }
        self.network.make_blocks().await?;
        self.nodes.ready().await?;
        self.database.is_sound().await
    }
}

impl World {
    /// Keeps the logs of the servers too: their folders go with them.
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
