//! The command line of each kind.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{CHAIN_ID, Kind, MNEMONIC, Mining, Options};
use crate::home::Home;
use crate::tools;

/// What each account has, in coins.
const BALANCE: u32 = 10_000;

/// A command that serves on this port of loopback.
pub(super) fn command(kind: Kind, options: &Options, home: &Home, port: u16) -> Command {
    let mut command = match kind {
        Kind::Anvil => anvil(options, home, port),
        Kind::Hardhat => hardhat(options, home, port),
        Kind::Ganache => ganache(options, home, port),
    };
    command
        .args(&options.arguments)
        // They keep caches and settings in places of their user, who has none.
        .env("HOME", home.workplace())
        .env("TMPDIR", home.workplace());
    command
}

fn anvil(options: &Options, home: &Home, port: u16) -> Command {
    let program = tools::anvil().unwrap_or_else(|missing| panic!("{missing}"));
    let mut command = home.command(&program);
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--chain-id", &CHAIN_ID.to_string()])
        .args(["--mnemonic", MNEMONIC])
        .args(["--accounts", &options.accounts.to_string()])
        .args(["--balance", &BALANCE.to_string()])
        .args(["--gas-limit", &options.block_gas_limit.to_string()])
        // Read at start and written at the end.
        .arg("--state")
        .arg(home.workplace().join("state.json"))
        .arg("--quiet");
    match options.states {
        Some(count) => command.args(["--prune-history", &count.to_string()]),
        // Nonces are asked for at heights of the past.
        None => command.arg("--preserve-historical-states"),
    };
    match options.mining {
        Mining::Instant => {}
        Mining::Every(time) => {
            command.args(["--block-time", &seconds(time)]);
        }
        Mining::Manual => {
            command.arg("--no-mining");
        }
    }
    command
}

/// Hardhat wants a project: a folder with its configuration and itself.
fn hardhat(options: &Options, home: &Home, port: u16) -> Command {
    let modules = tools::node_modules("hardhat").unwrap_or_else(|missing| panic!("{missing}"));
    let interval = match options.mining {
        Mining::Instant | Mining::Manual => 0,
        Mining::Every(time) => time.as_millis(),
    };
    let network = json!({
        "chainId": CHAIN_ID,
        "blockGasLimit": options.block_gas_limit,
        "accounts": { "mnemonic": MNEMONIC, "count": options.accounts },
        "mining": { "auto": options.mining == Mining::Instant, "interval": interval },
    });
    let config = json!({ "networks": { "hardhat": network } });
    let project = home.workplace();
    fs::write(
        project.join("hardhat.config.js"),
        format!("module.exports = {config};\n"),
    )
    .expect("the home is ours");
    let link = project.join("node_modules");
    if !link.exists() {
        symlink(&modules, &link).expect("the home is ours");
    }
    home.give_to_servant();
    let mut command = node(home);
    command
        .arg(link.join("hardhat/internal/cli/bootstrap.js"))
        .args(["node", "--hostname", "127.0.0.1"])
        .args(["--port", &port.to_string()])
        .env("HARDHAT_DISABLE_TELEMETRY_PROMPT", "true");
    command
}

fn ganache(options: &Options, home: &Home, port: u16) -> Command {
    let modules = tools::node_modules("ganache").unwrap_or_else(|missing| panic!("{missing}"));
    let block_time = match options.mining {
        Mining::Instant | Mining::Manual => "0".to_owned(),
        Mining::Every(time) => seconds(time),
    };
    let mut command = node(home);
    command
        .arg(modules.join("ganache/dist/node/cli.js"))
        .args(["--server.host", "127.0.0.1"])
        .args(["--server.port", &port.to_string()])
        .args(["--chain.chainId", &CHAIN_ID.to_string()])
        .args(["--chain.networkId", &CHAIN_ID.to_string()])
        .args(["--wallet.mnemonic", MNEMONIC])
        .args(["--wallet.totalAccounts", &options.accounts.to_string()])
        .args(["--wallet.defaultBalance", &BALANCE.to_string()])
        .args([
            "--miner.blockGasLimit",
            &options.block_gas_limit.to_string(),
        ])
        .args(["--miner.blockTime", &block_time])
        // Otherwise it answers a send only when it is mined, and one behind a gap never.
        .args(["--miner.instamine", "strict"])
        .arg("--database.dbPath")
        .arg(home.workplace().join("chain"))
        .arg("--logging.quiet");
    command
}

fn node(home: &Home) -> Command {
    home.command(&tools::node().unwrap_or_else(|missing| panic!("{missing}")))
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}
