//! 6.3: Redis, PostgreSQL, holders and keepers are killed, frozen, flushed and replaced while three processes
//! reserve nonces, for every scheme. After every fault: no nonce with two holders, no two transactions for one
//! nonce, every gap closed, and automatic recovery.

mod audit;
mod docs_table;
mod holder;
mod injection;
mod journal;
mod measurements;
mod plan;
mod times;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::{Outcome, Report, ensure, flag, print_step};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use audit::Audited;
use measurements::{Cost, Pace};
use plan::{Case, Scheme};
use world::World;

const CASE_WITHIN: Duration = Duration::from_secs(180);
/// How long the load continues after the recovery.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// Concurrent cases by default: each has its own servers.
const AT_ONCE: &str = "2";

struct CaseResult {
    audited: Audited,
    cost: Cost,
    returned_by_itself: bool,
}

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let (cases, is_all) = plan::chosen()?;
    let writes_docs = std::env::args().any(|arg| arg == "--write-docs");
    ensure(is_all || !writes_docs, "--write-docs wants all cases")?;
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
                print_step(format!("{done} of {count}: {} holds", case.name()));
                report.fact(&case.name(), facts(&shown));
                all.push((case, shown));
            }
            Err(error) => {
                print_step(format!("{done} of {count}: {} FAILS: {error}", case.name()));
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
    ensure(failures.is_empty(), text)?;
    all.sort_by_key(|(case, _)| *case);
    finish_case(report, &all, writes_docs)
}

async fn run(case: Case) -> Outcome<CaseResult> {
    let mut world = World::start(case).await?;
    let pace = Pace::measure(&mut world).await?;
    print_step(format!("{}: {pace:?}, now it breaks", case.name()));
    let injected = injection::inject_fault(&mut world, case).await?;
    let normal_after = pace.returns(&mut world, injected).await?;
    injection::repair(&mut world, case).await?;
    tokio::time::sleep(AFTERWARDS).await;

    let drained_at = world::now()?;
    let top = world.journals()?.top().ok_or("nothing was allocated")?;
    let closed_after = world.drain(top).await?;
    world.all_closed(case.scheme, top).await?;
    for holder in &mut world.holders {
        holder.stop().await?;
    }
    world.journals()?;
    let journals = world.read_journals();
    let audited = audit::audit(journals, world.chain(), &world.account, top).await?;
    Ok(CaseResult {
        audited,
        cost: Cost::of(journals, injected, drained_at, (normal_after, closed_after)),
        returned_by_itself: measurements::returned_by_itself(case, journals)?,
    })
}

fn facts(shown: &CaseResult) -> serde_json::Value {
    let mut facts = shown.cost.json();
    facts["loans"] = shown.audited.reservations.into();
    facts["mined"] = shown.audited.mined.into();
    facts["lentAgain"] = shown.audited.reissued.into();
    facts["closedByTheChainAlone"] = shown.audited.left.into();
    facts["redisLeftOutAndBack"] = shown.returned_by_itself.into();
    facts
}

fn finish_case(
    report: &mut Report,
    all: &[(Case, CaseResult)],
    writes_docs: bool,
) -> Outcome<String> {
    let costs: Vec<(Case, Cost)> = all
        .iter()
        .map(|(case, shown)| (*case, shown.cost.clone()))
        .collect();
    report.note("table", docs_table::table(&costs)?);
    if writes_docs {
        print_step(format!("wrote {}", docs_table::write(&costs)?.display()));
    }
    let sum = |of: fn(&CaseResult) -> usize| all.iter().map(|(_, shown)| of(shown)).sum::<usize>();
    let is_used = |scheme: &&Scheme| all.iter().any(|(case, _)| case.scheme == **scheme);
    let slowest = all.iter().map(|(_, shown)| shown.cost.closed_after).max();
    Ok(format!(
        "{} faults on {} schemes: {} nonces reserved, {} of them reissued, {} mined, {} of them closed by the chain \
         alone; 0 in two hands, 0 with two transactions, every hole closed after {:.1} s at most (time-out {} s), everything back by itself",
        all.len(),
        Scheme::ALL.iter().filter(is_used).count(),
        sum(|shown| shown.audited.reservations),
        sum(|shown| shown.audited.reissued),
        sum(|shown| shown.audited.mined),
        sum(|shown| shown.audited.left),
        slowest.unwrap_or_default().as_secs_f64(),
        times::RESERVATION.as_secs(),
    ))
}
