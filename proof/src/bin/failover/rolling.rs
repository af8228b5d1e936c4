//! A rolling restart, as a deploy does it: each node in turn is asked to end (SIGTERM), drains, ends, is
//! started again, and the next one follows when the load balancer has it back.
//!
//! A pause of the lane counts without the time for which the disk itself stood still meanwhile: no accept is
//! durable then, whoever keeps the lane.
//!
//! The balancer asks `/readyz` every 200 ms and repeats nothing: any answer but 2xx, any broken or
//! refused connection is a failed request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::balancer::Balancer;
use proof::cluster::Cluster;
use proof::disk::Disk;
use proof::ledger::Ledger;
use proof::load::{Load, Plan, Reply};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, demand, eventually, say};
use serde_json::json;

use crate::LANE;

/// The longest that the lane may accept nothing.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// What the load does before the first restart, to compare with.
const STEADY: Duration = Duration::from_secs(5);

/// How long a deploy watches a node that came back before it takes the next.
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
    cluster.accepted_under(&load, 100, LANE, 1).await?;
    let steady_from = Instant::now();
    tokio::time::sleep(STEADY).await;
    let from = Instant::now();
    let (mut drains, mut moved) = (Vec::new(), 0);
    for pass in 0..passes {
        for number in 0..cluster.nodes.len() {
            let asked = cluster.other_than(number);
            let keeper = cluster.some_keeper(asked, LANE).await?;
            moved += usize::from(keeper.node == number);
            let began = Instant::now();
            drains.push(one(cluster, &balancer, number).await?);
            let pauses = pauses(&load.replies(), began, Instant::now(), &disk);
            let worst = pauses.iter().max_by_key(|pause| pause.ours());
            let worst = worst.ok_or("there are always two ends")?;
            say(format!(
                "pass {pass}: node {number} is back; longest pause {} ms, and {} ms more of the disk, {} ms after \
                 it was asked to end",
                ms(worst.ours()),
                ms(worst.of_disk),
                ms(worst.from.duration_since(began)),
            ));
        }
    }
    let until = Instant::now();
    let replies = load.stop().await?;
    let counted = cluster.audit(ledger).await?;
    let rolling = pauses(&replies, from, until, &disk);
    let rolled = Rolled {
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
    demand(moved >= passes, "the lane's keeper was hardly restarted")?;
    rolled.judge(report, &replies)
}

/// One node: how long its drain took.
async fn one(cluster: &mut Cluster, balancer: &Arc<Balancer>, number: usize) -> Outcome<Duration> {
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

/// What was measured.
struct Rolled {
    /// Pauses of the lane before the first restart.
    steady: Spread,
    /// And from then on.
    rolling: Spread,
    /// The longest of them, what the disk added included.
    with_disk: Duration,
    drains: Spread,
    /// How often the lane's keeper was the one restarted.
    moved: usize,
    accepted: usize,
}

impl Rolled {
    fn judge(&self, report: &mut Report, replies: &[Reply]) -> Outcome<String> {
        let failed: Vec<&Reply> = replies.iter().filter(|r| !r.said.is_accepted()).collect();
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
        demand(
            failed.is_empty(),
            format!(
                "{} of {} requests failed in a rolling restart, the first: {:?}",
                failed.len(),
                replies.len(),
                failed.first()
            ),
        )?;
        demand(
            self.rolling.max() < PAUSE_MAX,
            format!("the lane accepted nothing for {pause} ms in a rolling restart"),
        )?;
        Ok(format!(
            "{} restarts by drain: {} requests, 0 failed, longest pause of the lane {pause} ms \
             ({before} ms without restarts; {} ms with what the disk stood still)",
            self.drains.count(),
            replies.len(),
            ms(self.with_disk),
        ))
    }
}

/// The time between one accept with a nonce and the next.
struct Pause {
    from: Instant,
    whole: Duration,
    /// For so long of it the disk stood still.
    of_disk: Duration,
}

impl Pause {
    /// What we have to answer for.
    fn ours(&self) -> Duration {
        self.whole.saturating_sub(self.of_disk)
    }
}

/// The pauses of the measured lane.
fn pauses(replies: &[Reply], from: Instant, until: Instant, disk: &Disk) -> Vec<Pause> {
    let dealt = replies
        .iter()
        .filter(|reply| reply.lane == LANE && reply.said.has_nonce_under(0));
    let mut at: Vec<Instant> = dealt
        .map(|reply| reply.answered)
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
            of_disk: disk.stalled(from, until),
        })
        .collect()
}

fn spread(pauses: &[Pause]) -> Spread {
    Spread::of(pauses.iter().map(Pause::ours).collect())
}
