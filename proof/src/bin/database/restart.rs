//! The server is killed (`kill -9` of all its processes) and started again, several times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{Cluster, aside, postgres};
use proof::ledger::Ledger;
use proof::load::{Load, Plan, Reply, Said};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, demand, say};
use rig::postgres::Postgres;
use serde_json::{Value, json};

/// The slowest answer to a request that came while the server was down. (One whose commit was under way
/// is held until its fate is known, so that it need not be told "perhaps".)
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// When a server is back, lanes accept again within this.
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);

/// When the server was down.
struct Down {
    from: Instant,
    until: Instant,
}

pub(crate) async fn prove(report: &mut Report, major: u32, rounds: usize) -> Outcome<String> {
    say(format!("the server is killed {rounds} times"));
    let server = postgres(major).await?;
    let of_database = Arc::clone(&server);
    let database = aside(move || of_database.database("restart")).await?;
    let stores = vec![database.url().to_owned(); 3];
    let cluster = Cluster::start(crate::settings(3), &stores).await?;
    let ledger = Arc::new(Ledger::default());
    // Every node gets its share, ready or not: a load balancer would give none to any of them now.
    let balancer = cluster.blind_balancer();
    let plan = Plan {
        patience: Duration::from_secs(60),
        ..Plan::new("restart", &cluster.lanes, 12)
    };
    let load = Load::start(plan, &balancer, &ledger);
    cluster.accepted_under(&load, 100, 0, 1).await?;
    let (mut downs, mut recoveries) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..1_500))).await;
        let down = kill_and_start(&server).await?;
        let from = load.len();
        for lane in 0..cluster.lanes.len() {
            cluster.accepted_under(&load, from, lane, 1).await?;
        }
        recoveries.push(down.until.elapsed());
        say(format!(
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
    aside(move || killed.kill()).await?;
    let from = Instant::now();
    tokio::time::sleep(Duration::from_millis(rand::random_range(500..5_000))).await;
    let started = Arc::clone(server);
    aside(move || started.start_again()).await?;
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
        let asked = reply.asked;
        downs.iter().any(|d| asked >= d.from && asked < d.until)
    };
    let took = |reply: &Reply| reply.answered.duration_since(reply.asked);
    let meanwhile = Spread::of(replies.iter().filter(is_meanwhile).map(took).collect());
    let under_way = replies.iter().filter(|reply| !is_meanwhile(reply));
    let under_way = Spread::of(under_way.map(took).collect());
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for reply in replies {
        let kind = match &reply.said {
            Said::Accepted { .. } => continue,
            Said::Refused(status, problem) => format!("{status} {}", kind_of(problem)),
            Said::Nothing(why) => format!("{why:?}"),
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
    demand(
        stray.is_none(),
        format!("a dead database must be told as 503, not {stray:?} ({kinds:?})"),
    )?;
    demand(
        meanwhile.max() <= ANSWERED_WITHIN,
        format!(
            "an answer took {:?} while the database was down",
            meanwhile.max()
        ),
    )?;
    demand(
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
