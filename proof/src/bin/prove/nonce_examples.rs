//! 6.4: the example programs: three processes of each pay from one account concurrently. The Rust example uses the
//! library, over PostgreSQL and anvil; the Python example reserves nonces over HTTP from `lanekeeper dev`. Every
//! payment arrives, and no nonce is skipped or used twice.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::U256;
use futures::future::try_join_all;
use proof::cluster::{postgres, run_blocking};
use proof::network::{Network, NodeKind, Terms, signer};
use proof::{
    Chain, Options, Outcome, Report, Scratch, Server, binary, ensure, flag, random_address,
};
use rig::evm::account;
use rig::postgres::majors;
use tokio::process::Command;

/// Concurrent processes.
const PROCESSES: u64 = 3;
const PAID_WITHIN: Duration = Duration::from_secs(120);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let each: u64 = flag("each", "20").parse()?;
    let python = flag("python", "");
    ensure(
        !python.is_empty(),
        "--python must name one with eth-account",
    )?;
    rust(each).await?;
    report.fact("rust", PROCESSES * each);
    in_python(&python, each).await?;
    report.fact("python", PROCESSES * each);
    Ok(format!(
        "{PROCESSES} processes in Rust and {PROCESSES} in Python paid {} times each language, from one account each: \
         every payment arrived, no nonce was left out or used twice",
        PROCESSES * each
    ))
}

/// With the library, over PostgreSQL and anvil.
async fn rust(each: u64) -> Outcome<()> {
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let owner = Arc::clone(&server);
    let database = run_blocking(move || owner.database("payouts")).await?;
    let net = Network::start(NodeKind::ANVIL, Terms::default()).await?;
    let program = binary().with_file_name("payouts");
    let command = |to: &str| {
        let mut command = Command::new(&program);
        command
            .args(["--database", database.url(), "--rpc", net.url()])
            .args(["--to", to, "--count", &each.to_string()])
            .env("PAYOUTS_KEY", account(0).1.to_string());
        command
    };
    pay(&net.chain, &signer(0), each, command).await
}

/// Over HTTP, from `lanekeeper dev`.
async fn in_python(python: &str, each: u64) -> Outcome<()> {
    let scratch = Scratch::new()?;
    let dev = Server::dev(&Options {
        dir: scratch.folder("dev")?,
        ..Options::default()
    })
    .await?;
    let (address, key) = dev
        .external_account
        .clone()
        .ok_or("dev has no external account")?;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/payouts.py");
    let command = |to: &str| {
        let mut command = Command::new(python);
        command
            .args([program, "--api", dev.api.url(), "--rpc", dev.chain.url()])
            .args(["--key", &key, "--to", to, "--count", &each.to_string()]);
        command
    };
    pay(&dev.chain, &address, each, command).await
}

/// Runs all processes concurrently, then checks the chain.
async fn pay(
    chain: &Chain,
    from: &str,
    each: u64,
    command: impl Fn(&str) -> Command,
) -> Outcome<()> {
    let to = random_address();
    let first = chain.nonce(from).await?;
    let run = |mut command: Command| async move {
        let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(PAID_WITHIN, running).await??;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(
            output.status.success(),
            format!("{}: {stderr}", output.status),
        )
    };
    try_join_all((0..PROCESSES).map(|_| run(command(&to)))).await?;
    let (arrived, used) = (chain.balance(&to).await?, chain.nonce(from).await? - first);
    let expected = PROCESSES * each;
    ensure(
        arrived == U256::from(expected) && used == expected,
        format!("{arrived} wei arrived by {used} nonces, instead of {expected} by as many"),
    )
}
