//! Lanekeeper: exactly-once transactions for EVM chains.
//!
//! Read [`wiring`] for how the parts are connected, and [`config`] for every key.

mod command_line;
mod commands;
mod wiring;

mod adapters;
mod config;
mod jsonrpc;
mod reservations;
mod telemetry;
mod witness;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use cli::Failure;
use tracing_subscriber::filter::LevelFilter;

use command_line::{Cli, Command};
use config::{Config, RawFile, Sources};

/// How long the last threads may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);

/// The whole program: parses the command line, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // A node logs what it does, the other commands only warnings.
    let is_node = matches!(cli.command, Command::Serve(_));
    let level = if is_node {
        LevelFilter::INFO
    } else {
        LevelFilter::WARN
    };
    telemetry::start_logs(cli.log, level);
    // Fails only if a provider is already installed.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(&cli.command));
            // Blocking tasks that are still running do not delay the exit.
            runtime.shutdown_timeout(SHUTDOWN_MAX);
            ended
        }
        Err(e) => Err(Failure::refused("cannot start the runtime's threads", &e)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            cli::output::print_error(&failure);
            failure.code()
        }
    }
}

async fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Dev(args) => commands::dev::run(args).await,
        Command::Serve(args) => commands::serve::run(args).await,
        Command::Migrate(args) => commands::migrate::run(args).await,
        Command::Config(command) => commands::config::run(command),
        Command::Devchain(args) => commands::devchain::run(args).await,
        Command::Tx(command) => cli::commands::tx::run(command).await,
        Command::Lane(command) => cli::commands::lane::run(command).await,
        Command::Nonce(command) => cli::commands::nonce::run(command).await,
        Command::Node(command) => cli::commands::node::run(command).await,
        Command::Key(command) => commands::key::run(command),
        Command::Events(command) => cli::commands::events::run(command).await,
        Command::Bench(command) => commands::bench::run(command).await,
    }
}

/// The output of `config show --json` for a text and an environment, or all their problems. Opens no file that
/// they name, so that a fuzzer can call it with arbitrary text.
pub fn inspect_config(
    text: &str,
    environment: BTreeMap<String, String>,
) -> Result<serde_json::Value, Vec<String>> {
    let read = || {
        let config = Config::read(Sources {
            file: Some(RawFile::parse(Path::new("lanekeeper.toml"), text)?),
            env: environment,
            ..Sources::default()
        })?;
        // A valid configuration must always convert into the settings of a node.
        config.node_config(config.http.listen);
        Ok(config.to_json())
    };
    read().map_err(|problems: Vec<config::Problem>| {
        problems.iter().map(ToString::to_string).collect()
    })
}
