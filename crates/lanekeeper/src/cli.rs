//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::BenchCommand;
use crate::commands::events::EventsCommand;
use crate::commands::key::KeyCommand;
use crate::commands::lane::LaneCommand;
use crate::commands::node::NodeCommand;
use crate::commands::nonce::NonceCommand;
use crate::commands::tx::TxCommand;
use crate::config::parse_duration;

/// Exactly-once transactions for EVM chains.
#[derive(Debug, Parser)]
#[command(
    name = "lanekeeper",
    version,
    about,
    arg_required_else_help = true,
    after_help = "\
Start here:
  lanekeeper dev                 a node, a store and a chain in one process
  lanekeeper tx send --help      what to try next

Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How log lines are written (to stderr; RUST_LOG says which)
    #[arg(long, global = true, value_enum, default_value_t = LogForm::Text, env = "LANEKEEPER_LOG")]
    pub(crate) log: LogForm,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process on loopback: node, store, chain, ten funded accounts
    Dev(DevArgs),
    /// Run a node
    Serve(ServeArgs),
    /// Bring the store's tables up to date
    Migrate(MigrateArgs),
    /// Look at a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run the dev chain alone
    Devchain(DevchainArgs),
    /// Send transactions and look at them
    #[command(subcommand)]
    Tx(TxCommand),
    /// Look at lanes: one signer on one chain each
    #[command(subcommand)]
    Lane(LaneCommand),
    /// Borrow nonces, for those who sign and send by themselves
    #[command(subcommand)]
    Nonce(NonceCommand),
    /// Look at the nodes of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Make API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Follow what happens
    #[command(subcommand)]
    Events(EventsCommand),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// A configuration file.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file (TOML)
    #[arg(long, value_name = "PATH")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  lanekeeper serve --config /etc/lanekeeper.toml

SIGTERM or Ctrl-C finishes what is under way and hands the lanes to other nodes.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// Print one line of JSON when ready, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends: the parent is gone
    #[arg(long, hide = true)]
    pub(crate) while_stdin: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper migrate --config /etc/lanekeeper.toml
  LANEKEEPER_STORE__URL=postgres://owner@db/lanekeeper \\
    lanekeeper migrate --config /etc/lanekeeper.toml --role lanekeeper

On PostgreSQL it also gives the role that serves its rights, and the timeouts that [lease] needs.")]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// PostgreSQL: the role that nodes serve with, when it is not the one of store.url
    #[arg(long, value_name = "NAME")]
    pub(crate) role: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say what is wrong with a configuration, all at once
    #[command(after_help = "Example:\n  lanekeeper config check --config lanekeeper.toml")]
    Check(ConfigLookArgs),
    /// Print every key, its value, and where that came from
    #[command(
        after_help = "Example:\n  LANEKEEPER_LEASE__DURATION=6s lanekeeper config show --config lanekeeper.toml"
    )]
    Show(ConfigLookArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigLookArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper dev                       API on 127.0.0.1:8645, chain on 127.0.0.1:8646
  lanekeeper dev --fresh               forget everything first
  lanekeeper dev --block-time 2s       a block every two seconds instead of at once
  LANEKEEPER_LANE__WINDOW=1 lanekeeper dev     any key of the configuration, by environment
  lanekeeper dev --nodes 3 --store postgres://postgres@127.0.0.1/lanekeeper
                                       a cluster to play with: kill a node and watch")]
pub(crate) struct DevArgs {
    /// The folder for store and chain
    #[arg(long, value_name = "DIR", default_value = ".lanekeeper")]
    pub(crate) dir: PathBuf,
    /// Delete what a former run left in the folder
    #[arg(long)]
    pub(crate) fresh: bool,
    /// How many nodes, each a process of its own; more than one needs --store
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=NODES_MAX))]
    pub(crate) nodes: u16,
    /// The PostgreSQL database that the nodes share
    #[arg(long, value_name = "URL", conflicts_with = "fresh")]
    pub(crate) store: Option<String>,
    /// The API's port on 127.0.0.1 (0: any free one); further nodes take those after it
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// The chain's port on 127.0.0.1 (0: any free one)
    #[arg(long, value_name = "PORT", default_value_t = CHAIN_PORT)]
    pub(crate) chain_port: u16,
    #[command(flatten)]
    pub(crate) chain: DevChainArgs,
    /// Use this dev chain (see `lanekeeper devchain`) instead of one in this process
    #[arg(long, value_name = "URL", conflicts_with_all = ["chain_port", "block_time"])]
    pub(crate) chain_url: Option<String>,
    /// A configuration file; [store], [[chain]] and [[signer]] are dev's own
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Print one line of JSON when ready, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends: the parent is gone
    #[arg(long, hide = true)]
    pub(crate) while_stdin: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper devchain --dir chain       JSON-RPC on 127.0.0.1:8646
  curl -s 127.0.0.1:8646 -H 'content-type: application/json' \\
    -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"anvil_reorg\",\"params\":[2,[]]}'")]
pub(crate) struct DevchainArgs {
    /// The folder for its blocks
    #[arg(long, value_name = "DIR", default_value = ".lanekeeper/chain")]
    pub(crate) dir: PathBuf,
    /// Delete what a former run left in the folder
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Its port on 127.0.0.1 (0: any free one)
    #[arg(long, value_name = "PORT", default_value_t = CHAIN_PORT)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) chain: DevChainArgs,
    /// Print one line of JSON when ready, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// More nodes than this on one machine show nothing more.
const NODES_MAX: i64 = 16;
/// Where dev chains listen by custom.
const CHAIN_PORT: u16 = 8646;

/// The dev chain's own settings.
#[derive(Clone, Debug, Args)]
pub(crate) struct DevChainArgs {
    /// Make a block at this pace instead of at once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) block_time: Option<Duration>,
    /// How many accounts of the test mnemonic have funds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) accounts: u32,
}

/// Reads a duration of the command line.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).filter(|duration| !duration.is_zero());
    parsed.ok_or_else(|| format!("{text:?} is not a duration: write 10s, 500ms, 2m or 1h"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_every_command_has_an_example() {
        Cli::command().debug_assert();
        let mut todo = vec![Cli::command()];
        while let Some(command) = todo.pop() {
            let is_leaf = command.get_subcommands().next().is_none();
            if is_leaf && !command.is_hide_set() {
                let help = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    help.contains("Example"),
                    "{} has no example",
                    command.get_name()
                );
                assert!(
                    command.get_about().is_some(),
                    "{} has no help",
                    command.get_name()
                );
            }
            todo.extend(command.get_subcommands().cloned());
        }
    }
}
