//! A child process that reports when it is ready and cannot outlive its parent.

use std::fs::File;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::Failure;

/// How long a child may take to start: it may have to load thousands of signing keys.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a child may take to stop gracefully.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How many lines of the log of a child that failed to start are shown.
const LOG_LINES_SHOWN: usize = 5;

/// A child process. It stops when `stdin` is closed, which the kernel does however this process ends.
pub struct ChildProcess {
    pub pid: u32,
    process: tokio::process::Child,
    stdin: Option<ChildStdin>,
}

/// A command that starts this program again.
pub fn program_command() -> Result<Command, Failure> {
    let path = std::env::current_exe()
        .map_err(|e| Failure::refused("cannot find the path of this program", &e))?;
    Ok(Command::new(path))
}

/// Limits the log of a child to errors, unless `RUST_LOG` is set.
pub fn reduce_logs(command: &mut Command) {
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "error");
    }
}

/// Runs a command to its end. Its output is shown only when it fails.
pub async fn run_to_end(mut command: Command, name: &str) -> Result<(), Failure> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await;
    let output = output.map_err(|e| Failure::refused(&format!("cannot start {name}"), &e))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Refused(format!(
        "{name} failed: {}",
        stderr.trim()
    )))
}

impl ChildProcess {
    /// Starts a command that takes `--while-stdin`, and waits for its first line, which is JSON. Later
    /// lines are discarded.
    pub async fn start(
        command: Command,
        name: &str,
        log: Option<&Path>,
    ) -> Result<(Self, Value), Failure> {
        let (child, ready, _lines) = Self::spawn(command, name, log).await?;
        Ok((child, ready))
    }

    async fn spawn(
        mut command: Command,
        name: &str,
        log: Option<&Path>,
    ) -> Result<(Self, Value, Lines<BufReader<ChildStdout>>), Failure> {
        let stderr = match log {
            Some(path) => Stdio::from(File::create(path).map_err(|e| {
                Failure::refused(&format!("{} cannot be written", path.display()), &e)
            })?),
            None => Stdio::inherit(),
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // A terminal sends Ctrl-C to the whole process group; this process stops its children itself.
            .process_group(0)
            .kill_on_drop(true);
        let mut process = command
            .spawn()
            .map_err(|e| Failure::refused("cannot start a child process", &e))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("stdout was piped above");
        let mut lines = BufReader::new(stdout).lines();
        let line = match timeout(START_TIMEOUT, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None) | Err(_)) | Err(_) => {
                let why = log.map_or_else(String::new, last_log_lines);
                return Err(Failure::Refused(format!("{name} did not start{why}")));
            }
        };
        let ready = serde_json::from_str(&line)
            .map_err(|e| Failure::refused(&format!("the first line of {name}"), &e))?;
        let pid = process
            .id()
            .ok_or_else(|| Failure::Refused(format!("{name} ended immediately")))?;
        let child = Self {
            pid,
            process,
            stdin,
        };
        Ok((child, ready, lines))
    }

    /// The exit status, once the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        // Fails only if the process was waited for elsewhere, which no code does.
        self.process.try_wait().ok().flatten()
    }

    /// Requests a graceful stop. [`ChildProcess::wait_until_stopped`] waits for it.
    pub fn request_stop(&mut self) {
        self.stdin.take();
    }

    pub async fn kill(mut self) {
        self.process.kill().await.ok(); // it may have ended already
    }

    /// Waits until the process ends; kills it after a timeout.
    pub async fn wait_until_stopped(mut self) {
        if timeout(STOP_TIMEOUT, self.process.wait()).await.is_err() {
            tracing::warn!(
                pid = self.pid,
                "a child process did not stop within 20 s and was killed"
            );
            self.process.kill().await.ok(); // it may have ended meanwhile
        }
    }
}

/// A child process that answers each line of JSON on its standard input with one line of JSON.
pub struct LineProcess {
    name: String,
    child: ChildProcess,
    lines: Lines<BufReader<ChildStdout>>,
}

impl LineProcess {
    /// Starts a command that serves until its standard input ends, and waits until it is ready.
    pub async fn start(command: Command, name: &str) -> Result<Self, Failure> {
        let (child, _ready, lines) = ChildProcess::spawn(command, name, None).await?;
        Ok(Self {
            name: name.to_owned(),
            child,
            lines,
        })
    }

    /// Sends a request and waits for the answer.
    pub async fn request(&mut self, request: &Value, deadline: Duration) -> Result<Value, Failure> {
        let no_answer = || Failure::Refused(format!("{} does not answer", self.name));
        let stdin = self.child.stdin.as_mut().ok_or_else(no_answer)?;
        let line = format!("{request}\n");
        let exchange = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await?;
            self.lines.next_line().await
        };
        match timeout(deadline, exchange).await {
            Ok(Ok(Some(answer))) => serde_json::from_str(&answer)
                .map_err(|e| Failure::refused(&format!("the answer of {}", self.name), &e)),
            Ok(Ok(None) | Err(_)) | Err(_) => Err(no_answer()),
        }
    }

    /// Stops the process gracefully.
    pub async fn stop(mut self) {
        self.child.request_stop();
        self.child.wait_until_stopped().await;
    }
}

fn last_log_lines(path: &Path) -> String {
    let log = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
    let lines: String = lines[from..]
        .iter()
        .map(|line| format!("\n  {line}"))
        .collect();
    format!("; {} ends with:{lines}", path.display())
}
