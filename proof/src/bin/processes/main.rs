//! 3.2, by processes: a keeper that is cut off, put to sleep, or frozen in the middle of a transaction
//! while another takes its lane over and its lease runs out; under load, again and again. Whatever it
//! does when it comes back: every accepted tx exactly once.

mod frozen;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, Settings, Signal, aside, chosen_majors, postgres, wires};
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, demand, eventually, flag, say};
use rig::postgres::{Database, Postgres};
use rig::proxy::{TcpProxy, Then};
use serde_json::json;

/// The lane whose keeper is troubled.
const LANE: usize = 0;

/// How many answers of the gate are lost per round.
const LOST_PER_ROUND: u64 = 4;

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new("03-2-processes");
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

/// Three nodes, each with a wire of its own to the database.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) wires: Vec<TcpProxy>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) settings: Settings,
    pub(crate) database: Arc<Database>,
    server: Arc<Postgres>,
}

/// A trouble of a lane's keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// SIGSTOP until its lease is over and taken.
    Asleep,
    /// Its wire to the database stands still, in whatever statement it was.
    CutOff,
    /// Its transaction stands still inside the database, holding its locks, and so does the process.
    InTransaction,
    /// Only its renewals stand still: it writes on until the gate refuses it.
    Unaware,
    /// Commits whose answers are lost.
    Unanswered,
}

impl Trouble {
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

async fn prove(report: &mut Report) -> Outcome<String> {
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
    for trouble in Trouble::ALL {
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
    let version = aside(move || server.ask("SHOW server_version")).await?;
    report.fact("postgres", version);
    Ok(format!(
        "PostgreSQL {major}: {}: {accepted} txs exactly once, 0 lost, 0 doubled",
        figures.join(", ")
    ))
}

async fn world(major: u32) -> Outcome<World> {
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = Arc::new(aside(move || of_database.database("processes")).await?);
    let (wires, stores) = wires(&server, &database, 3);
    let settings = Settings::new("03-2-processes", 3);
    Ok(World {
        cluster: Cluster::start(settings.clone(), &stores).await?,
        wires,
        ledger: Arc::default(),
        settings,
        database,
        server,
    })
}

/// The same trouble again and again under one load.
async fn series(world: &World, trouble: Trouble, rounds: usize) -> Outcome<(Spread, f64)> {
    say(format!("{trouble:?}, {rounds} times"));
    let cluster = &world.cluster;
    // Nothing else runs in the gate while a backend of this lane is looked for.
    let lanes = match trouble {
        Trouble::InTransaction => &cluster.lanes[..1],
        Trouble::Asleep | Trouble::CutOff | Trouble::Unaware | Trouble::Unanswered => {
            &cluster.lanes[..]
        }
    };
    // Whoever asks a frozen node soon asks another one.
    let plan = Plan {
        patience: Duration::from_millis(1_500),
        ..Plan::new(trouble.name(), lanes, 16)
    };
    let load = Load::start(plan, &cluster.blind_balancer(), &world.ledger);
    cluster.accepted_under(&load, 50, LANE, 1).await?;
    let fenced_before = fenced(world).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        tokio::time::sleep(Duration::from_millis(rand::random_range(300..1_000))).await;
        let time = match trouble {
            Trouble::Asleep => asleep(world, &load).await?,
            Trouble::CutOff => cut_off(world, &load).await?,
            Trouble::InTransaction => frozen::in_transaction(world, &load).await?,
            Trouble::Unaware => {
                let deposed = cluster.depose(&world.wires, &load, LANE, LANE);
                deposed.await?.after
            }
            Trouble::Unanswered => unanswered(world, &load).await?,
        };
        say(format!("the lane accepts after {} ms", ms(time)));
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

/// How long trouble lasts: past the lease, and the one who takes over has begun.
pub(crate) fn long_enough(world: &World) -> Duration {
    world.settings.lease.over_after() + Duration::from_millis(rand::random_range(0..1_000))
}

/// A node that sleeps past its lease and wakes up.
async fn asleep(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.some_keeper(0, LANE).await?;
    let (from, began) = (load.len(), Instant::now());
    let node = &cluster.nodes[keeper.node];
    node.signal(Signal::Stop).await?;
    let taken = cluster.accepted_under(load, from, LANE, keeper.token + 1);
    let taken = taken.await;
    // Whatever happened, it must not stay frozen.
    node.signal(Signal::Continue).await?;
    Ok(taken?.answered.duration_since(began))
}

/// A node that cannot reach the database, while it reaches everything else and is reached itself.
async fn cut_off(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.some_keeper(0, LANE).await?;
    let (from, began) = (load.len(), Instant::now());
    let wire = &world.wires[keeper.node];
    wire.freeze();
    let taken = cluster.accepted_under(load, from, LANE, keeper.token + 1);
    let taken = taken.await;
    wire.heal();
    Ok(taken?.answered.duration_since(began))
}

/// Commits that are carried out and whose answers never come, by a closed connection or by silence.
async fn unanswered(world: &World, load: &Load) -> Outcome<Duration> {
    let cluster = &world.cluster;
    let keeper = cluster.some_keeper(0, LANE).await?;
    let wire = &world.wires[keeper.node];
    let began = Instant::now();
    for number in 0..LOST_PER_ROUND {
        let then = if number.is_multiple_of(2) {
            Then::Cut
        } else {
            Then::Silence
        };
        let lost = wire.lost();
        wire.lose_answer_to("lk_gate", then);
        eventually("an answer is lost", Duration::from_secs(20), || async {
            Ok((wire.lost() > lost).then_some(()))
        })
        .await?;
    }
    let from = load.len();
    cluster
        .accepted_under(load, from, LANE, keeper.token)
        .await?;
    let time = began.elapsed();
    demand(wire.lost() >= LOST_PER_ROUND, "answers were not lost")?;
    wire.heal();
    Ok(time)
}
