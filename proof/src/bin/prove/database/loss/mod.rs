//! Asynchronous replication is cut, the primary continues to acknowledge, then dies: the promoted standby lacks
//! commits that were promised.
//!
//! Three lanes lose commits. First lane: the bytes are in the chain's pool and its keeper survives, so it names the
//! requests. Second lane: the keeper dies with the primary, so the chain names the nonces. Third lane: no byte
//! reached a chain, so only the keeper's memory knows. A fourth lane loses nothing.

mod checks;

use std::sync::Arc;
use std::time::Duration;

use proof::cluster::{Cluster, Node, postgres, run_blocking};
use proof::ledger::{Ledger, Promise};
use proof::virtual_address::VirtualAddress;
use proof::{Outcome, Report, eventually, print_step};
use rig::postgres::Postgres;
use serde_json::{Value, json};

use crate::database::promotion::{noticed, standby_of};

/// Lost requests per lane: few enough to be named one by one.
const LOST: usize = 5;

/// How long a halted lane is watched: leases end and other nodes take over, and it must stay halted.
const WATCHED: Duration = Duration::from_secs(10);

/// The lanes by their kind of loss.
pub(crate) struct LossCases {
    /// The keeper survives, the bytes are in the pool.
    pub(crate) named: usize,
    pub(crate) orphaned: usize,
    /// The bytes never reached the chain.
    pub(crate) unsent: usize,
    pub(crate) whole: usize,
    pub(crate) dies: usize,
}

pub(crate) async fn prove(report: &mut Report, major: u32) -> Outcome<String> {
    print_step("an asynchronous standby without the last commits is promoted");
    let primary = postgres(major).await?;
    let of_database = Arc::clone(&primary);
    let database = run_blocking(move || of_database.database("loss")).await?;
    let standby = standby_of(&primary, false).await?;
    let wire = VirtualAddress::to(primary.port()).await?;
    let stores = vec![database.url_through(wire.port()); 3];
    let mut cluster = Cluster::start(crate::database::settings(6), &stores).await?;
    let ledger = Ledger::default();
    for lane in 0..cluster.lanes.len() {
        pay(&cluster, &ledger, lane, "before", 3).await?;
    }
    cluster.audit(&ledger).await?;
    let fates = choose(&cluster).await?;
    caught_up(&primary, &standby).await?;
    let cut = Arc::clone(&standby);
    run_blocking(move || cut.stop()).await?;

    let lost = lose(&mut cluster, &fates).await?;
    let (dying, rising) = (Arc::clone(&primary), Arc::clone(&standby));
    run_blocking(move || {
        dying.kill();
        rising.start_again();
        rising.promote();
    })
    .await?;
    wire.point_to(standby.port());

    wait_noticed(&cluster, &fates).await?;
    cluster.chain_wire.heal();
    let figure = checks::halted(report, &cluster, &fates, &lost).await?;
    pay(&cluster, &ledger, fates.whole, "meanwhile", 3).await?;
    checks::resumed(report, &cluster, &fates, &lost, &ledger).await?;
    Ok(figure)
}

/// Lanes with different keepers, so that one can die and the other survive.
async fn choose(cluster: &Cluster) -> Outcome<LossCases> {
    let mut keepers = Vec::new();
    for lane in 0..cluster.lanes.len() {
        keepers.push(cluster.wait_keeper(0, lane).await?);
    }
    print_step(format!("lane by lane, the keepers are {keepers:?}"));
    for dies in 0..cluster.nodes.len() {
        let (orphaned, running_nodes): (Vec<usize>, Vec<usize>) =
            (0..keepers.len()).partition(|lane| keepers[*lane].node == dies);
        if let ([orphaned, ..], [named, unsent, whole, ..]) = (&orphaned[..], &running_nodes[..]) {
            return Ok(LossCases {
                named: *named,
                unsent: *unsent,
                whole: *whole,
                orphaned: *orphaned,
                dies,
            });
        }
    }
    Err("the lanes do not spread over the nodes".into())
}

/// Waits until the standby has replayed everything.
async fn caught_up(primary: &Arc<Postgres>, standby: &Arc<Postgres>) -> Outcome<()> {
    let (primary, standby) = (Arc::clone(primary), Arc::clone(standby));
    run_blocking(move || {
        let at = primary
            .query_value("SELECT pg_current_wal_lsn()")
            .unwrap_or_default();
        let has_all = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
        rig::wait_until("the standby has caught up", Duration::from_secs(20), || {
            (standby.query_value(&has_all).as_deref() == Some("t")).then_some(())
        });
    })
    .await
}

/// The lost requests, by lane.
pub(crate) struct Lost {
    pub(crate) comparison: Ledger,
}

impl Lost {
    pub(crate) fn requests(&self, lane: &str) -> Vec<String> {
        let payments = self.comparison.payments();
        let of_lane = payments
            .iter()
            .filter(|(_, payment)| payment.signer == lane);
        of_lane.map(|(id, _)| id.clone()).collect()
    }
}

/// Makes promises that only the old primary contains.
async fn lose(cluster: &mut Cluster, fates: &LossCases) -> Outcome<Lost> {
    let chain = &cluster.chain.chain;
    chain.call("evm_setAutomine", json!([false])).await?;
    let lost = Lost {
        comparison: Ledger::default(),
    };
    pay(cluster, &lost.comparison, fates.named, "named", LOST).await?;
    pay(cluster, &lost.comparison, fates.orphaned, "orphaned", LOST).await?;
    in_pool(cluster, fates.named).await?;
    in_pool(cluster, fates.orphaned).await?;
    cluster.chain_wire.cut();
    pay(cluster, &lost.comparison, fates.unsent, "unsent", LOST).await?;
    cluster.nodes[fates.dies].kill_nine().await?;
    Ok(lost)
}

/// Waits until the pool contains the lost transactions of a lane.
async fn in_pool(cluster: &Cluster, lane: usize) -> Outcome<()> {
    let (chain, signer) = (&cluster.chain.chain, &cluster.lanes[lane]);
    let mined = chain.nonce(signer).await?;
    eventually(
        "the bytes are in the pool",
        Duration::from_secs(10),
        || async {
            let pending = chain.pending_nonce(signer).await?;
            Ok((pending == mined + LOST as u64).then_some(()))
        },
    )
    .await
}

/// Pays from a lane, at any responding node; each promise has a nonce.
pub(crate) async fn pay(
    cluster: &Cluster,
    ledger: &Ledger,
    lane: usize,
    name: &str,
    count: usize,
) -> Outcome<()> {
    for number in 0..count {
        let id = format!("{name}-{lane}-{number}");
        let mut body = ledger.transfer_body(&cluster.lanes[lane], &id);
        body["payload"]["gas"] = json!("21000"); // the chain is not needed for an estimate
        let tx = accepted(cluster, &body).await?;
        ledger.record_promise(&id, Promise::read(&tx))?;
    }
    Ok(())
}

async fn accepted(cluster: &Cluster, body: &Value) -> Outcome<Value> {
    eventually(
        "a payment is accepted with a nonce",
        Duration::from_secs(20),
        || async {
            for node in &cluster.nodes {
                if let Ok((status, tx)) = node.api.create(body.clone(), "").await
                    && status.is_success()
                    && tx["nonce"].is_u64()
                {
                    return Ok(Some(tx));
                }
            }
            Ok(None)
        },
    )
    .await
}

async fn wait_noticed(cluster: &Cluster, fates: &LossCases) -> Outcome<()> {
    for node in running_nodes(cluster, fates) {
        noticed(node, 1).await?;
    }
    Ok(())
}

/// All nodes except the dead one.
pub(crate) fn running_nodes<'a>(
    cluster: &'a Cluster,
    fates: &LossCases,
) -> impl Iterator<Item = &'a Node> {
    let dead = fates.dies;
    let nodes = cluster.nodes.iter().enumerate();
    nodes.filter_map(move |(number, node)| (number != dead).then_some(node))
}
