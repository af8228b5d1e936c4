//! 4.3: endpoints that lose, misreport, lag and fail, and foreign programs that use the accounts; one fault at a
//! time under a load of payments, each to its own recipient. After every fault: every accepted payment exactly
//! once, and nothing stuck.

mod scenarios;
mod settings;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::audit::AuditCounts;
use proof::network::{NodeKind, parse_node_kinds};
use proof::stats::ms;
use proof::{Outcome, Report, ensure, flag, print_step};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use scenarios::{Fault, Run, ScenarioResult};

/// Faults that also run on the other kinds of nodes, whose pools and messages differ: those about sends and nonces.
const ALL_KINDS: [Fault; 6] = [
    Fault::LostAnswers,
    Fault::Dropped,
    Fault::ForeignBefore,
    Fault::ForeignAfter,
    Fault::Storms,
    Fault::Rejection,
];

const SCENARIO_WITHIN: Duration = Duration::from_secs(240);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
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
    let mut totals = AuditCounts::default();
    let mut per_kind: BTreeMap<NodeKind, usize> = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        let (run, shown, took) = ended?;
        match shown {
            Ok(shown) => {
                totals = totals.plus(shown.counted);
                *per_kind.entry(run.node_kind).or_default() += 1;
                print_result(report, &run, &shown, took);
            }
            Err(error) => {
                print_step(format!("{} FAILS: {error}", run.name()));
                failures.push(format!("{} ({}): {error}", run.name(), run.fault.about()));
            }
        }
    }
    failures.sort_unstable();
    report.fact("failures", json!(failures));
    report.fact("tookMs", ms(began.elapsed()));
    ensure(
        failures.is_empty(),
        format!(
            "{} of {count} fail: {}",
            failures.len(),
            failures.join("; ")
        ),
    )?;
    let node_kinds: Vec<String> = per_kind
        .iter()
        .map(|(node_kind, count)| format!("{count} on {}", node_kind.name()))
        .collect();
    Ok(format!(
        "{count} faults ({}): {} payments exactly once, 0 lost, 0 duplicated, 0 stuck; {} nonces taken by \
         foreign, {} rejected permanently, {} fillers",
        node_kinds.join(", "),
        totals.paid,
        totals.foreign,
        totals.rejected,
        totals.no_ops,
    ))
}

fn print_result(report: &mut Report, run: &Run, shown: &ScenarioResult, took: Duration) {
    let counted = shown.counted;
    report.fact(
        &run.name(),
        json!({
            "fault": run.fault.about(),
            "node": run.node_kind.name(),
            "paidExactlyOnce": counted.paid,
            "rejected": counted.rejected,
            "noOps": counted.no_ops,
            "foreign": counted.foreign,
            "facts": shown.facts,
            "tookMs": ms(took),
        }),
    );
}

/// The selected runs: by default each fault on anvil, and some of them on hardhat and ganache too.
fn chosen(report: &mut Report) -> Outcome<Vec<Run>> {
    let only = flag("only", "");
    let letters: Vec<&str> = only
        .split(',')
        .filter(|letter| !letter.is_empty())
        .collect();
    let named = flag("node", "");
    let node_kinds = if named.is_empty() {
        Vec::new()
    } else {
        parse_node_kinds(&named)?
    };
    let is_short = std::env::args().any(|arg| arg == "--short");
    let (mut runs, mut impossible) = (Vec::new(), Vec::new());
    for node_kind in NodeKind::ALL {
        for fault in Fault::ALL {
            let by_default = match node_kind {
                NodeKind::ANVIL => true,
                NodeKind::HARDHAT | NodeKind::GANACHE => !is_short && ALL_KINDS.contains(&fault),
                NodeKind::Devchain => false,
            };
            let is_wanted = if node_kinds.is_empty() {
                by_default
            } else {
                node_kinds.contains(&node_kind)
            };
            if !is_wanted || !(letters.is_empty() || letters.contains(&fault.letter())) {
                continue;
            }
            match fault.impossible_on(node_kind) {
                Some(why) => impossible.push(format!("{}: {why}", fault.letter())),
                None => runs.push(Run {
                    fault,
                    node_kind,
                    is_short,
                }),
            }
        }
    }
    ensure(!runs.is_empty(), format!("--only {only}: nothing to run"))?;
    report.fact("impossible", json!(impossible));
    Ok(runs)
}
