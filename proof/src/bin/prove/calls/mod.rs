//! 4.2: Lanekeeper's calls to a node, counted by a proxy: per tx under load, and per block while all txs wait and
//! nothing happens. One endpoint, gas given, anvil with a block time of 1 s.

mod busy;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use proof::cluster::postgres;
use proof::config::Config;
use proof::network::{Network, NodeKind, Terms};
use proof::single_node::{self, SingleNode};
use proof::{Outcome, Report, flag, print_step};
use rig::postgres::{Database, Postgres, majors};
use rig::rpc_proxy::RpcProxy;

const PROOF: &str = "04-2-calls";
/// Room for 2,000 transfers: with more in one block anvil is unresponsive for minutes.
const BLOCK_GAS_LIMIT: u64 = 42_000_000;
/// Each with one POST per tx.
pub(crate) const CLIENTS: usize = 64;
pub(crate) const DONE_WITHIN: Duration = Duration::from_secs(180);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "2000").parse()?;
    let pending: usize = flag("pending", "10000").parse()?;
    // Longer than every period of a lane, so that all periodic work is counted.
    let blocks: u64 = flag("blocks", "75").parse()?;
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let busy = busy::count(report, &server, count).await;
    let waiting = waiting::count(report, &server, pending, blocks).await;
    // A failed part must not hide the result of the other.
    match (busy, waiting) {
        (Ok(busy), Ok(waiting)) => Ok(format!("{busy}; {waiting}")),
        (Err(short), Ok(fine)) | (Ok(fine), Err(short)) => {
            Err(format!("{short}; but {fine}").into())
        }
        (Err(busy), Err(waiting)) => Err(format!("{busy}; {waiting}").into()),
    }
}

/// A chain, a counting proxy, and a Lanekeeper node behind the proxy.
pub(crate) struct Counted {
    pub(crate) single_node: SingleNode,
    pub(crate) proxy: RpcProxy,
    pub(crate) network: Network,
    _database: Database,
}

impl Counted {
    async fn start(name: &str, server: &Postgres, more: String) -> Outcome<Self> {
        Self::with_lanes(PROOF, (name, 1), server, more).await
    }

    /// For another proof, with a number of sending accounts.
    pub(crate) async fn with_lanes(
        proof: &'static str,
        (name, lanes): (&str, u32),
        server: &Postgres,
        more: String,
    ) -> Outcome<Self> {
        let terms = Terms {
            block_gas_limit: BLOCK_GAS_LIMIT,
            accounts: lanes,
            ..Terms::default()
        };
        let network = Network::start(NodeKind::ANVIL, terms).await?;
        let proxy = RpcProxy::in_front_of(network.chain.url(), 1);
        let database = server.database("calls");
        let single_node = SingleNode::start(&single_node::Terms {
            proof,
            name: name.to_owned(),
            store: Some(database.url().to_owned()),
            config: Config {
                rpc: vec![proxy.url()],
                confirmations: 2,
                lanes,
                more,
                ..Config::default()
            },
        })
        .await?;
        Ok(Self {
            single_node,
            proxy,
            network,
            _database: database,
        })
    }
}

/// Prints calls by method and per unit; returns the sum.
fn table(calls: &BTreeMap<String, u64>, units: f64, unit: &str) -> f64 {
    let per = |count: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let count = count as f64;
        count / units
    };
    for (method, count) in calls {
        print_step(format!(
            "{method:<28} {count:>7} {:>8.3} per {unit}",
            per(*count)
        ));
    }
    let all = calls.values().sum();
    print_step(format!(
        "{:<28} {all:>7} {:>8.3} per {unit}",
        "all",
        per(all)
    ));
    per(all)
}

/// The calls since an earlier count, by method.
pub(crate) fn calls_since(
    before: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let new = now.iter().map(|(method, count)| {
        let old = before.get(method).copied().unwrap_or_default();
        (method.clone(), count.saturating_sub(old))
    });
    new.filter(|(_, count)| *count > 0).collect()
}
