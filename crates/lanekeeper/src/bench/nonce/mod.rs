//! `bench nonce`: the schemes of lent nonces side by side, beside what PostgreSQL and Redis can do at all.
//!
//! Every run has a database of its own and fresh lanes. The workers are processes of this program: whole nodes
//! whose component is called from inside, so that all schemes are measured in the same way; where the scheme
//! `lane` has to ask another node, it does so over HTTP like any node.

mod bed;
mod chart;
mod limits;
mod measure;
mod plan;
mod redis;
mod report;
mod talk;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::accept::{LIMIT_DURATION_MAX, spinner};
use super::postgres::database::Server;
use super::postgres::pgbench::PgBench;
use crate::config::PostgresUrl;
use crate::failure::Failure;
use limits::{Limit, Limits};
use plan::{Contender, Setup, Work};
use report::Report;
pub(super) use worker::work;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  lanekeeper bench nonce --store postgres://postgres@127.0.0.1/postgres --redis redis://127.0.0.1/
  lanekeeper bench nonce --store postgres://… --redis redis://… --scheme lane,segment --lanes 1 --duration 10s
  lanekeeper bench nonce --store postgres://… --redis redis://… --json nonce.json --svg nonce.svg

A client borrows a nonce and waits for it before it borrows the next (allocate), or also says that it
sends and that the nonce is used (cycle). Limits are measured in the same run: pgbench takes a row lock
and inserts a row per transaction, redis-benchmark counts with INCR, both with 64 clients. Operations are
what pg_stat_database and INFO commandstats counted, per nonce. Use a release build.

Every run has a new database on that server, which is dropped afterwards: the role must be allowed to
create databases. Nobody else should use the Redis meanwhile; its keys of the bench are deleted.")]
pub(crate) struct NonceArgs {
    /// The PostgreSQL server
    #[arg(long, value_name = "URL")]
    store: String,
    /// The Redis server
    #[arg(long, value_name = "URL")]
    redis: String,
    /// Which schemes, separated by commas [default: all]
    #[arg(
        long = "scheme",
        value_name = "SCHEME,…",
        value_delimiter = ',',
        value_enum
    )]
    schemes: Vec<Contender>,
    /// Over how many lanes the clients are spread; several runs, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,100",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    lanes: Vec<u16>,
    /// From how many processes; several runs, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,3",
          value_parser = clap::value_parser!(u16).range(1..=9))]
    processes: Vec<u16>,
    /// How many clients there are in all processes together
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// How long each run is measured, after a warm-up
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::cli::duration)]
    duration: Duration,
    /// Where pgbench is, when it is not in the usual places
    #[arg(long, value_name = "PATH")]
    pgbench: Option<PathBuf>,
    /// Where redis-benchmark is, when it is not in the PATH
    #[arg(long, value_name = "PATH")]
    redis_benchmark: Option<PathBuf>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw them into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Both servers, and the programs that show what they can do.
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
            "--clients {clients} are too few for --processes {processes}: each needs one"
        )));
    }
    let redis = redis::Address::parse(&args.redis)?;
    let bench = Bench {
        args,
        pgbench: PgBench::find(args.pgbench.as_deref())?,
        server: Server::open(url).await?,
        redis: redis::Server::open(redis, args.redis_benchmark.as_deref()).await?,
    };
    let before = bench.limits().await?;
    let setups = args.setups();
    let mut runs = Vec::new();
    for (number, setup) in setups.iter().enumerate() {
        let bar = progress(number, setups.len(), *setup);
        let measured = Box::pin(measure::measure(&bench, *setup)).await;
        bar.finish_and_clear();
        runs.push(measured?);
    }
    let after = bench.limits().await?;
    let report = Report {
        args,
        postgres: bench.server.describe().await?,
        redis_version: bench.redis.version().await?,
        limits: args.limits(before, after),
        runs,
    };
    report.print();
    args.write(&report)?;
    report.verdict()
}

fn progress(number: usize, count: usize, setup: Setup) -> ProgressBar {
    spinner(&format!("{} of {count}: {setup}", number + 1))
}

impl Bench<'_> {
    /// Row locks by lanes, and INCR.
    async fn limits(&self) -> Result<(Vec<f64>, f64), Failure> {
        let Self {
            args,
            server,
            redis,
            pgbench,
        } = self;
        let duration = args.duration.min(LIMIT_DURATION_MAX);
        limits::measure(server, pgbench, redis, &args.lanes, duration).await
    }
}

impl NonceArgs {
    /// All runs: a scheme's stand together.
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

    fn limits(&self, before: (Vec<f64>, f64), after: (Vec<f64>, f64)) -> Limits {
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

    fn write(&self, report: &Report<'_>) -> Result<(), Failure> {
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
