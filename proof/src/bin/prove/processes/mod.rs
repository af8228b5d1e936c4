//! 3.2, with processes: a keeper is disconnected, frozen, or frozen in the middle of a transaction, while another
//! node takes over its lane and its lease ends; repeatedly under load. After every recovery: every accepted tx
//! exactly once.

mod frozen;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{
    Cluster, Settings, Signal, chosen_majors, database_proxies, postgres, run_blocking,
};
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, eventually, flag, print_step};
use rig::postgres::{Database, Postgres};
use rig::proxy::{AfterLoss, TcpProxy};
use serde_json::json;

/// The lane whose keeper fails.
const LANE: usize = 0;

/// Lost responses of the gate per round.
const LOST_PER_ROUND: u64 = 4;

/// Three nodes, each with its own database proxy.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) database_proxies: Vec<TcpProxy>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) settings: Settings,
    pub(crate) database: Arc<Database>,
    server: Arc<Postgres>,
}

/// A fault of a lane's keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceFault {
    /// SIGSTOP until its lease has ended and another node has taken over.
    Asleep,
    /// Its database connection freezes, in any statement.
    CutOff,
    /// Its transaction freezes inside the database, holding its locks, and so does the process.
    InTransaction,
    /// Only its renewals are held: it writes until the gate refuses it.
    Unaware,
    /// Commits whose responses are lost.
    Unanswered,
}

impl FenceFault {
    const ALL: [Self; 5] = [
        Self::Asleep,
        Self::CutOff,
        Self::InTransaction,
        Self::Unaware,
        Self::Unanswered,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::CutOff => "cutOff",
            Self::InTransaction => "inTransaction",
            Self::Unaware => "unaware",
            Self::Unanswered => "unanswered",
        }
    }
}

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: usize = flag("rounds", "8").parse()?;
    let mut figures = Vec::new();
    for major in chosen_majors(&["rounds", "only"])? {
        report.part(format!("PostgreSQL {major}"));
        figures.push(prove_on(report, major, rounds).await?);
    }
    Ok(figures.join("; "))
}

async fn prove_on(report: &mut Report, major: u32, rounds: usize) -> Outcome<String> {
    let only = flag("only", "");
    let world = world(major).await?;
    let mut figures = Vec::new();
    let mut accepted = 0;
    for trouble in FenceFault::ALL {
        let name = trouble.name();
        if !only.is_empty() && only != name {
            continue;
        }
        let (times, fenced) = series(&world, trouble, rounds).await?;
        accepted = world.cluster.audit(&world.ledger).await?.promised;
        report.fact(
            name,
            json!({
                "rounds": rounds,
                "untilTheNextAccepts": times.to_json(),
                "refusedByTheFence": fenced,
                "acceptedSoFar": accepted,
            }),
        );
        figures.push(format!("{name} ×{rounds}"));
    }
    let server = Arc::clone(&world.server);
    let version = run_blocking(move || server.query_value("SHOW server_version")).await?;
    report.fact("postgres", version);
    Ok(format!(
        "PostgreSQL {major}: {}: {accepted} txs exactly once, 0 lost, 0 duplicated",
        figures.join(", ")
    ))
}

async fn world(major: u32) -> Outcome<World> {
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = Arc::new(run_blocking(move || of_database.database("processes")).await?);
    let (database_proxies, stores) = database_proxies(&server, &database, 3);
    let settings = Settings::new("03-2-processes", 3);
    Ok(World {
        cluster: Cluster::start(settings.clone(), &stores).await?,
        database_proxies,
        ledger: Arc::default(),
        settings,
        database,
        server,
    })
}

/// The same fault repeatedly under one load.
async fn series(world: &World, trouble: FenceFault, rounds: usize) -> Outcome<(Spread, f64)> {
    print_step(format!("{trouble:?}, {rounds} times"));
    let cluster = &world.cluster;
    // No other load runs in the gate while a backend of this lane is searched.
    let lanes = match trouble {
        FenceFault::InTransaction => &cluster.lanes[..1],
        FenceFault::Asleep | FenceFault::CutOff | FenceFault::Unaware | FenceFault::Unanswered => {
            &cluster.lanes[..]
        }
    };
    // A client of a frozen node soon tries another one.
    let plan = Plan {
        timeout: Duration::from_millis(1_500),
        ..Plan::new(trouble.name(), lanes, 16)
    };
    let load = Load::start(plan, &cluster.unchecked_balancer(), &world.ledger);
    cluster.wait_accepted_with_token(&load, 50, LANE, 1).await?;
    let fenced_before = fenced(world).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        tokio::time::sleep(Duration::from_millis(rand::random_range(300..1_000))).await;
        let time = match trouble {
            FenceFault::Asleep => frozen_process(world, &load).await?,
            FenceFault::CutOff => cut_off(world, &load).await?,
            FenceFault::InTransaction => frozen::in_transaction(world, &load).await?,
            FenceFault::Unaware => {
                let fenced_keeper =
                    cluster.fence_keeper(&world.database_proxies, &load, LANE, LANE);
                fenced_keeper.await?.after
            }
            FenceFault::Unanswered => unanswered(world, &load).await?,
        };
        print_step(format!("the lane accepts after {} ms", ms(time)));
        times.push(time);
        for node in &cluster.nodes {
            node.ready().await?;
        }
    }
    load.stop().await?;
    Ok((Spread::of(times), fenced(world).await? - fenced_before))
}

async fn fenced(world: &World) -> Outcome<f64> {
    let mut sum = 0.0;
    for node in &world.cluster.nodes {
        sum += node.metric("lanekeeper_lease_fenced_total", "").await?;
    }
    Ok(sum)
}

/// How long a fault lasts: longer than the lease, until the new keeper has started.
pub(crate) fn long_enough(world: &World) -> Duration {
    world.settings.lease.over_after() + Duration::from_millis(rand::random_range(0..1_000))
}

/// A node that is frozen past its lease and resumes.
async fn frozen_process(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.wait_keeper(0, LANE).await?;
    let (from, began) = (load.len(), Instant::now());
    let node = &cluster.nodes[keeper.node];
    node.signal(Signal::Stop).await?;
    let taken = cluster.wait_accepted_with_token(load, from, LANE, keeper.token + 1);
    let taken = taken.await;
    // It must be resumed in any case.
    node.signal(Signal::Continue).await?;
    Ok(taken?.answered_at.duration_since(began))
}

/// A node without its database, while everything else is reachable.
async fn cut_off(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.wait_keeper(0, LANE).await?;
    let (from, began) = (load.len(), Instant::now());
    let wire = &world.database_proxies[keeper.node];
    wire.freeze();
    let taken = cluster.wait_accepted_with_token(load, from, LANE, keeper.token + 1);
    let taken = taken.await;
    wire.heal();
    Ok(taken?.answered_at.duration_since(began))
}

/// Commits whose responses are lost, by a closed connection or by silence.
async fn unanswered(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.wait_keeper(0, LANE).await?;
    let wire = &world.database_proxies[keeper.node];
    let began = Instant::now();
    for number in 0..LOST_PER_ROUND {
        let then = if number.is_multiple_of(2) {
            AfterLoss::Cut
        } else {
            AfterLoss::Silence
        };
        let lost = wire.lost();
        wire.lose_answer_to("lanekeeper_gate", then);
        eventually("an answer is lost", Duration::from_secs(20), || async {
            Ok((wire.lost() > lost).then_some(()))
        })
        .await?;
    }
    let from = load.len();
    cluster
        .wait_accepted_with_token(load, from, LANE, keeper.token)
        .await?;
    let time = began.elapsed();
    ensure(wire.lost() >= LOST_PER_ROUND, "answers were not lost")?;
    wire.heal();
    Ok(time)
}
