//! The command line of each kind of node.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Kind, MNEMONIC, Mining, Options};
use crate::server_dir::ServerDir;
use crate::tools;

/// The balance of each account, in coins.
const BALANCE: u32 = 10_000;

/// The command that serves on this loopback port.
pub(super) fn command(kind: Kind, options: &Options, dir: &ServerDir, port: u16) -> Command {
    let mut command = match kind {
        Kind::Anvil => anvil(options, dir, port),
        Kind::Hardhat => hardhat(options, dir, port),
        Kind::Ganache => ganache(options, dir, port),
    };
    command
        .args(&options.arguments)
        // They keep caches and settings in the user's home, which the server user does not have.
        .env("HOME", dir.work_dir())
        .env("TMPDIR", dir.work_dir());
    command
}

fn anvil(options: &Options, dir: &ServerDir, port: u16) -> Command {
    let program = tools::anvil().unwrap_or_else(|missing| panic!("{missing}"));
    let mut command = dir.command(&program);
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--chain-id", &options.chain_id.to_string()])
        .args(["--mnemonic", MNEMONIC])
        .args(["--accounts", &options.accounts.to_string()])
        .args(["--balance", &BALANCE.to_string()])
        .args(["--gas-limit", &options.block_gas_limit.to_string()])
        // Read at the start and written at the stop.
        .arg("--state")
        .arg(dir.work_dir().join("state.json"))
        .arg("--quiet");
    if let Some(hardfork) = options.hardfork {
        command.args(["--hardfork", hardfork]);
    }
    match options.states {
        Some(count) => command.args(["--prune-history", &count.to_string()]),
        // Nonces are queried at past heights.
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

/// Hardhat needs a project: a folder with its configuration and itself.
fn hardhat(options: &Options, dir: &ServerDir, port: u16) -> Command {
    let modules = tools::node_modules("hardhat").unwrap_or_else(|missing| panic!("{missing}"));
    let interval = match options.mining {
        Mining::Instant | Mining::Manual => 0,
        Mining::Every(time) => time.as_millis(),
    };
    let mut network = json!({
        "chainId": options.chain_id,
        "blockGasLimit": options.block_gas_limit,
        "accounts": { "mnemonic": MNEMONIC, "count": options.accounts },
        "mining": { "auto": options.mining == Mining::Instant, "interval": interval },
    });
    if let Some(hardfork) = options.hardfork {
        network["hardfork"] = hardfork.into();
    }
    let config = json!({ "networks": { "hardhat": network } });
    let project = dir.work_dir();
    fs::write(
        project.join("hardhat.config.js"),
        format!("module.exports = {config};\n"),
    )
    .expect("the directory was created by the rig");
    let link = project.join("node_modules");
    if !link.exists() {
        symlink(&modules, &link).expect("the directory was created by the rig");
    }
    dir.chown_to_server_user();
    let mut command = node(dir);
    command
        .arg(link.join("hardhat/internal/cli/bootstrap.js"))
        .args(["node", "--hostname", "127.0.0.1"])
        .args(["--port", &port.to_string()])
        .env("HARDHAT_DISABLE_TELEMETRY_PROMPT", "true");
    command
}

fn ganache(options: &Options, dir: &ServerDir, port: u16) -> Command {
    let modules = tools::node_modules("ganache").unwrap_or_else(|missing| panic!("{missing}"));
    let block_time = match options.mining {
        Mining::Instant | Mining::Manual => "0".to_owned(),
        Mining::Every(time) => seconds(time),
    };
    let mut command = node(dir);
    command
        .arg(modules.join("ganache/dist/node/cli.js"))
        .args(["--server.host", "127.0.0.1"])
        .args(["--server.port", &port.to_string()])
        .args(["--chain.chainId", &options.chain_id.to_string()])
        .args(["--chain.networkId", &options.chain_id.to_string()])
        .args(["--wallet.mnemonic", MNEMONIC])
        .args(["--wallet.totalAccounts", &options.accounts.to_string()])
        .args(["--wallet.defaultBalance", &BALANCE.to_string()])
        .args([
            "--miner.blockGasLimit",
            &options.block_gas_limit.to_string(),
        ])
        .args(["--miner.blockTime", &block_time])
        // Otherwise it answers a send only when it is mined, and never one behind a gap.
        .args(["--miner.instamine", "strict"])
        .arg("--database.dbPath")
        .arg(dir.work_dir().join("chain"))
        .arg("--logging.quiet");
    if let Some(hardfork) = options.hardfork {
        command.args(["--chain.hardfork", hardfork]);
    }
    command
}

fn node(dir: &ServerDir) -> Command {
    dir.command(&tools::node().unwrap_or_else(|missing| panic!("{missing}")))
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}
