//! 5.3: real processes under half an hour of faults. Three nodes, PostgreSQL with a synchronous standby and an EVM
//! node, under a load of payments with one recipient each; kills, freezes, partitions, lost responses, crashes,
//! promotions, restarts, forks and more, from a seeded plan. Then everything is healed, and chain, store and
//! promises must agree: every request exactly once.
//!
//! Bounded: `--for` at most 4 h, at most 26 payments per second (`world`), loopback only. All processes end with
//! the proof, even if it is killed.

mod clock;
mod database;
mod evaluation;
mod exits;
mod fault_kind;
mod feed;
mod injection;
mod nodes;
mod options;
mod pauses;
mod plan;
mod scheduler;
mod status;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proof::audit::{Audit, Expected};
use proof::balancer::Balancer;
use proof::load::{Load, Reply};
use proof::stats::ms;
use proof::{Outcome, Report, print_step};

use evaluation::Seen;
use fault_kind::NODES;
use feed::Feed;
use options::Options;
use plan::PlannedFault;
use scheduler::History;
use status::Status;
use world::{CONFIRMATIONS, LANES, LEASE, World};

/// The load continues for this long after the last fault.
const CALM: Duration = Duration::from_secs(5);

/// Nothing is open after this time without load and faults.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let options = Options::read()?;
    let wanted = &options.wanted;
    report.fact("seed", wanted.seed);
    report.fact("seconds", wanted.time.as_secs());
    report.fact("node", options.node_kind.name());
    report.fact("lanes", LANES);
    report.fact("confirmations", CONFIRMATIONS);
    report.fact("leaseOverAfterMs", ms(LEASE.over_after()));
    let plan = plan::draw(wanted);
    print_step(format!(
        "{} faults are planned, at least {} are wanted",
        plan.len(),
        wanted.faults_min
    ));
    let world = Arc::new(World::start(options.node_kind, wanted.seed).await?);
    report.fact("beganAtUnixMs", unix_ms()?); // the nodes' logs have times
    let seen = torture(&world, &options, &plan).await;
    world.keep_logs().await?;
    seen?.judge(report)
}

fn unix_ms() -> Outcome<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(ms(now))
}

async fn torture(world: &Arc<World>, options: &Options, plan: &[PlannedFault]) -> Outcome<Seen> {
    let (feed, history) = (Feed::default(), History::default());
    let apis = world.nodes.apis();
    let began = Instant::now();
    let loads = world.loads();
    let balancer = Balancer::in_front_of(apis.clone());
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
        done = run_faults(world, options, plan, &history) => done?,
        failed = world.nodes.keep_running() => failed?,
        () = feed.follow(&apis) => {}
        () = status.print_status() => {}
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
    let audited = audit(world, &apis[0])
        .compare_now(&Expected::default())
        .await?;
    Ok(Seen {
        replies,
        history,
        feed: feed.read(),
        audited,
        began,
        ended,
        quiet,
        faults_min: options.wanted.faults_min,
        exits: world.nodes.exits().await?,
        panics: world.nodes.panics().await?,
    })
}

/// All faults, the rest of the time, and a calm phase.
async fn run_faults(
    world: &Arc<World>,
    options: &Options,
    plan: &[PlannedFault],
    history: &History,
) -> Outcome<()> {
    let over = Instant::now() + options.wanted.time;
    scheduler::run_schedule(world, plan, history).await?;
    tokio::time::sleep_until(over.into()).await;
    world.heal().await?;
    tokio::time::sleep(CALM).await;
    Ok(())
}

/// The replies of every lane, and the time until nothing was open.
async fn settle(world: &World, loads: Vec<Load>) -> Outcome<(Vec<Vec<Reply>>, Outcome<Duration>)> {
    let per_lane = loads.len() / world.lanes.len();
    let mut replies: Vec<Vec<Reply>> = vec![Vec::new(); world.lanes.len()];
    for (number, load) in loads.into_iter().enumerate() {
        replies[number / per_lane].extend(load.stop().await?);
    }
    let began = Instant::now();
    let apis = world.nodes.apis();
    let quiet = audit(world, &apis[0]).wait_until_idle().await;
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
