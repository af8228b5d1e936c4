//! `lanekeeper bench`: this process generates load, the servers under test run in processes of their own.
//!
//! The servers are this program again (`dev`, `serve`, hidden commands), started as child processes.

mod accept;
mod limits;
mod load;
mod migration;
mod nonce;
mod null_chain;
mod postgres;
mod report;
mod row_writer;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use cli::Failure;
use futures::FutureExt as _;
use futures::future::BoxFuture;

pub use nonce::serve_worker;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure how many requests per second become durable, and their latency
    Accept(AcceptArgs),
    /// Measure how many nonces per second each scheme reserves, their latency, and the load on the servers
    Nonce(nonce::NonceArgs),
    /// Run a server that accepts every request and does nothing: the limit of HTTP alone
    #[command(hide = true)]
    LimitHttp,
    /// Run a chain that answers without doing any work
    #[command(hide = true)]
    NullChain {
        #[arg(long)]
        nonces: Option<PathBuf>,
        #[arg(long, value_enum, default_value_t = null_chain::SendMode::Held)]
        sends: null_chain::SendMode,
    },
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper bench accept
  lanekeeper bench accept --clients 64 --lanes 100 --duration 30s --json accept.json
  lanekeeper bench accept --store postgres://postgres@127.0.0.1/postgres --lanes 10 --nodes 3
  lanekeeper bench accept --store postgres://… --finished 5000000 --clients 64

Each request is one HTTP/1.1 POST with a random requestId; each client waits for the answer before
it sends the next request. Limits are measured in the same run: a server that answers every POST
without doing anything, the store without a node, writing the same rows in batches, and, with
--store, pgbench inserting rows of the same shape. Use a release build.

With --store, every run creates a database on that server and drops it afterwards: the role needs
CREATEDB.")]
pub struct AcceptArgs {
    /// Concurrent clients; several values, separated by commas, make several runs
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: Vec<u16>,
    /// Measure nodes on this PostgreSQL server instead of the embedded store
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "url",
        help_heading = "PostgreSQL"
    )]
    store: Option<String>,
    /// Node processes; clients are spread over them
    #[arg(long, value_name = "N", default_value_t = 1, requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Measure again with this many finished txs in the tables, a fifth of them in the measured lanes
    #[arg(long, value_name = "N", requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    finished: Option<u64>,
    /// Additional lanes without requests
    #[arg(long, value_name = "N", default_value_t = 0, requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    idle_lanes: u32,
    /// What the chain does with sent transactions
    #[arg(long, value_enum, default_value_t = null_chain::SendMode::Held, requires = "store",
          help_heading = "PostgreSQL")]
    sends: null_chain::SendMode,
    /// The path of pgbench, if it is neither in PATH nor in /usr/lib/postgresql
    #[arg(
        long,
        value_name = "PATH",
        requires = "store",
        help_heading = "PostgreSQL"
    )]
    pgbench: Option<PathBuf>,
    /// Lanes over which the requests are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    lanes: u32,
    /// The measured time of each run, after a warm-up
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = cli::duration::parse_flag)]
    duration: Duration,
    /// `lane.mempoolDepth` of the server: a number signs that many at once, `auto` starts at 16
    /// [default: auto; with --store 1000000, so that every accepted tx is signed]
    #[arg(long, value_name = "N|auto")]
    mempool_depth: Option<String>,
    /// Measure this node instead of a fresh one (its accounts must be those of `dev`)
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a benchmark or one of its servers.
pub fn run(command: &BenchCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        match command {
            BenchCommand::Accept(args) => {
                args.check_mempool_depth()?;
                match &args.store {
                    Some(store) => postgres::run(args, store).await,
                    None => accept::run(args).await,
                }
            }
            BenchCommand::Nonce(args) => nonce::run(args).await,
            BenchCommand::LimitHttp => limits::serve_http_limit().await,
            BenchCommand::NullChain { nonces, sends } => {
                null_chain::serve(nonces.as_deref(), *sends).await
            }
        }
    }
    .boxed()
}

impl AcceptArgs {
    /// `lane.mempoolDepth`: by default everything that is accepted on PostgreSQL is signed too.
    fn mempool_depth(&self) -> &str {
        let default = if self.store.is_some() {
            "1000000"
        } else {
            "auto"
        };
        self.mempool_depth.as_deref().unwrap_or(default)
    }

    /// What accepting writes for each request.
    fn row_kind(&self) -> row_writer::RowKind {
        match self.mempool_depth() {
            "auto" => row_writer::RowKind::Allocated,
            _ => row_writer::RowKind::Signed,
        }
    }

    fn check_mempool_depth(&self) -> Result<(), Failure> {
        let depth = self.mempool_depth();
        if depth == "auto" || depth.parse::<u64>().is_ok_and(|n| n > 0) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "--mempool-depth {depth:?} must be \"auto\" or a number, 1 or more"
        )))
    }

    /// Writes the results to the file of `--json`.
    fn write_json(&self, results: &serde_json::Value) -> Result<(), Failure> {
        let Some(path) = &self.json else {
            return Ok(());
        };
        std::fs::write(path, format!("{results:#}\n"))
            .map_err(|e| Failure::refused(&format!("{} cannot be written", path.display()), &e))
    }
}
