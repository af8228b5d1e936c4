//! Asynchronous replication is cut, the primary goes on acknowledging, then dies: the standby that is
//! promoted lacks commits that were promised.
//!
//! Three lanes lose something. Of the first, the bytes wait in the chain's pool and its keeper lives: it
//! names the requests. Of the second, the keeper dies with the primary: the chain names the nonces. Of
//! the third, no byte ever reached a chain: only its keeper's memory knows. A fourth lost nothing.

mod checks;

use std::sync::Arc;
use std::time::Duration;

use proof::cluster::{Cluster, Node, aside, postgres};
use proof::ledger::{Ledger, Promise};
use proof::wire::Wire;
use proof::{Outcome, Report, eventually, say};
use rig::postgres::Postgres;
use serde_json::{Value, json};

use crate::promotion::{noticed, standby_of};

/// How many requests of a lane are lost: few enough to be named one by one.
const LOST: usize = 5;

/// How long a halted lane is watched: leases end, other nodes try, and it must stay halted.
const WATCHED: Duration = Duration::from_secs(10);

/// The lanes of the cluster by their fate.
pub(crate) struct Fates {
    /// Its keeper lives, its bytes are in the pool.
    pub(crate) named: usize,
    /// Its keeper dies with the primary.
    pub(crate) orphaned: usize,
    /// Its bytes never reached the chain.
    pub(crate) unsent: usize,
    /// Nothing of it is lost.
    pub(crate) whole: usize,
    /// The node that dies.
    pub(crate) dies: usize,
}

pub(crate) async fn prove(report: &mut Report, major: u32) -> Outcome<String> {
    say("an asynchronous standby without the last commits is promoted");
    let primary = postgres(major).await?;
    let of_database = Arc::clone(&primary);
    let database = aside(move || of_database.database("loss")).await?;
    let standby = standby_of(&primary, false).await?;
    let wire = Wire::to(primary.port()).await?;
    let stores = vec![database.url_through(wire.port()); 3];
    let mut cluster = Cluster::start(crate::settings(6), &stores).await?;
    let ledger = Ledger::default();
    for lane in 0..cluster.lanes.len() {
        pay(&cluster, &ledger, lane, "before", 3).await?;
    }
    cluster.audit(&ledger).await?;
    let fates = choose(&cluster).await?;
    caught_up(&primary, &standby).await?;
    let cut = Arc::clone(&standby);
    aside(move || cut.stop()).await?;

    let lost = lose(&mut cluster, &fates).await?;
    let (dying, rising) = (Arc::clone(&primary), Arc::clone(&standby));
    aside(move || {
        dying.kill();
        rising.start_again();
        rising.promote();
    })
    .await?;
    wire.lead_to(standby.port());

    noticed_by_the_living(&cluster, &fates).await?;
    cluster.chain_wire.heal();
    let figure = checks::halted(report, &cluster, &fates, &lost).await?;
    pay(&cluster, &ledger, fates.whole, "meanwhile", 3).await?;
    checks::resumed(report, &cluster, &fates, &lost, &ledger).await?;
    Ok(figure)
}

/// Lanes whose keepers differ, so that one can die and the other live.
async fn choose(cluster: &Cluster) -> Outcome<Fates> {
    let mut keepers = Vec::new();
    for lane in 0..cluster.lanes.len() {
        keepers.push(cluster.some_keeper(0, lane).await?);
    }
    say(format!("lane by lane, the keepers are {keepers:?}"));
    for dies in 0..cluster.nodes.len() {
        let (orphaned, living): (Vec<usize>, Vec<usize>) =
            (0..keepers.len()).partition(|lane| keepers[*lane].node == dies);
        if let ([orphaned, ..], [named, unsent, whole, ..]) = (&orphaned[..], &living[..]) {
            return Ok(Fates {
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

/// Until the standby has everything.
async fn caught_up(primary: &Arc<Postgres>, standby: &Arc<Postgres>) -> Outcome<()> {
    let (primary, standby) = (Arc::clone(primary), Arc::clone(standby));
    aside(move || {
        let at = primary
            .ask("SELECT pg_current_wal_lsn()")
            .unwrap_or_default();
        let has_all = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
        rig::until("the standby has caught up", Duration::from_secs(20), || {
            (standby.ask(&has_all).as_deref() == Some("t")).then_some(())
        });
    })
    .await
}

/// What was promised and then lost, by lane.
pub(crate) struct Lost {
    pub(crate) books: Ledger,
}

impl Lost {
    /// The request ids of a lane.
    pub(crate) fn requests(&self, lane: &str) -> Vec<String> {
        let payments = self.books.payments();
        let of_lane = payments
            .iter()
            .filter(|(_, payment)| payment.signer == lane);
        of_lane.map(|(id, _)| id.clone()).collect()
    }
}

/// Promises that only the old primary will ever know of.
async fn lose(cluster: &mut Cluster, fates: &Fates) -> Outcome<Lost> {
    let chain = &cluster.chain.chain;
    chain.call("evm_setAutomine", json!([false])).await?;
    let lost = Lost {
        books: Ledger::default(),
    };
    pay(cluster, &lost.books, fates.named, "named", LOST).await?;
    pay(cluster, &lost.books, fates.orphaned, "orphaned", LOST).await?;
    in_pool(cluster, fates.named).await?;
    in_pool(cluster, fates.orphaned).await?;
    cluster.chain_wire.cut();
    pay(cluster, &lost.books, fates.unsent, "unsent", LOST).await?;
    cluster.nodes[fates.dies].kill_nine().await?;
    Ok(lost)
}

/// Until the chain's pool has all that was lost of a lane.
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

/// Pays from a lane, at any node that answers, and is promised a nonce each time.
pub(crate) async fn pay(
    cluster: &Cluster,
    ledger: &Ledger,
    lane: usize,
    name: &str,
    count: usize,
) -> Outcome<()> {
    for number in 0..count {
        let id = format!("{name}-{lane}-{number}");
        let mut body = ledger.ask(&cluster.lanes[lane], &id);
        body["payload"]["gas"] = json!("21000"); // nobody need ask the chain for it
        let tx = accepted(cluster, &body).await?;
        ledger.promised(&id, Promise::read(&tx))?;
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

async fn noticed_by_the_living(cluster: &Cluster, fates: &Fates) -> Outcome<()> {
    for node in living(cluster, fates) {
        noticed(node, 1).await?;
    }
    Ok(())
}

/// All nodes but the one that died.
pub(crate) fn living<'a>(cluster: &'a Cluster, fates: &Fates) -> impl Iterator<Item = &'a Node> {
    let dead = fates.dies;
    let nodes = cluster.nodes.iter().enumerate();
    nodes.filter_map(move |(number, node)| (number != dead).then_some(node))
}
