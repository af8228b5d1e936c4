//! 5.3: real processes through half an hour of bad luck. Three nodes, PostgreSQL with a synchronous standby
//! and an EVM node, under a load of payments with a recipient each; kills, freezes, partitions, lost answers,
//! crashes, promotions, restarts, forks and more, by a plan that is drawn from a seed. Then everything is
//! healed, and chain, store and promises must agree: every request exactly once.
//!
//! Bounded: `--for` at most 4 h, at most 26 payments per second (`world`), loopback only. Whatever was
//! started ends with the proof, also when it is killed.

mod clock;
mod database;
mod director;
mod ends;
mod feed;
mod kind;
mod nodes;
mod options;
mod pauses;
mod plan;
mod status;
mod strikes;
mod verdict;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proof::audit::{Audit, Expected};
use proof::balancer::Balancer;
use proof::load::{Load, Reply};
use proof::stats::ms;
use proof::{Outcome, Report, say};

use director::History;
use feed::Feed;
use kind::NODES;
use options::Options;
use plan::Strike;
use status::Status;
use verdict::Seen;
use world::{CONFIRMATIONS, LANES, LEASE, PROOF, World};

/// The load goes on for so long after the last fault is undone.
const CALM: Duration = Duration::from_secs(5);

/// When all is well again and nobody pays any more, nothing is open after this.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> ExitCode {
    let mut report = Report::new(PROOF);
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let options = Options::read()?;
    let wanted = &options.wanted;
    report.fact("seed", wanted.seed);
    report.fact("seconds", wanted.time.as_secs());
    report.fact("node", options.make.name());
    report.fact("lanes", LANES);
    report.fact("confirmations", CONFIRMATIONS);
    report.fact("leaseOverAfterMs", ms(LEASE.over_after()));
    let plan = plan::draw(wanted);
    say(format!(
        "{} faults are planned, at least {} are wanted",
        plan.len(),
        wanted.faults_min
    ));
    let world = Arc::new(World::start(options.make, wanted.seed).await?);
    report.fact("beganAtUnixMs", unix_ms()?); // the logs of the nodes tell the time
    let seen = torture(&world, &options, &plan).await;
    world.keep_logs().await?;
    seen?.judge(report)
}

fn unix_ms() -> Outcome<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(ms(now))
}

/// The whole run, up to the audit.
async fn torture(world: &Arc<World>, options: &Options, plan: &[Strike]) -> Outcome<Seen> {
    let (feed, history) = (Feed::default(), History::default());
    let apis = world.nodes.apis();
    let began = Instant::now();
    let loads = world.loads();
    let balancer = Balancer::before(apis.clone());
    let status = Status {
        loads: &loads,
        history: &history,
        feed: &feed,
        balancer: &balancer,
        nodes: NODES,
        promised: &|| world.ledger.promised_count(),
        time: options.wanted.time,
    };
    tokio::select! {
        done = endure(world, options, plan, &history) => done?,
        failed = world.nodes.keep_running() => failed?,
        () = feed.follow(&apis) => {}
        () = status.tell() => {}
    }
    let ended = Instant::now();
    let (replies, quiet) = tokio::select! {
        done = settle(world, loads) => done?,
        failed = world.nodes.keep_running() => return Err(format!("{failed:?}").into()),
        () = feed.follow(&apis) => return Err("the feed ended".into()),
    };
    let promised = world.ledger.payments().into_values();
    let promised: Vec<String> = promised.filter_map(|p| Some(p.promise?.tx_id)).collect();
    feed.finish(&apis[0], &promised).await?;
    let audited = audit(world, &apis[0]).look(&Expected::default()).await?;
    Ok(Seen {
        replies,
        history,
        feed: feed.read(),
        audited,
        began,
        ended,
        quiet,
        faults_min: options.wanted.faults_min,
        ends: world.nodes.ends().await?,
        panics: world.nodes.panics().await?,
    })
}

/// All faults, the rest of the time, and a moment of calm.
async fn endure(
    world: &Arc<World>,
    options: &Options,
    plan: &[Strike],
    history: &History,
) -> Outcome<()> {
    let over = Instant::now() + options.wanted.time;
    director::direct(world, plan, history).await?;
    tokio::time::sleep_until(over.into()).await;
    world.heal().await?;
    tokio::time::sleep(CALM).await;
    Ok(())
}

/// The answers of every lane, and how long it took until nothing was open.
async fn settle(world: &World, loads: Vec<Load>) -> Outcome<(Vec<Vec<Reply>>, Outcome<Duration>)> {
    let per_lane = loads.len() / world.lanes.len();
    let mut replies: Vec<Vec<Reply>> = vec![Vec::new(); world.lanes.len()];
    for (number, load) in loads.into_iter().enumerate() {
        replies[number / per_lane].extend(load.stop().await?);
    }
    let began = Instant::now();
    let apis = world.nodes.apis();
    let quiet = audit(world, &apis[0]).quiet().await;
    Ok((replies, quiet.map(|()| began.elapsed())))
}

fn audit<'a>(world: &'a World, api: &'a proof::Api) -> Audit<'a> {
    Audit {
        api,
        chain: &world.network.chain,
        lanes: &world.lanes,
        ledger: &world.ledger,
        within: QUIET_WITHIN,
    }
}
