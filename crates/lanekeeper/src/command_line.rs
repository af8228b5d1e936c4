//! The command line: every command that the binary itself implements, and its flags.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cli::commands::events::EventsCommand;
use cli::commands::lane::LaneCommand;
use cli::commands::node::NodeCommand;
use cli::commands::nonce::NonceCommand;
use cli::commands::tx::TxCommand;
use cli::duration;

use crate::commands::bench::BenchCommand;
use crate::commands::key::KeyCommand;

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
  lanekeeper tx send --help      the next step

Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The format of log lines on stderr (RUST_LOG selects which)
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "LANEKEEPER_LOG")]
    pub(crate) log: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process on loopback: node, store, chain, ten funded accounts
    Dev(DevArgs),
    /// Run a node
    Serve(ServeArgs),
    /// Migrate the tables of the store
    Migrate(MigrateArgs),
    /// Check and show a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run the dev chain alone
    Devchain(DevchainArgs),
    /// Send and show transactions
    #[command(subcommand)]
    Tx(TxCommand),
    /// Show and resume lanes (one signer on one chain each)
    #[command(subcommand)]
    Lane(LaneCommand),
    /// Reserve nonces for transactions that you sign and send yourself
    #[command(subcommand)]
    Nonce(NonceCommand),
    /// Show the nodes of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Create API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Follow the event stream
    #[command(subcommand)]
    Events(EventsCommand),
    /// Run benchmarks
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

SIGTERM or Ctrl-C stops gracefully: the node finishes running requests and releases its lanes to other nodes.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends, because the parent has ended
    #[arg(long, hide = true)]
    pub(crate) while_stdin: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper migrate --config /etc/lanekeeper.toml
  LANEKEEPER_STORE__URL=postgres://owner@db/lanekeeper \\
    lanekeeper migrate --config /etc/lanekeeper.toml --role lanekeeper

  lanekeeper migrate --config /etc/lanekeeper.toml --restored --reason \"disk failure, backup of 3 May\"

On PostgreSQL it also grants the serving role its privileges, and sets the timeouts that [lease] needs.
--restored may be repeated. On PostgreSQL nodes may be running; the embedded store must be closed.")]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// PostgreSQL: the role of the nodes, if it is not the one of store.url
    #[arg(long, value_name = "NAME")]
    pub(crate) role: Option<String>,
    /// Declare that a backup of the store was restored: every lane is compared with its chain before it takes work
    #[arg(long, requires = "reason")]
    pub(crate) restored: bool,
    /// Why it was restored, for those who read it later
    #[arg(long, value_name = "TEXT", requires = "restored", value_parser = parse_reason)]
    pub(crate) reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The longest reason of a declared restore.
const REASON_LEN_MAX: usize = 500;

fn parse_reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if (1..=REASON_LEN_MAX).contains(&text.len()) && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err(format!("a reason has 1 to {REASON_LEN_MAX} bytes"))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report all problems of a configuration at once
    #[command(after_help = "Example:\n  lanekeeper config check --config lanekeeper.toml")]
    Check(ConfigOutputArgs),
    /// Print every key with its value and origin
    #[command(
        after_help = "Example:\n  LANEKEEPER_LEASE__DURATION=6s lanekeeper config show --config lanekeeper.toml"
    )]
    Show(ConfigOutputArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigOutputArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper dev                       API on 127.0.0.1:8645, chain on 127.0.0.1:8646
  lanekeeper dev --fresh               delete all data first
  lanekeeper dev --block-time 2s       a block every two seconds instead of one per transaction
  LANEKEEPER_LANE__WINDOW=1 lanekeeper dev     any configuration key, by environment variable
  lanekeeper dev --nodes 3 --store postgres://postgres@127.0.0.1/lanekeeper
                                       a cluster: kill a node and watch the takeover")]
pub(crate) struct DevArgs {
    /// The folder of the store and the chain
    #[arg(long, value_name = "DIR", default_value = ".lanekeeper")]
    pub(crate) dir: PathBuf,
    /// Delete the data of previous runs first
    #[arg(long)]
    pub(crate) fresh: bool,
    /// The number of node processes; more than one needs --store
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=NODES_MAX))]
    pub(crate) nodes: u16,
    /// The PostgreSQL database that the nodes share
    #[arg(long, value_name = "URL", conflicts_with = "fresh")]
    pub(crate) store: Option<String>,
    /// The API's port on 127.0.0.1 (0: any free one); further nodes use the following ports
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
    /// A configuration file without [store], [[chain]] and [[signer]], which `dev` sets itself
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input ends, because the parent has ended
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
    /// The folder of its blocks
    #[arg(long, value_name = "DIR", default_value = ".lanekeeper/chain")]
    pub(crate) dir: PathBuf,
    /// Delete the data of previous runs first
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Its port on 127.0.0.1 (0: any free one)
    #[arg(long, value_name = "PORT", default_value_t = CHAIN_PORT)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) chain: DevChainArgs,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
}

/// More nodes on one machine demonstrate nothing more.
const NODES_MAX: i64 = 16;
/// The default port of the dev chain.
const CHAIN_PORT: u16 = 8646;

/// The settings of the dev chain.
#[derive(Clone, Debug, Args)]
pub(crate) struct DevChainArgs {
    /// Mine a block at this interval instead of one per transaction
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_flag)]
    pub(crate) block_time: Option<Duration>,
    /// The number of funded accounts of the test mnemonic
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) accounts: u32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_has_help_and_an_example() {
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

    #[test]
    fn restore_is_declared_with_a_reason_only() {
        let parse = |more: &[&str]| {
            let args = [&["lanekeeper", "migrate", "--config", "file"], more].concat();
            Cli::try_parse_from(args)
        };
        assert!(parse(&[]).is_ok());
        assert!(parse(&["--restored", "--reason", "a disk was lost"]).is_ok());
        let too_long = "x".repeat(REASON_LEN_MAX + 1);
        for bad in [
            &["--restored"][..],
            &["--reason", "a disk was lost"],
            &["--restored", "--reason", " "],
            &["--restored", "--reason", too_long.as_str()],
        ] {
            let refused = parse(bad).expect_err("a usage error");
            assert_eq!(refused.exit_code(), 2, "{bad:?}");
        }
    }
}
