//! The server is killed (`kill -9` of all its processes) and restarted, several times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, postgres, run_blocking};
use proof::ledger::Ledger;
use proof::load::{Load, Plan, Reply, ReplyOutcome};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, print_step};
use rig::postgres::Postgres;
use serde_json::{Value, json};

/// The slowest response while the server is down. (A request whose commit is pending is held until its outcome is
/// known.)
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// Lanes accept again within this time after the server's restart.
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);

struct Down {
    from: Instant,
    until: Instant,
}

pub(crate) async fn prove(report: &mut Report, major: u32, rounds: usize) -> Outcome<String> {
    print_step(format!("the server is killed {rounds} times"));
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = run_blocking(move || of_database.database("restart")).await?;
    let stores = vec![database.url().to_owned(); 3];
    let cluster = Cluster::start(crate::database::settings(3), &stores).await?;
    let ledger = Arc::new(Ledger::default());
    // Without readiness checks: a load balancer would send nothing to any node now.
    let balancer = cluster.unchecked_balancer();
    let plan = Plan {
        timeout: Duration::from_secs(60),
        ..Plan::new("restart", &cluster.lanes, 12)
    };
    let load = Load::start(plan, &balancer, &ledger);
    cluster.wait_accepted_with_token(&load, 100, 0, 1).await?;
    let (mut downs, mut recoveries) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..1_500))).await;
        let down = kill_and_start(&server).await?;
        let from = load.len();
        for lane in 0..cluster.lanes.len() {
            cluster
                .wait_accepted_with_token(&load, from, lane, 1)
                .await?;
        }
        recoveries.push(down.until.elapsed());
        print_step(format!(
            "round {round}: down for {} ms, all lanes accept {} ms after it is back",
            ms(down.until.duration_since(down.from)),
            ms(down.until.elapsed())
        ));
        downs.push(down);
    }
    let replies = load.stop().await?;
    let counted = cluster.audit(&ledger).await?;
    judge(report, &replies, &downs, recoveries, counted.promised)
}

async fn kill_and_start(server: &Arc<Postgres>) -> Outcome<Down> {
    let killed = Arc::clone(server);
    run_blocking(move || killed.kill()).await?;
    let from = Instant::now();
    tokio::time::sleep(Duration::from_millis(rand::random_range(500..5_000))).await;
    let started = Arc::clone(server);
    run_blocking(move || started.start_again()).await?;
    Ok(Down {
        from,
        until: Instant::now(),
    })
}

fn judge(
    report: &mut Report,
    replies: &[Reply],
    downs: &[Down],
    recoveries: Vec<Duration>,
    accepted: usize,
) -> Outcome<String> {
    let is_meanwhile = |reply: &&Reply| {
        let sent_at = reply.sent_at;
        downs.iter().any(|d| sent_at >= d.from && sent_at < d.until)
    };
    let took = |reply: &Reply| reply.answered_at.duration_since(reply.sent_at);
    let meanwhile = Spread::of(replies.iter().filter(is_meanwhile).map(took).collect());
    let under_way = replies.iter().filter(|reply| !is_meanwhile(reply));
    let under_way = Spread::of(under_way.map(took).collect());
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for reply in replies {
        let kind = match &reply.outcome {
            ReplyOutcome::Accepted { .. } => continue,
            ReplyOutcome::Refused(status, problem) => format!("{status} {}", kind_of(problem)),
            ReplyOutcome::Nothing(why) => format!("{why:?}"),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    let recoveries = Spread::of(recoveries);
    report.fact(
        "restarts",
        json!({
            "rounds": downs.len(),
            "answersWhileDown": meanwhile.to_json(),
            "answersOtherwise": under_way.to_json(),
            "refusals": kinds,
            "recovered": recoveries.to_json(),
            "accepted": accepted,
        }),
    );
    let stray = kinds.keys().find(|kind| !kind.starts_with("503 "));
    ensure(
        stray.is_none(),
        format!("a dead database must be reported as 503, not {stray:?} ({kinds:?})"),
    )?;
    ensure(
        meanwhile.max() <= ANSWERED_WITHIN,
        format!(
            "an answer took {:?} while the database was down",
            meanwhile.max()
        ),
    )?;
    ensure(
        recoveries.max() <= RECOVERED_WITHIN,
        format!("a lane accepted again only after {:?}", recoveries.max()),
    )?;
    Ok(format!(
        "killed {} times: slowest answer while down {} ms, accepting {} ms after it is back, {accepted} \
         txs exactly once",
        downs.len(),
        ms(meanwhile.max()),
        ms(recoveries.max()),
    ))
}

/// The last part of a problem's type.
pub(crate) fn kind_of(problem: &Value) -> &str {
    let kind = problem["type"].as_str().unwrap_or("without type");
    kind.rsplit(['/', ':']).next().unwrap_or(kind)
}
