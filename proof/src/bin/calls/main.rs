//! 4.2: how often Lanekeeper calls a node, counted by a proxy in front of it: per tx while it works, and per
//! block while everything it sent waits and nothing happens. One endpoint, gas given, blocks of 1 s on anvil.

mod busy;
mod waiting;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use proof::cluster::postgres;
use proof::config::Config;
use proof::network::{Make, Network, Terms};
use proof::solo::{self, Solo};
use proof::{Outcome, Report, flag, say};
use rig::postgres::{Database, Postgres, majors};
use rig::rpc_proxy::RpcProxy;

/// The name of this proof.
const PROOF: &str = "04-2-calls";
/// Room for 2,000 transfers: more in one block keep anvil busy for minutes, in which it answers nobody.
const BLOCK_GAS_LIMIT: u64 = 42_000_000;
/// Clients, one POST per tx.
const CLIENTS: usize = 64;
/// How long anything may take until it is mined and confirmed.
const DONE_WITHIN: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new(PROOF);
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "2000").parse()?;
    let pending: usize = flag("pending", "10000").parse()?;
    // Longer than every period of a lane, so that all that is done from time to time is counted.
    let blocks: u64 = flag("blocks", "75").parse()?;
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let busy = busy::count(report, &server, count).await;
    let waiting = waiting::count(report, &server, pending, blocks).await;
    // One that falls short must not hide what the other has found.
    match (busy, waiting) {
        (Ok(busy), Ok(waiting)) => Ok(format!("{busy}; {waiting}")),
        (Err(short), Ok(fine)) | (Ok(fine), Err(short)) => {
            Err(format!("{short}; but {fine}").into())
        }
        (Err(busy), Err(waiting)) => Err(format!("{busy}; {waiting}").into()),
    }
}

/// A chain, a proxy that counts, and a node of Lanekeeper that sees only the proxy.
struct Counted {
    solo: Solo,
    proxy: RpcProxy,
    network: Network,
    _database: Database,
}

impl Counted {
    async fn start(name: &str, server: &Postgres, more: String) -> Outcome<Self> {
        let terms = Terms {
            block_gas_limit: BLOCK_GAS_LIMIT,
            accounts: 1,
            ..Terms::default()
        };
        let network = Network::start(Make::ANVIL, terms).await?;
        let proxy = RpcProxy::in_front_of(network.chain.url(), 1);
        let database = server.database("calls");
        let solo = Solo::start(&solo::Terms {
            proof: PROOF,
            name: name.to_owned(),
            store: Some(database.url().to_owned()),
            config: Config {
                rpc: vec![proxy.url()],
                confirmations: 2,
                more,
                ..Config::default()
            },
        })
        .await?;
        Ok(Self {
            solo,
            proxy,
            network,
            _database: database,
        })
    }
}

/// Says calls by method, and what each comes to in units of something; gives the sum.
fn table(calls: &BTreeMap<String, u64>, units: f64, unit: &str) -> f64 {
    let per = |count: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let count = count as f64;
        count / units
    };
    for (method, count) in calls {
        say(format!(
            "{method:<28} {count:>7} {:>8.3} per {unit}",
            per(*count)
        ));
    }
    let all = calls.values().sum();
    say(format!(
        "{:<28} {all:>7} {:>8.3} per {unit}",
        "all",
        per(all)
    ));
    per(all)
}
