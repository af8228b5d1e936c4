//! 6.4: `lanekeeper bench nonce` on PostgreSQL with `fsync` and on Redis, next to pgbench and `redis-benchmark` of
//! the same run: every scheme has results, nothing fails, no nonce is reserved twice, and the round trips per nonce
//! are within the scheme's budget.

use std::time::Duration;

use proof::{Outcome, Report, ensure, flag, print_step, run_bench};
use rig::postgres::Postgres;
use rig::redis::{Persistence, Redis};
use serde_json::Value;

const BENCH_WITHIN: Duration = Duration::from_secs(3_600);
/// One and 100 lanes, one and three processes, allocation alone and whole cycles.
const RUNS_OF_A_SCHEME: usize = 8;

/// The budget of one nonce (docs/adr/0009-nonce-component.md), in database transactions and Redis calls: for an
/// allocation alone, and for allocate, submit and use.
struct Budget {
    scheme: &'static str,
    redis_lock: bool,
    allocate: (f64, f64),
    cycle: (f64, f64),
}

/// Start and end of the processes and the idle calls of a node are counted too.
const SLACK: f64 = 0.05;

const BUDGETS: [Budget; 6] = [
    Budget {
        scheme: "row-lock",
        redis_lock: false,
        allocate: (1.0, 0.0),
        cycle: (3.0, 0.0),
    },
    // The lock is acquired and released; another process polls for it.
    Budget {
        scheme: "row-lock",
        redis_lock: true,
        allocate: (1.0, 4.0),
        cycle: (3.0, 4.0),
    },
    Budget {
        scheme: "redis-issue",
        redis_lock: false,
        allocate: (1.0, 1.0),
        cycle: (3.0, 1.0),
    },
    // In batches; each is also sent to Redis.
    Budget {
        scheme: "redis-reserve",
        redis_lock: false,
        allocate: (0.2, 1.4),
        cycle: (0.5, 1.4),
    },
    // In batches, including marks; with several processes most calls are single calls from other nodes.
    Budget {
        scheme: "lane",
        redis_lock: false,
        allocate: (0.3, 0.0),
        cycle: (1.0, 0.0),
    },
    Budget {
        scheme: "segment",
        redis_lock: false,
        allocate: (0.2, 0.0),
        cycle: (0.5, 0.0),
    },
];

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let start = || {
        let postgres = Postgres::start_with(15, &[("max_connections", "300")]);
        (postgres, Redis::start(Persistence::Nothing))
    };
    let (postgres, redis) = tokio::task::spawn_blocking(start).await?;
    let bench = bench(&postgres, &redis).await?;
    report.note("bench", bench.clone());
    let mut over = Vec::new();
    let mut figures = Vec::new();
    for budget in &BUDGETS {
        let runs = runs_of(&bench, budget)?;
        let found = runs.len();
        ensure(
            found == RUNS_OF_A_SCHEME,
            format!(
                "{}: {found} runs instead of {RUNS_OF_A_SCHEME}",
                budget.name()
            ),
        )?;
        for run in &runs {
            judge(budget, run)?;
            over.extend(over_budget(budget, run)?);
        }
        let one = (runs.iter()).find(|run| is(run, 1, 1, "allocate"));
        let one = one.ok_or("a scheme has no run on one lane")?;
        figures.push(format!(
            "{} {:.0}",
            budget.name(),
            number(one, "perSecond")?
        ));
    }
    report.fact("overBudget", over.clone());
    ensure(over.is_empty(), format!("over budget: {over:?}"))?;
    let row_lock = number(&bench["pgbenchRowLock"][0], "perSecond")?;
    let incr = number(&bench["redisIncr"], "perSecond")?;
    Ok(format!(
        "nonces/s on one lane, one process, beside {row_lock:.0} row locks of pgbench and {incr:.0} INCR: {}; 0 \
         failed, 0 reserved twice, all within their budgets",
        figures.join(", ")
    ))
}

async fn bench(postgres: &Postgres, redis: &Redis) -> Outcome<Value> {
    print_step("bench nonce: some minutes");
    let (store, redis, duration) = (postgres.url(), redis.url(), flag("duration", "5s"));
    let mut args = vec!["nonce", "--store", store, "--redis", &redis];
    args.extend(["--duration", &duration]);
    let svg = flag("svg", "");
    if !svg.is_empty() {
        args.extend(["--svg", &svg]);
    }
    run_bench(BENCH_WITHIN, &args).await
}

impl Budget {
    fn name(&self) -> String {
        let lock = if self.redis_lock {
            " with a Redis lock"
        } else {
            ""
        };
        format!("{}{lock}", self.scheme)
    }
}

fn runs_of<'a>(bench: &'a Value, budget: &Budget) -> Outcome<Vec<&'a Value>> {
    let runs = bench["runs"].as_array().ok_or("the bench has no runs")?;
    let is_its =
        |run: &&Value| run["scheme"] == budget.scheme && run["redisLock"] == budget.redis_lock;
    Ok(runs.iter().filter(is_its).collect())
}

fn is(run: &Value, lanes: u64, processes: u64, work: &str) -> bool {
    run["lanes"] == lanes && run["processes"] == processes && run["work"] == work
}

/// Checks that hold on every machine.
fn judge(budget: &Budget, run: &Value) -> Outcome<()> {
    let name = name_of(budget, run);
    let rate = number(run, "perSecond")?;
    ensure(rate > 0.0, format!("{name}: nothing was allocated"))?;
    for bad in ["failed", "lentTwice"] {
        let count = number(run, bad)?;
        let why = run["failure"].as_str().unwrap_or_default();
        ensure(count == 0.0, format!("{name}: {count} {bad} {why}"))?;
    }
    // An allocation from memory may take less than the measured microsecond.
    let (p50, p99) = (number(run, "p50Ms")?, number(run, "p99Ms")?);
    ensure(p99 > 0.0 && p99 >= p50, format!("{name}: no latencies"))
}

fn over_budget(budget: &Budget, run: &Value) -> Outcome<Vec<String>> {
    let (transactions, calls) = match run["work"].as_str() {
        Some("allocate") => budget.allocate,
        Some("cycle") => budget.cycle,
        _ => return Err("a run does not say what it did".into()),
    };
    let mut over = Vec::new();
    for (what, most) in [
        ("transactionsPerNonce", transactions),
        ("redisCallsPerNonce", calls),
    ] {
        let found = number(run, what)?;
        if found > most + SLACK {
            let name = name_of(budget, run);
            over.push(format!("{name}: {what} {found:.3} (budget {most})"));
        }
    }
    Ok(over)
}

fn name_of(budget: &Budget, run: &Value) -> String {
    let (lanes, processes, work) = (&run["lanes"], &run["processes"], &run["work"]);
    format!(
        "{}, {lanes} lanes, {processes} processes, {work}",
        budget.name()
    )
}

fn number(run: &Value, name: &str) -> Outcome<f64> {
    let number = run[name].as_f64();
    number.ok_or_else(|| format!("the bench reports no {name}").into())
}
