//! 3.3: `kill -9` of a lane's keeper under load, repeatedly: the time until the next keeper accepts, and the
//! responses meanwhile. Then a rolling restart of all nodes by drain: no failed request and no noticeable pause.

mod rolling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, Settings, chosen_majors, postgres, run_blocking};
use proof::config::Lease;
use proof::ledger::Ledger;
use proof::load::{Load, Plan, Reply, ReplyOutcome};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, eventually, flag, print_step};
use serde_json::json;

/// The default lease would take a minute or two per round; all times scale with it.
const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew: Duration::from_millis(900),
    skew: Duration::from_millis(500),
};

/// The measured lane; other lanes have load too.
const LANE: usize = 0;

/// The slowest failover in multiples of `duration + skew`: it includes the store's clock, the heartbeats that
/// others watch (one renewal late) and the search for orphans (one renewal apart).
const P99_MULTIPLE_MAX: f64 = 1.5;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: usize = flag("rounds", "30").parse()?;
    let passes: usize = flag("passes", "3").parse()?;
    let mut figures = Vec::new();
    for major in chosen_majors(&["rounds", "passes"])? {
        report.part(format!("PostgreSQL {major}"));
        figures.push(prove_on(report, major, rounds, passes).await?);
    }
    Ok(figures.join("; "))
}

async fn prove_on(
    report: &mut Report,
    major: u32,
    rounds: usize,
    passes: usize,
) -> Outcome<String> {
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = run_blocking(move || of_database.database("failover")).await?;
    let settings = Settings {
        lease: LEASE,
        drain_delay: Duration::from_secs(2),
        ..Settings::new("03-3-failover", 3)
    };
    let stores = vec![database.url().to_owned(); 3];
    let mut cluster = Cluster::start(settings, &stores).await?;
    let ledger = Arc::new(Ledger::default());
    let killed = kills(report, &mut cluster, &ledger, rounds).await?;
    let rolled = rolling::restart(report, &mut cluster, &ledger, passes).await?;
    Ok(format!("PostgreSQL {major}: {killed}; {rolled}"))
}

/// The time without a node.
struct Outage {
    node: usize,
    from: Instant,
    until: Instant,
}

async fn kills(
    report: &mut Report,
    cluster: &mut Cluster,
    ledger: &Arc<Ledger>,
    rounds: usize,
) -> Outcome<String> {
    let balancer = cluster.balancer();
    let load = Load::start(Plan::new("kill", &cluster.lanes, 12), &balancer, ledger);
    cluster
        .wait_accepted_with_token(&load, 100, LANE, 1)
        .await?;
    let (mut times, mut outages) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let queried_node = rand::random_range(0..cluster.nodes.len());
        // Kills are spread over the time between two renewals.
        let pause = LEASE.renew.mul_f64(rand::random_range(0.0..1.0));
        tokio::time::sleep(LEASE.renew + pause).await;
        let keeper = cluster.wait_keeper(queried_node, LANE).await?;
        let (from, answers) = (Instant::now(), load.len());
        cluster.nodes[keeper.node].kill_nine().await?;
        let first = cluster
            .wait_accepted_with_token(&load, answers, LANE, keeper.token + 1)
            .await?;
        times.push(first.answered_at.duration_since(from));
        print_step(format!(
            "round {round}: accepted again after {} ms",
            ms(first.answered_at.duration_since(from))
        ));
        cluster.start_node(keeper.node)?;
        cluster.nodes[keeper.node].ready().await?;
        eventually("the balancer sees it", Duration::from_secs(5), || async {
            Ok(balancer.is_ready(keeper.node).then_some(()))
        })
        .await?;
        outages.push(Outage {
            node: keeper.node,
            from,
            until: Instant::now(),
        });
    }
    let replies = load.stop().await?;
    let counted = cluster.audit(ledger).await?;
    judge(
        report,
        &Spread::of(times),
        &replies,
        &outages,
        counted.promised,
    )
}

fn judge(
    report: &mut Report,
    times: &Spread,
    replies: &[Reply],
    outages: &[Outage],
    accepted: usize,
) -> Outcome<String> {
    let over_after = LEASE.over_after();
    let multiple = |time: Duration| time.as_secs_f64() / over_after.as_secs_f64();
    let (p50, p99) = (times.percentile(50), times.percentile(99));
    let failed: Vec<&Reply> = replies
        .iter()
        .filter(|r| !r.outcome.is_accepted())
        .collect();
    let (died_with_it, failed): (Vec<&Reply>, Vec<&Reply>) = failed
        .into_iter()
        .partition(|reply| outages.iter().any(|outage| outage.explains(reply)));
    let queued = replies
        .iter()
        .filter(|r| matches!(r.outcome, ReplyOutcome::Accepted { nonce: None, .. }));
    let at_running_nodes = replies.iter().filter(|reply| reply.outcome.is_accepted());
    let answers = at_running_nodes.map(|reply| reply.answered_at.duration_since(reply.sent_at));
    let answers = Spread::of(answers.collect());
    report.fact(
        "kills",
        json!({
            "rounds": times.count(),
            "leaseMs": ms(LEASE.duration),
            "skewMs": ms(LEASE.skew),
            "untilAcceptedAgain": times.to_json(),
            "p50OfDurationPlusSkew": multiple(p50),
            "p99OfDurationPlusSkew": multiple(p99),
            "accepted": accepted,
            "queuedMeanwhile": queued.count(),
            "answers": answers.to_json(),
            "brokenWithTheKilledNode": died_with_it.len(),
            "failedAtLivingNodes": failed.len(),
            "firstFailure": failed.first().map(|reply| format!("{reply:?}")),
        }),
    );
    ensure(
        failed.is_empty(),
        format!(
            "{} requests failed at running nodes, the first: {:?}",
            failed.len(),
            failed.first()
        ),
    )?;
    ensure(
        multiple(p99) <= P99_MULTIPLE_MAX,
        format!(
            "p99 {p99:?} is {:.2} of duration + skew, more than {P99_MULTIPLE_MAX}",
            multiple(p99)
        ),
    )?;
    Ok(format!(
        "{} kills of the keeper: accepted again after p50 {} ms ({:.2} of duration + skew), p99 {} ms \
         ({:.2}), 0 failed at living nodes, {accepted} txs exactly once",
        times.count(),
        ms(p50),
        multiple(p50),
        ms(p99),
        multiple(p99),
    ))
}

impl Outage {
    /// Whether a request failed because its node was dead: the connection was closed or refused.
    fn explains(&self, reply: &Reply) -> bool {
        let is_in_time = reply.answered_at >= self.from && reply.sent_at <= self.until;
        reply.node == self.node && is_in_time && matches!(reply.outcome, ReplyOutcome::Nothing(_))
    }
}
