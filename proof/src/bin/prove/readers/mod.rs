//! 14.4: accepts and takeovers beside 2,000 waiters and readers of two pages a second each: how much slower than without
//! them. Every round measures both, in turn, on the same cluster.

mod crowd;

use std::sync::Arc;
use std::time::Duration;

use proof::cluster::{Cluster, Settings, postgres, run_blocking};
use proof::config::Lease;
use proof::ledger::Ledger;
use proof::load::{Load, Plan};
use proof::stats::{Ratios, ms};
use proof::{Outcome, Report, ensure, eventually, flag, print_step};
use rig::postgres::majors;
use serde_json::{Value, json};

use crowd::{Crowd, CrowdCounts};

/// As in 03-3: the default lease would take a minute per round.
const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew: Duration::from_millis(900),
    skew: Duration::from_millis(500),
};

/// The lane whose keeper is killed; the other lanes have load too.
const LANE: usize = 0;
const LANES: usize = 3;
const NODES: usize = 2;
/// Clients that pay, each a payment after the other.
const CLIENTS: usize = 12;

/// The most by which readers may slow accepts and takeovers.
const RATIO_MAX: f64 = 1.2;

/// What one half of a round measured.
struct Measurement {
    accepted_per_second: f64,
    takeover: Duration,
}

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: usize = flag("rounds", "5").parse()?;
    let readers: usize = flag("readers", "2000").parse()?;
    let seconds: u64 = flag("seconds", "15").parse()?;
    let major = majors()
        .last()
        .copied()
        .ok_or("no PostgreSQL is installed")?;
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server); // the server ends with its last handle
    let database = run_blocking(move || of_database.database("readers")).await?;
    let settings = Settings {
        lease: LEASE,
        ..Settings::new("14-4-readers", LANES)
    };
    let stores = vec![database.url().to_owned(); NODES];
    let mut cluster = Cluster::start(settings, &stores).await?;
    let ledger = Arc::new(Ledger::default());
    let window = Duration::from_secs(seconds);
    let (mut rates, mut takeovers) = (Vec::new(), Vec::new());
    let mut counts = CrowdCounts::default();
    for round in 0..rounds {
        let alone = measure(&mut cluster, &ledger, window, round, None).await?;
        let crowded = measure(
            &mut cluster,
            &ledger,
            window,
            round,
            Some((readers, &mut counts)),
        )
        .await?;
        rates.push(alone.accepted_per_second / crowded.accepted_per_second);
        takeovers.push(crowded.takeover.as_secs_f64() / alone.takeover.as_secs_f64());
        report.fact(
            &format!("round {round}"),
            json!({"alone": alone.to_json(), "withReaders": crowded.to_json()}),
        );
    }
    let audited = cluster.audit(&ledger).await?;
    report.fact("readers", counts.to_json());
    judge(report, rates, takeovers, &counts, audited.promised)
}

/// Measures the rate of accepts for a while, and then the time from the end of a keeper until its lane accepts again.
async fn measure(
    cluster: &mut Cluster,
    ledger: &Arc<Ledger>,
    window: Duration,
    round: usize,
    readers: Option<(usize, &mut CrowdCounts)>,
) -> Outcome<Measurement> {
    let balancer = cluster.balancer();
    let half = if readers.is_some() {
        "crowded"
    } else {
        "alone"
    };
    let plan = Plan {
        estimates: false,
        ..Plan::new(&format!("{half}-{round}"), &cluster.lanes, CLIENTS)
    };
    let load = Arc::new(Load::start(plan, &balancer, ledger));
    cluster.wait_accepted_with_token(&load, 0, LANE, 1).await?;
    let crowd = readers.map(|(count, counts)| {
        let crowd = Crowd::start(count, &balancer, &load, &cluster.lanes);
        (crowd, counts)
    });
    if let Some((crowd, _)) = &crowd {
        crowd.wait_until_all_read().await?;
    }
    let before = load.len();
    tokio::time::sleep(window).await;
    let replies = load.replies();
    let accepted = replies[before..]
        .iter()
        .filter(|reply| reply.outcome.is_accepted());
    let accepted_per_second = accepted.count() as f64 / window.as_secs_f64();
    let takeover = kill_keeper(cluster, &load).await?;
    print_step(format!(
        "{half} {round}: {accepted_per_second:.0} accepted/s, accepted again after {} ms",
        ms(takeover)
    ));
    if let Some((crowd, counts)) = crowd {
        counts.add(crowd.stop().await?);
    }
    let load = Arc::into_inner(load).ok_or("the readers have ended")?;
    load.stop().await?;
    Ok(Measurement {
        accepted_per_second,
        takeover,
    })
}

/// The time from the end of a lane's keeper until the lane accepts under the next one. The node runs again afterwards.
async fn kill_keeper(cluster: &mut Cluster, load: &Load) -> Outcome<Duration> {
    let keeper = cluster.wait_keeper(0, LANE).await?;
    let answers = load.len();
    let killed_at = std::time::Instant::now();
    cluster.nodes[keeper.node].kill_nine().await?;
    let first = cluster
        .wait_accepted_with_token(load, answers, LANE, keeper.token + 1)
        .await?;
    let takeover = first.answered_at.duration_since(killed_at);
    cluster.start_node(keeper.node)?;
    cluster.nodes[keeper.node].ready().await?;
    Ok(takeover)
}

impl Measurement {
    fn to_json(&self) -> Value {
        json!({
            "acceptedPerSecond": self.accepted_per_second,
            "acceptedAgainAfterMs": ms(self.takeover),
        })
    }
}

fn judge(
    report: &mut Report,
    rates: Vec<f64>,
    takeovers: Vec<f64>,
    counts: &CrowdCounts,
    accepted: usize,
) -> Outcome<String> {
    let rates = Ratios::of(rates).ok_or("no round was measured")?;
    let takeovers = Ratios::of(takeovers).ok_or("no round was measured")?;
    for (name, ratios) in [("slowerAccepts", &rates), ("slowerTakeovers", &takeovers)] {
        report.fact(
            name,
            json!({"median": ratios.median(), "lowest": ratios.lowest(), "highest": ratios.highest()}),
        );
    }
    counts.check()?;
    let figure = format!(
        "beside {counts}: accepts {:.2} times slower, takeovers {:.2} times (must {RATIO_MAX}; medians of {} rounds); \
         {accepted} txs exactly once",
        rates.median(),
        takeovers.median(),
        counts.rounds(),
    );
    let holds = rates.median() <= RATIO_MAX && takeovers.median() <= RATIO_MAX;
    ensure(holds, figure.clone())?;
    Ok(figure)
}

/// Polls until a count is reached.
async fn wait_for_count(what: &str, count: impl Fn() -> usize, least: usize) -> Outcome<()> {
    eventually(what, Duration::from_secs(30), || async {
        Ok((count() >= least).then_some(()))
    })
    .await
}
