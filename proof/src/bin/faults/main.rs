//! 4.3: nodes that lose, lie, lag and die, and strangers that use our accounts, one fault at a time under
//! a load of payments, each to a recipient of its own. Whatever happens: every accepted payment exactly
//! once, and nothing stuck.

mod scenarios;
mod settings;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::audit::Counted;
use proof::network::{Make, makes};
use proof::stats::ms;
use proof::{Outcome, Report, demand, flag, say};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use scenarios::{Fault, Run, Shown};

/// Which faults also meet the other makes, whose pools and words differ: those about sends and nonces.
const EVERYWHERE: [Fault; 6] = [
    Fault::LostAnswers,
    Fault::Dropped,
    Fault::ForeignBefore,
    Fault::ForeignAfter,
    Fault::Storms,
    Fault::Rejection,
];

/// The longest that one scenario may take.
const SCENARIO_WITHIN: Duration = Duration::from_secs(240);

// Servers are started and stopped by calls that block; the others go on meanwhile.
#[tokio::main(flavor = "multi_thread", worker_threads = 8)]
async fn main() -> ExitCode {
    let mut report = Report::new("04-3-faults");
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let runs = chosen(report)?;
    let room = Arc::new(Semaphore::new(flag("at-once", "4").parse()?));
    let (count, began) = (runs.len(), Instant::now());
    let mut running = JoinSet::new();
    for run in runs {
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _permit = room.acquire_owned().await;
            let began = Instant::now();
            let shown = tokio::time::timeout(SCENARIO_WITHIN, run.run()).await;
            let shown = shown.unwrap_or_else(|_| Err("it takes too long".into()));
            (run, shown, began.elapsed())
        });
    }
    let mut failures = Vec::new();
    let mut totals = Counted::default();
    let mut per_make: BTreeMap<Make, usize> = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        let (run, shown, took) = ended?;
        match shown {
            Ok(shown) => {
                totals = totals.plus(shown.counted);
                *per_make.entry(run.make).or_default() += 1;
                tell(report, &run, &shown, took);
            }
            Err(error) => {
                say(format!("{} FAILS: {error}", run.name()));
                failures.push(format!("{} ({}): {error}", run.name(), run.fault.about()));
            }
        }
    }
    failures.sort_unstable();
    report.fact("failures", json!(failures));
    report.fact("tookMs", ms(began.elapsed()));
    demand(
        failures.is_empty(),
        format!(
            "{} of {count} fail: {}",
            failures.len(),
            failures.join("; ")
        ),
    )?;
    let makes: Vec<String> = per_make
        .iter()
        .map(|(make, count)| format!("{count} on {}", make.name()))
        .collect();
    Ok(format!(
        "{count} faults ({}): {} payments exactly once, 0 lost, 0 doubled, 0 stuck; {} nonces taken by \
         strangers, {} rejected for good, {} no-ops",
        makes.join(", "),
        totals.paid,
        totals.foreign,
        totals.rejected,
        totals.no_ops,
    ))
}

fn tell(report: &mut Report, run: &Run, shown: &Shown, took: Duration) {
    let counted = shown.counted;
    report.fact(
        &run.name(),
        json!({
            "fault": run.fault.about(),
            "node": run.make.name(),
            "paidExactlyOnce": counted.paid,
            "rejected": counted.rejected,
            "noOps": counted.no_ops,
            "foreign": counted.foreign,
            "facts": shown.facts,
            "tookMs": ms(took),
        }),
    );
}

/// What is to run: by default each fault on anvil and some of them on hardhat and ganache too.
fn chosen(report: &mut Report) -> Outcome<Vec<Run>> {
    let only = flag("only", "");
    let letters: Vec<&str> = only
        .split(',')
        .filter(|letter| !letter.is_empty())
        .collect();
    let named = flag("node", "");
    let makes = if named.is_empty() {
        Vec::new()
    } else {
        makes(&named)?
    };
    let is_short = std::env::args().any(|arg| arg == "--short");
    let (mut runs, mut impossible) = (Vec::new(), Vec::new());
    for make in Make::ALL {
        for fault in Fault::ALL {
            let by_default = match make {
                Make::ANVIL => true,
                Make::HARDHAT | Make::GANACHE => !is_short && EVERYWHERE.contains(&fault),
                Make::Devchain => false,
            };
            let is_wanted = if makes.is_empty() {
                by_default
            } else {
                makes.contains(&make)
            };
            if !is_wanted || !(letters.is_empty() || letters.contains(&fault.letter())) {
                continue;
            }
            match fault.impossible_on(make) {
                Some(why) => impossible.push(format!("{}: {why}", fault.letter())),
                None => runs.push(Run {
                    fault,
                    make,
                    is_short,
                }),
            }
        }
    }
    demand(!runs.is_empty(), format!("--only {only}: nothing to run"))?;
    report.fact("impossible", json!(impossible));
    Ok(runs)
}
