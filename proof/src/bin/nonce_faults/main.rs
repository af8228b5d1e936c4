//! 6.3: Redis, PostgreSQL, borrowers and keepers are killed, frozen, emptied and replaced while three processes
//! borrow nonces, for every scheme. Whatever happens: no nonce in two hands, no two transactions for one nonce,
//! every hole closed in the end, and everything as before by itself.

mod audit;
mod borrower;
mod figures;
mod journal;
mod page;
mod plan;
mod strike;
mod times;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::{Outcome, Report, demand, flag, say};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use audit::Audited;
use figures::{Cost, Pace};
use plan::{Case, Scheme};
use world::World;

/// The longest that one case may take.
const CASE_WITHIN: Duration = Duration::from_secs(180);
/// How long the load goes on after everything is as before.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// How many cases run side by side, where nobody says: each has servers of its own.
const AT_ONCE: &str = "2";

/// What a case showed.
struct Shown {
    audited: Audited,
    cost: Cost,
    returned_by_itself: bool,
}

// Servers are started and stopped by calls that block; the others go on meanwhile.
#[tokio::main(flavor = "multi_thread", worker_threads = 8)]
async fn main() -> ExitCode {
    let mut report = Report::new("06-3-faults");
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let (cases, is_all) = plan::chosen()?;
    let writes_docs = std::env::args().any(|arg| arg == "--write-docs");
    demand(is_all || !writes_docs, "--write-docs wants all cases")?;
    let room = Arc::new(Semaphore::new(flag("at-once", AT_ONCE).parse()?));
    let (count, began) = (cases.len(), Instant::now());
    let mut running = JoinSet::new();
    for case in cases {
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _permit = room.acquire_owned().await;
            let shown = tokio::time::timeout(CASE_WITHIN, run(case)).await;
            (
                case,
                shown.unwrap_or_else(|_| Err("it takes too long".into())),
            )
        });
    }
    let (mut failures, mut all) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (case, shown) = ended?;
        let done = failures.len() + all.len() + 1;
        match shown {
            Ok(shown) => {
                say(format!("{done} of {count}: {} holds", case.name()));
                report.fact(&case.name(), facts(&shown));
                all.push((case, shown));
            }
            Err(error) => {
                say(format!("{done} of {count}: {} FAILS: {error}", case.name()));
                failures.push(format!("{}: {error}", case.name()));
            }
        }
    }
    failures.sort_unstable();
    report.fact("failures", json!(failures));
    report.fact("tookS", began.elapsed().as_secs());
    let text = format!(
        "{} of {count} fail: {}",
        failures.len(),
        failures.join("; ")
    );
    demand(failures.is_empty(), text)?;
    all.sort_by_key(|(case, _)| *case);
    conclude(report, &all, writes_docs)
}

async fn run(case: Case) -> Outcome<Shown> {
    let mut world = World::start(case).await?;
    let pace = Pace::measure(&mut world).await?;
    say(format!("{}: {pace:?}, now it breaks", case.name()));
    let struck = strike::strike(&mut world, case).await?;
    let normal_after = pace.returns(&mut world, struck).await?;
    strike::mend(&mut world, case).await?;
    tokio::time::sleep(AFTERWARDS).await;

    let drained_at = world::now()?;
    let top = world.journals()?.top().ok_or("nothing was lent")?;
    let closed_after = world.drain(top).await?;
    world.all_closed(case.scheme, top).await?;
    for borrower in &mut world.borrowers {
        borrower.stop().await?;
    }
    world.journals()?;
    let journals = world.read_journals();
    let audited = audit::audit(journals, world.chain(), &world.account, top).await?;
    Ok(Shown {
        audited,
        cost: Cost::of(journals, struck, drained_at, (normal_after, closed_after)),
        returned_by_itself: figures::returned_by_itself(case, journals)?,
    })
}

fn facts(shown: &Shown) -> serde_json::Value {
    let mut facts = shown.cost.json();
    facts["loans"] = shown.audited.loans.into();
    facts["mined"] = shown.audited.mined.into();
    facts["lentAgain"] = shown.audited.lent_again.into();
    facts["closedByTheChainAlone"] = shown.audited.left.into();
    facts["redisLeftOutAndBack"] = shown.returned_by_itself.into();
    facts
}

fn conclude(report: &mut Report, all: &[(Case, Shown)], writes_docs: bool) -> Outcome<String> {
    let costs: Vec<(Case, Cost)> = all
        .iter()
        .map(|(case, shown)| (*case, shown.cost.clone()))
        .collect();
    report.note("table", page::table(&costs)?);
    if writes_docs {
        say(format!("wrote {}", page::write(&costs)?.display()));
    }
    let sum = |of: fn(&Shown) -> usize| all.iter().map(|(_, shown)| of(shown)).sum::<usize>();
    let is_used = |scheme: &&Scheme| all.iter().any(|(case, _)| case.scheme == **scheme);
    let slowest = all.iter().map(|(_, shown)| shown.cost.closed_after).max();
    Ok(format!(
        "{} faults on {} schemes: {} nonces lent, {} of them lent again, {} mined, {} of them closed by the chain \
         alone; 0 in two hands, 0 with two transactions, every hole closed after {:.1} s at most (time-out {} s), everything back by itself",
        all.len(),
        Scheme::ALL.iter().filter(is_used).count(),
        sum(|shown| shown.audited.loans),
        sum(|shown| shown.audited.lent_again),
        sum(|shown| shown.audited.mined),
        sum(|shown| shown.audited.left),
        slowest.unwrap_or_default().as_secs_f64(),
        times::RESERVATION.as_secs(),
    ))
}
