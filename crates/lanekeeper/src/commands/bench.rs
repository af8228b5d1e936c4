//! `bench`: the benchmarks themselves are in the crate `bench`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use cli::Failure;

use super::read_generated;
use crate::wiring::RunningNode;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    #[command(flatten)]
    Benchmark(Box<bench::BenchCommand>),
    /// Run a node that reserves nonces for `bench nonce`
    #[command(hide = true)]
    NonceWorker {
        #[arg(long)]
        config: PathBuf,
    },
}

pub(crate) async fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Benchmark(command) => bench::run(command).await,
        BenchCommand::NonceWorker { config } => run_nonce_worker(config).await,
    }
}

async fn run_nonce_worker(config: &Path) -> Result<(), Failure> {
    let running = RunningNode::start(&read_generated(config)?).await?;
    let reservations = running.reservations().ok_or_else(|| {
        Failure::Usage("no signer of this configuration has kind = \"external\"".to_owned())
    })?;
    bench::serve_worker(reservations).await?;
    running.drain_and_stop().await;
    Ok(())
}
