//! Lanekeeper: exactly-once transactions for EVM chains.
//!
//! Read [`wiring`] for what is connected to what, [`config::sections`] for every key.

mod cli;
mod commands;
mod wiring;

mod amount;
mod bench;
mod client;
mod clock;
mod config;
mod failure;
mod fleet;
mod jsonrpc;
mod lend;
mod open;
mod output;
mod signals;
mod telemetry;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use cli::{Cli, Command};
use config::{Config, RawFile, Sources};
use failure::Failure;

/// How long the last threads may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);

/// The whole program: reads the command line, and ends with the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Nodes tell what they do; commands speak up only when something is wrong.
    let level = match cli.command {
        Command::Serve(_) => "info",
        Command::Dev(_)
        | Command::Migrate(_)
        | Command::Config(_)
        | Command::Devchain(_)
        | Command::Tx(_)
        | Command::Lane(_)
        | Command::Nonce(_)
        | Command::Node(_)
        | Command::Key(_)
        | Command::Events(_)
        | Command::Bench(_) => "warn",
    };
    telemetry::start_logs(cli.log, level);
    // An error means that a provider is installed already, which is as good.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(&cli.command));
            // What was not finished in order is not waited for without end.
            runtime.shutdown_timeout(SHUTDOWN_MAX);
            ended
        }
        Err(e) => Err(Failure::refused("no threads", &e)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
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
        Command::Tx(command) => commands::tx::run(command).await,
        Command::Lane(command) => commands::lane::run(command).await,
        Command::Nonce(command) => commands::nonce::run(command).await,
        Command::Node(command) => commands::node::run(command).await,
        Command::Key(command) => commands::key::run(command),
        Command::Events(command) => commands::events::run(command).await,
        Command::Bench(command) => bench::run(command).await,
    }
}

/// What `config show --json` says of a text and an environment, or every problem of them. Opens no file that
/// they name: for those who try out texts that nobody wrote.
pub fn look_at_config(
    text: &str,
    environment: BTreeMap<String, String>,
) -> Result<serde_json::Value, Vec<String>> {
    let read = || {
        let config = Config::read(Sources {
            file: Some(RawFile::parse(Path::new("lanekeeper.toml"), text)?),
            env: environment,
            ..Sources::default()
        })?;
        // What a node would be told follows from it without further checks.
        config.node_config(config.http.listen);
        Ok(config.to_json())
    };
    read().map_err(|problems: Vec<config::Problem>| {
        problems.iter().map(ToString::to_string).collect()
    })
}
