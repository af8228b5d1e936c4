//! The primary dies and its synchronous standby is promoted, behind a virtual address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, Node, postgres, run_blocking};
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::stats::{Spread, ms};
use proof::virtual_address::VirtualAddress;
use proof::{Outcome, Report, ensure, eventually, print_step};
use rig::postgres::Postgres;
use serde_json::json;

/// A node notices the new timeline within this time.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

const NOTICED: &str = "lanekeeper_store_history_changes_total";

/// All lanes accept again within this time after the primary's death; most of it is the promotion.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn prove(report: &mut Report, major: u32, promotions: usize) -> Outcome<String> {
    print_step(format!("{promotions} synchronous standbys are promoted"));
    let mut primary = postgres(major).await?;
    let of_database = Arc::clone(&primary);
    let database = run_blocking(move || of_database.database("promotion")).await?;
    let mut standby = standby_of(&primary, true).await?;
    let wire = VirtualAddress::to(primary.port()).await?;
    let stores = vec![database.url_through(wire.port()); 3];
    let cluster = Cluster::start(crate::database::settings(3), &stores).await?;
    let ledger = Arc::new(Ledger::default());
    let plan = Plan::new("sync", &cluster.lanes, 12);
    let load = Load::start(plan, &cluster.balancer(), &ledger);
    cluster.wait_accepted_with_token(&load, 100, 0, 1).await?;
    let mut times = Vec::new();
    for round in 1..=promotions {
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..2_000))).await;
        let from = Instant::now();
        promote(&primary, &standby, &wire).await?;
        let answers = load.len();
        for lane in 0..cluster.lanes.len() {
            cluster
                .wait_accepted_with_token(&load, answers, lane, 1)
                .await?;
        }
        times.push(from.elapsed());
        for node in &cluster.nodes {
            noticed(node, round).await?;
        }
        print_step(format!(
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
    ensure(
        times.max() <= ACCEPTS_WITHIN,
        format!(
            "a lane accepted again only {:?} after the primary died",
            times.max()
        ),
    )?;
    Ok(format!(
        "{promotions} synchronous promotions: noticed by every node, lanes accept again after at most {} ms, {} \
         txs exactly once",
        ms(times.max()),
        counted.promised
    ))
}

pub(crate) async fn standby_of(primary: &Arc<Postgres>, sync: bool) -> Outcome<Arc<Postgres>> {
    let primary = Arc::clone(primary);
    Ok(Arc::new(run_blocking(move || primary.standby(sync)).await?))
}

/// Kills the primary, promotes the standby, and switches the virtual address.
pub(crate) async fn promote(
    primary: &Arc<Postgres>,
    standby: &Arc<Postgres>,
    wire: &VirtualAddress,
) -> Outcome<()> {
    let (dying, rising) = (Arc::clone(primary), Arc::clone(standby));
    run_blocking(move || {
        dying.kill();
        rising.promote();
    })
    .await?;
    wire.point_to(standby.port());
    Ok(())
}

/// Waits until a node has logged `times` changes of the history.
pub(crate) async fn noticed(node: &Node, times: usize) -> Outcome<()> {
    let what = format!("node {} notices the change of history", node.name);
    eventually(&what, NOTICED_WITHIN, || async {
        let noticed = node.metric(NOTICED, "").await?;
        Ok((noticed >= times as f64).then_some(()))
    })
    .await?;
    ensure(
        node.logged("history changed")? >= times,
        format!("node {} does not log it", node.name),
    )
}
