//! The primary dies and its synchronous standby is promoted, behind an address that stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, Node, aside, postgres};
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::stats::{Spread, ms};
use proof::wire::Wire;
use proof::{Outcome, Report, demand, eventually, say};
use rig::postgres::Postgres;
use serde_json::json;

/// How long a node may take until it has noticed that the history is another one.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

const NOTICED: &str = "lanekeeper_store_history_changes_total";

/// When the primary died, all lanes accept again within this: the promotion itself takes most of it.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn prove(report: &mut Report, major: u32, promotions: usize) -> Outcome<String> {
    say(format!("{promotions} synchronous standbys are promoted"));
    let mut primary = postgres(major).await?;
    let of_database = Arc::clone(&primary);
    let database = aside(move || of_database.database("promotion")).await?;
    let mut standby = standby_of(&primary, true).await?;
    let wire = Wire::to(primary.port()).await?;
    let stores = vec![database.url_through(wire.port()); 3];
    let cluster = Cluster::start(crate::settings(3), &stores).await?;
    let ledger = Arc::new(Ledger::default());
    let plan = Plan::new("sync", &cluster.lanes, 12);
    let load = Load::start(plan, &cluster.balancer(), &ledger);
    cluster.accepted_under(&load, 100, 0, 1).await?;
    let mut times = Vec::new();
    for round in 1..=promotions {
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..2_000))).await;
        let from = Instant::now();
        promote(&primary, &standby, &wire).await?;
        let answers = load.len();
        for lane in 0..cluster.lanes.len() {
            cluster.accepted_under(&load, answers, lane, 1).await?;
        }
        times.push(from.elapsed());
        for node in &cluster.nodes {
            noticed(node, round).await?;
        }
        say(format!(
            "promotion {round}: all lanes accept again {} ms after the primary died",
            ms(from.elapsed())
        ));
        primary = standby;
        standby = standby_of(&primary, true).await?;
    }
    load.stop().await?;
    let counted = cluster.audit(&ledger).await?;
    let times = Spread::of(times);
    report.fact(
        "synchronousPromotions",
        json!({
            "promotions": promotions,
            "untilAllLanesAccept": times.to_json(),
            "accepted": counted.promised,
        }),
    );
    demand(
        times.max() <= ACCEPTS_WITHIN,
        format!(
            "a lane accepted again only {:?} after the primary died",
            times.max()
        ),
    )?;
    Ok(format!(
        "{promotions} synchronous promotions: noticed by every node, lanes go on after at most {} ms, {} \
         txs exactly once",
        ms(times.max()),
        counted.promised
    ))
}

pub(crate) async fn standby_of(primary: &Arc<Postgres>, sync: bool) -> Outcome<Arc<Postgres>> {
    let primary = Arc::clone(primary);
    Ok(Arc::new(aside(move || primary.standby(sync)).await?))
}

/// Kills the primary, makes the standby the new one, and lets the address lead there.
pub(crate) async fn promote(
    primary: &Arc<Postgres>,
    standby: &Arc<Postgres>,
    wire: &Wire,
) -> Outcome<()> {
    let (dying, rising) = (Arc::clone(primary), Arc::clone(standby));
    aside(move || {
        dying.kill();
        rising.promote();
    })
    .await?;
    wire.lead_to(standby.port());
    Ok(())
}

/// Until a node has noticed that the history changed, for the `times`th time, and has logged it.
pub(crate) async fn noticed(node: &Node, times: usize) -> Outcome<()> {
    let what = format!("node {} notices the change of history", node.name);
    eventually(&what, NOTICED_WITHIN, || async {
        let noticed = node.metric(NOTICED, "").await?;
        Ok((noticed >= times as f64).then_some(()))
    })
    .await?;
    demand(
        node.logged("history changed")? >= times,
        format!("node {} does not tell it in its log", node.name),
    )
}
