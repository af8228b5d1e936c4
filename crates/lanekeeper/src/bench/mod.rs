//! Measuring: load from this process against a server in another one.

mod accept;
mod filler;
mod limits;
mod load;
mod nonce;
mod null_chain;
mod postgres;
mod report;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// How many requests per second become durable, and how long each takes
    Accept(AcceptArgs),
    /// How many nonces per second each scheme lends, how long one takes, and what it costs the servers
    Nonce(nonce::NonceArgs),
    /// A process that borrows nonces
    #[command(hide = true)]
    NonceWorker {
        #[arg(long)]
        config: PathBuf,
    },
    /// A server that takes every request and does nothing: what HTTP alone can do
    #[command(hide = true)]
    LimitHttp,
    /// A chain that costs nothing
    #[command(hide = true)]
    NullChain {
        #[arg(long)]
        nonces: Option<PathBuf>,
        #[arg(long, value_enum, default_value_t = null_chain::Sends::Held)]
        sends: null_chain::Sends,
    },
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper bench accept
  lanekeeper bench accept --clients 64 --lanes 100 --duration 30s --json accept.json
  lanekeeper bench accept --store postgres://postgres@127.0.0.1/postgres --lanes 10 --nodes 3
  lanekeeper bench accept --store postgres://… --finished 5000000 --clients 64

Each request is one HTTP/1.1 POST with its own random requestId; each client waits for its answer
before it sends the next. Limits are measured in the same run: a server that answers every POST
without doing anything, the bare store that takes the same rows in batches, and, with --store,
pgbench that inserts rows like ours. Use a release build.

With --store, every run has a new database on that server, which is dropped afterwards: the role must
be allowed to create databases.")]
pub(crate) struct AcceptArgs {
    /// How many clients send at once; several runs, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: Vec<u16>,
    /// Measure nodes on this PostgreSQL server instead of the embedded store
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "url",
        help_heading = "PostgreSQL"
    )]
    pub(crate) store: Option<String>,
    /// How many nodes, each a process; clients are spread over them
    #[arg(long, value_name = "N", default_value_t = 1, requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) nodes: u16,
    /// Measure again with so many finished txs in the tables, a fifth of them in the measured lanes
    #[arg(long, value_name = "N", requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(crate) finished: Option<u64>,
    /// How many lanes the nodes have besides, without requests
    #[arg(long, value_name = "N", default_value_t = 0, requires = "store", help_heading = "PostgreSQL",
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) idle_lanes: u32,
    /// What the chain does with signed bytes
    #[arg(long, value_enum, default_value_t = null_chain::Sends::Held, requires = "store",
          help_heading = "PostgreSQL")]
    pub(crate) sends: null_chain::Sends,
    /// Where pgbench is, when it is not in the usual places
    #[arg(
        long,
        value_name = "PATH",
        requires = "store",
        help_heading = "PostgreSQL"
    )]
    pub(crate) pgbench: Option<PathBuf>,
    /// Over how many lanes the requests are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) lanes: u32,
    /// How long each run is measured, after a warm-up
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::cli::duration)]
    pub(crate) duration: Duration,
    /// `lane.mempoolDepth` of the server: a number signs that many at once, `auto` starts at 16
    /// [default: auto; with --store 1000000, so that every answer is signed]
    #[arg(long, value_name = "N|auto")]
    pub(crate) mempool_depth: Option<String>,
    /// Measure this node instead of a fresh one (its accounts must be those of `dev`)
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

pub(crate) async fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Accept(args) => {
            args.check_depth()?;
            match &args.store {
                Some(store) => postgres::run(args, store).await,
                None => accept::run(args).await,
            }
        }
        BenchCommand::Nonce(args) => nonce::run(args).await,
        BenchCommand::NonceWorker { config } => nonce::work(config).await,
        BenchCommand::LimitHttp => limits::serve_http().await,
        BenchCommand::NullChain { nonces, sends } => {
            null_chain::serve(nonces.as_deref(), *sends).await
        }
    }
}

impl AcceptArgs {
    /// `lane.mempoolDepth`: on PostgreSQL every answer is signed, unless told otherwise.
    fn depth(&self) -> &str {
        let default = if self.store.is_some() {
            "1000000"
        } else {
            "auto"
        };
        self.mempool_depth.as_deref().unwrap_or(default)
    }

    /// What accepting writes for each request.
    fn rows(&self) -> filler::Rows {
        match self.depth() {
            "auto" => filler::Rows::Allocated,
            _ => filler::Rows::Signed,
        }
    }

    fn check_depth(&self) -> Result<(), Failure> {
        let depth = self.depth();
        if depth == "auto" || depth.parse::<u64>().is_ok_and(|n| n > 0) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "--mempool-depth {depth:?} must be \"auto\" or a number, 1 or more"
        )))
    }

    /// Writes the figures where they are wanted.
    fn write_json(&self, figures: &serde_json::Value) -> Result<(), Failure> {
        let Some(path) = &self.json else {
            return Ok(());
        };
        std::fs::write(path, format!("{figures:#}\n"))
            .map_err(|e| Failure::refused(&format!("{} cannot be written", path.display()), &e))
    }
}
