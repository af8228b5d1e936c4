//! A real `lanekeeper` process, started, killed and started again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::{Api, Chain, Outcome, ensure, print_step};

const READY_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The data directory.
    pub dir: PathBuf,
    /// An external chain instead of the built-in one.
    pub chain_url: Option<String>,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// A running process; killed on drop.
pub struct Server {
    child: Child,
    pub api: Api,
    pub chain: Chain,
    /// The managed accounts.
    pub accounts: Vec<String>,
    /// The external account and its key.
    pub external_account: Option<(String, String)>,
}

/// The binary in the proof's own target directory, built by the proof's script.
pub fn binary() -> PathBuf {
    let proof = std::env::current_exe().unwrap_or_default();
    proof.with_file_name("lanekeeper")
}

/// A port that was free a moment ago.
pub fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// For commands that measure nothing.
pub const COMMAND_WITHIN: Duration = Duration::from_secs(180);

/// Runs a command of the binary, and returns its output.
pub async fn run(args: &[&str], env: &[(&str, &str)]) -> Outcome<Output> {
    run_within(COMMAND_WITHIN, args, env).await
}

/// With a longer timeout.
pub async fn run_within(within: Duration, args: &[&str], env: &[(&str, &str)]) -> Outcome<Output> {
    run_binary_within(&binary(), within, args, env).await
}

async fn run_binary_within(
    binary: &Path,
    within: Duration,
    args: &[&str],
    env: &[(&str, &str)],
) -> Outcome<Output> {
    let mut command = Command::new(binary);
    command
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(tokio::time::timeout(within, command.output()).await??)
}

/// Runs a benchmark of the binary, prints its output and returns its JSON report.
pub async fn run_bench(within: Duration, args: &[&str]) -> Outcome<Value> {
    let (output, report) = run_bench_of(&binary(), within, args).await?;
    print_step(output);
    Ok(report)
}

/// Runs a benchmark of any binary, and returns its output and its JSON report.
pub async fn run_bench_of(
    binary: &Path,
    within: Duration,
    args: &[&str],
) -> Outcome<(String, Value)> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_string_lossy().into_owned();
    let args = [&["bench"], args, &["--json", &path]].concat();
    let output = run_binary_within(binary, within, &args, &[]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure(
        output.status.success(),
        format!("{text}\n{}: {error}", args.join(" ")),
    )?;
    Ok((
        text,
        serde_json::from_str(&std::fs::read_to_string(&path)?)?,
    ))
}

/// The first lines of a command that does not end by itself.
pub async fn first_lines(
    args: &[&str],
    env: &[(&str, &str)],
    count: usize,
) -> Outcome<Vec<String>> {
    let mut command = Command::new(binary());
    command
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    let stdout = child.stdout.take().ok_or("the process has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let mut seen = Vec::new();
    while seen.len() < count {
        let line = tokio::time::timeout(READY_WITHIN, lines.next_line()).await??;
        seen.push(line.ok_or("the process ended")?);
    }
    Ok(seen)
}

fn external_account(reported: &Value) -> Option<(String, String)> {
    let text = |key: &str| reported[key].as_str().map(str::to_owned);
    text("address").zip(text("key"))
}

impl Server {
    /// Starts `lanekeeper dev` on free ports and waits until it is ready.
    pub async fn dev(options: &Options) -> Outcome<Self> {
        let mut command = Command::new(binary());
        command
            .arg("dev")
            .arg("--json")
            .arg("--dir")
            .arg(&options.dir);
        command.arg("--port").arg(free_port()?.to_string());
        match &options.chain_url {
            Some(url) => command.arg("--chain-url").arg(url),
            None => command.arg("--chain-port").arg(free_port()?.to_string()),
        };
        command
            .args(&options.args)
            .envs(options.env.iter().cloned());
        Self::start(command).await
    }

    /// Starts `lanekeeper devchain` alone.
    pub async fn devchain(dir: &Path, args: &[&str]) -> Outcome<Self> {
        Self::devchain_on(free_port()?, dir, args).await
    }

    /// On a fixed port, so that it can be restarted there.
    pub async fn devchain_on(port: u16, dir: &Path, args: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(binary());
        command.arg("devchain").arg("--json").arg("--dir").arg(dir);
        command
            .current_dir(dir)
            .arg("--port")
            .arg(port.to_string())
            .args(args);
        Self::start(command).await
    }

    async fn start(mut command: Command) -> Outcome<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()),
            )
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the process has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(READY_WITHIN, lines.next_line()).await??;
        let line = line.ok_or("the process ended before it was ready")?;
        // Later output must not block the process.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let ready: Value = serde_json::from_str(&line)
            .map_err(|error| format!("the ready line is not JSON ({error}): {line}"))?;
        let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
        let accounts = ready["accounts"].as_array().map(|accounts| {
            accounts
                .iter()
                .filter_map(|account| Some(account.as_str()?.to_owned()))
                .collect()
        });
        Ok(Self {
            child,
            api: Api::new(text("api"))?,
            chain: Chain::new(text("chain"))?,
            accounts: accounts.unwrap_or_default(),
            external_account: external_account(&ready["lender"]),
        })
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// `kill -9`.
    pub async fn kill_nine(mut self) -> Outcome<()> {
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Outcome<u64> {
        let pid = self.pid().ok_or("the process has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .ok_or("no VmRSS")?;
        Ok(line
            .split_whitespace()
            .nth(1)
            .ok_or("VmRSS has no value")?
            .parse()?)
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}
