//! A rolling restart like a deployment: each node in turn gets SIGTERM, drains, ends and restarts; the next one
//! follows when the load balancer considers it ready.
//!
//! Stalls of the disk are subtracted from a pause of the lane: no accept can be durable meanwhile.
//!
//! The balancer polls `/readyz` every 200 ms and does not retry: every response except 2xx and every broken or
//! refused connection is a failed request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::balancer::Balancer;
use proof::cluster::Cluster;
use proof::disk_probe::DiskProbe;
use proof::ledger::Ledger;
use proof::load::{Load, Plan, Reply};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, eventually, print_step};
use serde_json::json;

use crate::failover::LANE;

/// The longest pause of the lane.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// The baseline before the first restart.
const STEADY: Duration = Duration::from_secs(5);

/// How long a restarted node is watched before the next restart.
const WATCHED: Duration = Duration::from_secs(2);

pub(crate) async fn restart(
    report: &mut Report,
    cluster: &mut Cluster,
    ledger: &Arc<Ledger>,
    passes: usize,
) -> Outcome<String> {
    let balancer = cluster.balancer();
    let plan = Plan {
        pause: Duration::from_millis(5),
        ..Plan::new("roll", &cluster.lanes, 16)
    };
    let disk = cluster.disk()?;
    let load = Load::start(plan, &balancer, ledger);
    cluster
        .wait_accepted_with_token(&load, 100, LANE, 1)
        .await?;
    let steady_from = Instant::now();
    tokio::time::sleep(STEADY).await;
    let from = Instant::now();
    let (mut drains, mut moved) = (Vec::new(), 0);
    for pass in 0..passes {
        for number in 0..cluster.nodes.len() {
            let queried_node = cluster.another_node(number);
            let keeper = cluster.wait_keeper(queried_node, LANE).await?;
            moved += usize::from(keeper.node == number);
            let began = Instant::now();
            drains.push(restart_node(cluster, &balancer, number).await?);
            let pauses = pauses(&load.replies(), began, Instant::now(), &disk);
            let worst = pauses
                .iter()
                .max_by_key(|pause| pause.without_disk_stalls());
            let worst = worst.ok_or("there are always two ends")?;
            print_step(format!(
                "pass {pass}: node {number} is back; longest pause {} ms, and {} ms more of the disk, {} ms after \
                 its SIGTERM",
                ms(worst.without_disk_stalls()),
                ms(worst.of_disk),
                ms(worst.from.duration_since(began)),
            ));
        }
    }
    let until = Instant::now();
    let replies = load.stop().await?;
    let counted = cluster.audit(ledger).await?;
    let rolling = pauses(&replies, from, until, &disk);
    let rolled = RollingRestart {
        steady: spread(&pauses(&replies, steady_from, from, &disk)),
        rolling: spread(&rolling),
        with_disk: rolling
            .iter()
            .map(|pause| pause.whole)
            .max()
            .unwrap_or_default(),
        drains: Spread::of(drains),
        moved,
        accepted: counted.promised,
    };
    ensure(moved >= passes, "the lane's keeper was hardly restarted")?;
    rolled.judge(report, &replies)
}

/// Restarts one node, and returns the duration of its drain.
async fn restart_node(
    cluster: &mut Cluster,
    balancer: &Arc<Balancer>,
    number: usize,
) -> Outcome<Duration> {
    let began = Instant::now();
    cluster.nodes[number].terminate().await?;
    let drained = began.elapsed();
    cluster.start_node(number)?;
    cluster.nodes[number].ready().await?;
    eventually("the balancer sees it", Duration::from_secs(5), || async {
        Ok(balancer.is_ready(number).then_some(()))
    })
    .await?;
    tokio::time::sleep(WATCHED).await;
    Ok(drained)
}

struct RollingRestart {
    /// Pauses before the first restart.
    steady: Spread,
    /// Pauses afterwards.
    rolling: Spread,
    /// The longest of them, including disk stalls.
    with_disk: Duration,
    drains: Spread,
    /// Restarts of the lane's keeper.
    moved: usize,
    accepted: usize,
}

impl RollingRestart {
    fn judge(&self, report: &mut Report, replies: &[Reply]) -> Outcome<String> {
        let failed: Vec<&Reply> = replies
            .iter()
            .filter(|r| !r.outcome.is_accepted())
            .collect();
        let (pause, before) = (ms(self.rolling.max()), ms(self.steady.max()));
        report.fact(
            "rollingRestart",
            json!({
                "restarts": self.drains.count(),
                "ofTheLanesKeeper": self.moved,
                "requests": replies.len(),
                "failed": failed.len(),
                "firstFailure": failed.first().map(|reply| format!("{reply:?}")),
                "longestPauseMs": pause,
                "longestPauseBeforeMs": before,
                "longestPauseWithDiskMs": ms(self.with_disk),
                "drain": self.drains.to_json(),
                "accepted": self.accepted,
            }),
        );
        ensure(
            failed.is_empty(),
            format!(
                "{} of {} requests failed in a rolling restart, the first: {:?}",
                failed.len(),
                replies.len(),
                failed.first()
            ),
        )?;
        ensure(
            self.rolling.max() < PAUSE_MAX,
            format!("the lane accepted nothing for {pause} ms in a rolling restart"),
        )?;
        Ok(format!(
            "{} restarts by drain: {} requests, 0 failed, longest pause of the lane {pause} ms \
             ({before} ms without restarts; {} ms including disk stalls)",
            self.drains.count(),
            replies.len(),
            ms(self.with_disk),
        ))
    }
}

/// The time between two accepts with a nonce.
struct Pause {
    from: Instant,
    whole: Duration,
    /// The stalled time of the disk.
    of_disk: Duration,
}

impl Pause {
    /// Without the disk's share.
    fn without_disk_stalls(&self) -> Duration {
        self.whole.saturating_sub(self.of_disk)
    }
}

/// The pauses of the measured lane.
fn pauses(replies: &[Reply], from: Instant, until: Instant, disk: &DiskProbe) -> Vec<Pause> {
    let allocated = replies
        .iter()
        .filter(|reply| reply.lane == LANE && reply.outcome.has_nonce_under(0));
    let mut at: Vec<Instant> = allocated
        .map(|reply| reply.answered_at)
        .filter(|at| (from..=until).contains(at))
        .collect();
    at.push(from);
    at.push(until);
    at.sort_unstable();
    let pairs = at.windows(2).map(|pair| (pair[0], pair[1]));
    pairs
        .map(|(from, until)| Pause {
            from,
            whole: until.duration_since(from),
            of_disk: disk.stalled_time(from, until),
        })
        .collect()
}

fn spread(pauses: &[Pause]) -> Spread {
    Spread::of(pauses.iter().map(Pause::without_disk_stalls).collect())
}
