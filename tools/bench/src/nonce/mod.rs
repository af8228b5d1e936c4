//! `bench nonce`: compares the schemes of nonce reservations with each other and with the limits of PostgreSQL
//! and Redis.
//!
//! Every run has its own database and new lanes. The workers are child processes that contain a whole node and
//! call its nonce component in process, so that all schemes are measured in the same way. Where scheme `lane`
//! has to reach the keeper in another worker, it uses HTTP like any node.

mod chart;
mod limits;
mod measure;
mod redis;
mod report;
mod setup;
mod worker;
mod worker_pool;
mod worker_protocol;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cli::{Failure, PostgresUrl};

use super::accept::{LIMIT_DURATION_MAX, spinner};
use super::postgres::database::Server;
use super::postgres::pgbench::PgBench;
use limits::{Limit, Limits};
use report::Report;
use setup::{Contender, Setup, Work};
pub use worker::serve_worker;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  lanekeeper bench nonce --store postgres://postgres@127.0.0.1/postgres --redis redis://127.0.0.1/
  lanekeeper bench nonce --store postgres://… --redis redis://… --scheme lane,segment --lanes 1 --duration 10s
  lanekeeper bench nonce --store postgres://… --redis redis://… --json nonce.json --svg nonce.svg

A client reserves a nonce and waits for it before it reserves the next (allocate), or also marks it as
submitted and used (cycle). Limits are measured in the same run: pgbench takes a row lock and inserts a
row per transaction, redis-benchmark runs INCR, both with 64 clients. Operations per nonce are counted
by pg_stat_database and INFO commandstats. Use a release build.

Every run creates a database on that server and drops it afterwards: the role needs CREATEDB. No other
program should use the Redis server meanwhile; the keys of the benchmark are deleted.")]
pub struct NonceArgs {
    /// The PostgreSQL server
    #[arg(long, value_name = "URL")]
    store: String,
    /// The Redis server
    #[arg(long, value_name = "URL")]
    redis: String,
    /// The schemes, separated by commas [default: all]
    #[arg(
        long = "scheme",
        value_name = "SCHEME,…",
        value_delimiter = ',',
        value_enum
    )]
    schemes: Vec<Contender>,
    /// Lanes over which the clients are spread; several values, separated by commas, make several runs
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,100",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    lanes: Vec<u16>,
    /// Worker processes; several values, separated by commas, make several runs
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,3",
          value_parser = clap::value_parser!(u16).range(1..=9))]
    processes: Vec<u16>,
    /// Concurrent clients of all processes together
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// The measured time of each run, after a warm-up
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = cli::duration::parse_flag)]
    duration: Duration,
    /// The path of pgbench, if it is neither in PATH nor in /usr/lib/postgresql
    #[arg(long, value_name = "PATH")]
    pgbench: Option<PathBuf>,
    /// The path of redis-benchmark, if it is not in PATH
    #[arg(long, value_name = "PATH")]
    redis_benchmark: Option<PathBuf>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw the results as SVG to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Both servers, and the programs that measure their limits.
struct Bench<'a> {
    args: &'a NonceArgs,
    server: Server,
    redis: redis::Server,
    pgbench: PgBench,
}

pub(crate) async fn run(args: &NonceArgs) -> Result<(), Failure> {
    let url = PostgresUrl::parse(&args.store).ok_or_else(|| {
        Failure::Usage("--store takes postgres://user:password@host:5432/database".into())
    })?;
    if let Some(processes) = args.processes.iter().find(|n| **n > args.clients) {
        let clients = args.clients;
        return Err(Failure::Usage(format!(
            "--clients {clients} is less than --processes {processes}: every process needs a client"
        )));
    }
    let redis = redis::Address::parse(&args.redis)?;
    let bench = Bench {
        args,
        pgbench: PgBench::find(args.pgbench.as_deref())?,
        server: Server::open(url).await?,
        redis: redis::Server::open(redis, args.redis_benchmark.as_deref()).await?,
    };
    let before = bench.measure_limits().await?;
    let setups = args.setups();
    let mut runs = Vec::new();
    for (number, setup) in setups.iter().enumerate() {
        let bar = spinner(&format!("{} of {}: {setup}", number + 1, setups.len()));
        let measured = Box::pin(measure::measure_setup(&bench, *setup)).await;
        bar.finish_and_clear();
        runs.push(measured?);
    }
    let after = bench.measure_limits().await?;
    let report = Report {
        args,
        postgres: bench.server.read_settings().await?,
        redis_version: bench.redis.version().await?,
        limits: args.pair_limits(before, after),
        runs,
    };
    report.print();
    args.write_files(&report)?;
    report.check_results()
}

impl Bench<'_> {
    /// Measures row locks by number of lanes, and INCR.
    async fn measure_limits(&self) -> Result<(Vec<f64>, f64), Failure> {
        let Self {
            args,
            server,
            redis,
            pgbench,
        } = self;
        let duration = args.duration.min(LIMIT_DURATION_MAX);
        limits::measure_limits(server, pgbench, redis, &args.lanes, duration).await
    }
}

impl NonceArgs {
    /// All runs, ordered by scheme.
    fn setups(&self) -> Vec<Setup> {
        use clap::ValueEnum as _;
        let all = Contender::value_variants();
        let contenders = match self.schemes.is_empty() {
            true => all,
            false => &self.schemes,
        };
        let mut setups = Vec::new();
        for contender in contenders {
            for lanes in &self.lanes {
                for processes in &self.processes {
                    for work in Work::ALL {
                        setups.push(Setup {
                            contender: *contender,
                            lanes: *lanes,
                            processes: *processes,
                            work,
                        });
                    }
                }
            }
        }
        setups
    }

    fn pair_limits(&self, before: (Vec<f64>, f64), after: (Vec<f64>, f64)) -> Limits {
        let pairs = before.0.into_iter().zip(after.0);
        let limits = pairs.map(|(before, after)| Limit { before, after });
        Limits {
            row_lock: self.lanes.iter().copied().zip(limits).collect(),
            incr: Limit {
                before: before.1,
                after: after.1,
            },
        }
    }

    fn write_files(&self, report: &Report<'_>) -> Result<(), Failure> {
        let json = || format!("{:#}\n", report.to_json());
        let files = [
            (&self.json, &json as &dyn Fn() -> String),
            (&self.svg, &|| chart::draw(report)),
        ];
        for (path, text) in files {
            let Some(path) = path else { continue };
            std::fs::write(path, text()).map_err(|e| {
                Failure::refused(&format!("{} cannot be written", path.display()), &e)
            })?;
        }
        Ok(())
    }
}
