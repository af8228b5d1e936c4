//! 3.5 and 3.6: `lanekeeper bench accept` on PostgreSQL with `fsync`, next to pgbench in the same run.
//!
//! 3.5 measures one, ten and a thousand lanes on one node and on three; 3.6 (`--growth`) measures again
//! with millions of finished txs in the tables, and with ten thousand lanes of which a hundred are active.

use std::time::Duration;

use proof::{Outcome, Report, ensure, flag, print_step, run_bench};
use rig::postgres::Postgres;
use serde_json::Value;

/// Relative to pgbench's rate of one comparable insert per transaction, on one lane.
const OF_PGBENCH_MIN: f64 = 0.25;
/// The target.
const OF_PGBENCH_AIM: f64 = 0.6;
/// Filling millions of rows takes most of it.
const BENCH_WITHIN: Duration = Duration::from_secs(3_600);
/// Relative to the rate with empty tables, and with the active lanes alone.
const OF_EMPTY_MIN: f64 = 0.9;
/// The active and the idle lanes of the wide run.
const ACTIVE_LANES: u32 = 100;
const IDLE_LANES: u32 = 9_900;
/// Finished txs of the wide run: every lane has had work, but the number of lanes is what grows.
const FINISHED_IN_ALL_LANES: u32 = 30_000;
/// The budget of one accepted tx.
const BUDGET: [(&str, f64); 4] = [
    ("rowsPerAccept", 3.0),
    ("indexEntriesPerAccept", 6.0),
    ("walBytesPerAcceptWithoutPageImages", 1_500.0),
    ("roundTripsPerAccept", 0.05),
];

pub(crate) async fn accept(report: &mut Report) -> Outcome<String> {
    let server = server(&[]).await?;
    let mut over = Vec::new();
    let mut on_one_lane = 0.0;
    for nodes in ["1", "3"] {
        for lanes in ["1", "10", "1000"] {
            let bench = bench(&server, "8s", &["--lanes", lanes, "--nodes", nodes]).await?;
            let run = newest_run(&bench)?;
            let name = format!("{lanes} lanes, {nodes} nodes");
            if (lanes, nodes) == ("1", "1") {
                on_one_lane = number(run, "ofPgbench")?;
            }
            over.extend(over_budget(&name, run)?);
            report.fact(&name, bench.clone());
        }
    }
    report.fact("overBudget", over.clone());
    // With one accept per lane and turn, no row of a lane is shared.
    let serious: Vec<&String> = over
        .iter()
        .filter(|text| !text.starts_with("1000 "))
        .collect();
    ensure(serious.is_empty(), format!("over budget: {serious:?}"))?;
    ensure(
        on_one_lane >= OF_PGBENCH_MIN,
        format!("{on_one_lane:.2} of pgbench on one lane; at least {OF_PGBENCH_MIN} is required"),
    )?;
    Ok(format!(
        "{on_one_lane:.2} of pgbench's single rows on one lane (minimum {OF_PGBENCH_MIN}, target {OF_PGBENCH_AIM}); \
         over budget: {over:?}"
    ))
}

pub(crate) async fn growth(report: &mut Report) -> Outcome<String> {
    // As docs/running.md recommends: with PostgreSQL's default of 128 MB, an index of this size does not fit into
    // the cache.
    let server = server(&[("max_wal_size", "8GB"), ("shared_buffers", "2GB")]).await?;
    let finished = flag("finished", "5000000");
    // After a checkpoint the first change of a page logs the whole page, and random keys touch all pages of their
    // index. A run that is short compared with the checkpoint interval would mostly measure that.
    let grown = bench(&server, "60s", &["--lanes", "1", "--finished", &finished]).await?;
    let of_empty = number(newest_run(&grown)?, "ofEmpty")?;
    report.fact("finished", grown);
    ensure(
        of_empty >= OF_EMPTY_MIN,
        format!("{of_empty:.2} of the empty rate with {finished} finished txs"),
    )?;
    let wide = wide(report, &server).await?;
    Ok(format!(
        "{of_empty:.2} of the empty rate with {finished} finished txs; {wide} (minimum {OF_EMPTY_MIN} each)"
    ))
}

/// 10,000 lanes of which 100 are active, compared with the 100 alone.
async fn wide(report: &mut Report, server: &Postgres) -> Outcome<String> {
    let lanes = ACTIVE_LANES + IDLE_LANES;
    let counts = [ACTIVE_LANES, IDLE_LANES, FINISHED_IN_ALL_LANES].map(|count| count.to_string());
    let [active, idle, finished] = counts.each_ref().map(String::as_str);
    let args = [
        "--lanes",
        active,
        "--idle-lanes",
        idle,
        "--finished",
        finished,
    ];
    let bench = bench(server, "20s", &args).await?;
    report.fact("lanes", bench.clone());
    let phase = newest_phase(&bench)?;
    let run = newest_run(&bench)?;
    let (found, alone) = (
        number(phase, "lanes")?,
        number(first_phase(&bench)?, "lanes")?,
    );
    ensure(
        found >= f64::from(lanes) && alone <= f64::from(ACTIVE_LANES),
        format!("the tables have {alone} lanes and then {found}, not {active} and {lanes}"),
    )?;
    let of_active = number(run, "ofEmpty")?;
    ensure(
        of_active >= OF_EMPTY_MIN,
        format!("{of_active:.2} of the rate of {active} lanes when there are {lanes}"),
    )?;
    Ok(format!(
        "{of_active:.2} of the rate of {active} lanes alone when there are {lanes} ({:.0} accepted/s; an idle \
         node queries {:.1} times a second)",
        number(run, "perSecond")?,
        number(phase, "idleTransactionsPerSecondAndNode")?
    ))
}

async fn server(more: &'static [(&'static str, &'static str)]) -> Outcome<Postgres> {
    let settings = [&[("max_connections", "300")], more].concat();
    let start = move || Postgres::start_with(15, &settings);
    Ok(tokio::task::spawn_blocking(start).await?)
}

async fn bench(server: &Postgres, duration: &str, more: &[&str]) -> Outcome<Value> {
    print_step(format!("bench accept {}", more.join(" ")));
    let (url, duration) = (server.url().to_owned(), flag("duration", duration));
    let mut args = vec!["accept", "--store", &url, "--clients", "512"];
    args.extend(["--duration", &duration]);
    args.extend(more);
    run_bench(BENCH_WITHIN, &args).await
}

fn first_phase(bench: &Value) -> Outcome<&Value> {
    let phase = bench["phases"].as_array().and_then(|phases| phases.first());
    phase.ok_or_else(|| "the bench has no phases".into())
}

fn newest_phase(bench: &Value) -> Outcome<&Value> {
    let phase = bench["phases"].as_array().and_then(|phases| phases.last());
    phase.ok_or_else(|| "the bench has no phases".into())
}

fn newest_run(bench: &Value) -> Outcome<&Value> {
    let run = newest_phase(bench)?["runs"]
        .as_array()
        .and_then(|runs| runs.last());
    run.ok_or_else(|| "the bench has no runs".into())
}

fn number(run: &Value, name: &str) -> Outcome<f64> {
    let number = run[name].as_f64();
    number.ok_or_else(|| format!("the bench reports no {name}").into())
}

fn over_budget(name: &str, run: &Value) -> Outcome<Vec<String>> {
    let mut over = Vec::new();
    for (what, most) in BUDGET {
        let found = number(run, what)?;
        if found > most {
            over.push(format!("{name}: {what} {found:.3} (budget {most})"));
        }
    }
    Ok(over)
}
