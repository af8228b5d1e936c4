//! Measuring: load from this process against a server in another one.

mod accept;
mod limits;
mod load;
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
    /// A server that takes every request and does nothing: what HTTP alone can do
    #[command(hide = true)]
    LimitHttp,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper bench accept
  lanekeeper bench accept --clients 64 --lanes 100 --duration 30s --json accept.json

Each request is one HTTP/1.1 POST with its own random requestId; each client waits for its answer
before it sends the next. Two limits are measured in the same run: a server that answers every POST
without doing anything, and the bare store that takes the same rows in batches. Use a release build.")]
pub(crate) struct AcceptArgs {
    /// How many clients send at once; several runs, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: Vec<u16>,
    /// Over how many lanes the requests are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) lanes: u32,
    /// How long each run is measured, after a warm-up
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::cli::duration)]
    pub(crate) duration: Duration,
    /// `lane.mempoolDepth` of the server: a number signs that many at once, `auto` starts at 16
    #[arg(long, value_name = "N|auto", default_value = "auto")]
    pub(crate) mempool_depth: String,
    /// Measure this node instead of a fresh one (its accounts must be those of `dev`)
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

pub(crate) async fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Accept(args) => accept::run(args).await,
        BenchCommand::LimitHttp => limits::serve_http().await,
    }
}
