//! A child process that says when it is ready and cannot outlive its parent.

use std::fs::File;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::failure::Failure;

/// How long a child may take until it is ready: it may have thousands of keys to read.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a child may take to stop in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Of the log of a child that did not start, so many lines are shown.
const LOG_LINES_SHOWN: usize = 5;

/// A child process of ours. It stops when `stdin` is closed, which the kernel sees to when this
/// process ends, however it ends.
pub(crate) struct Child {
    pub(crate) pid: u32,
    process: tokio::process::Child,
    stdin: Option<ChildStdin>,
}

/// This very program, to be started once more.
pub(crate) fn this_program() -> Result<Command, Failure> {
    let path = std::env::current_exe().map_err(|e| Failure::refused("this program", &e))?;
    Ok(Command::new(path))
}

impl Child {
    /// Starts a command that takes `--while-stdin`, and waits for its first line, which is JSON. What it
    /// prints later is lost.
    pub(crate) async fn start(
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
            // Ctrl-C in a terminal goes to the whole group; ours decides in which order all end.
            .process_group(0)
            .kill_on_drop(true);
        let mut process = command
            .spawn()
            .map_err(|e| Failure::refused("no child process", &e))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("stdout was piped above");
        let mut lines = BufReader::new(stdout).lines();
        let line = match timeout(START_TIMEOUT, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None) | Err(_)) | Err(_) => {
                let why = log.map_or_else(String::new, end_of_log);
                return Err(Failure::Refused(format!("{name} did not start{why}")));
            }
        };
        let ready = serde_json::from_str(&line)
            .map_err(|e| Failure::refused(&format!("the first line of {name}"), &e))?;
        let pid = process
            .id()
            .ok_or_else(|| Failure::Refused(format!("{name} ended at once")))?;
        let child = Self {
            pid,
            process,
            stdin,
        };
        Ok((child, ready, lines))
    }

    /// How it ended, when it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        // An error means that nobody can be waited for any more, which nobody else does.
        self.process.try_wait().ok().flatten()
    }

    /// Asks it to stop in order. [`Child::gone`] waits for it.
    pub(crate) fn ask_to_stop(&mut self) {
        self.stdin.take();
    }

    /// Ends it at once.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.ok(); // it may have ended already
    }

    /// Waits for its end; kills it when it takes too long.
    pub(crate) async fn gone(mut self) {
        if timeout(STOP_TIMEOUT, self.process.wait()).await.is_err() {
            tracing::warn!(pid = self.pid, "a child process does not stop: killed");
            self.process.kill().await.ok(); // it may have ended in this moment
        }
    }
}

/// A child process that answers lines: one of JSON to its standard input, one back.
pub(crate) struct Talker {
    name: String,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    /// Starts a command that reads its standard input to the end, and waits until it is ready.
    pub(crate) async fn start(command: Command, name: &str) -> Result<Self, Failure> {
        let (child, _ready, lines) = Child::spawn(command, name, None).await?;
        Ok(Self {
            name: name.to_owned(),
            child,
            lines,
        })
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(
        &mut self,
        question: &Value,
        within: Duration,
    ) -> Result<Value, Failure> {
        let silent = || Failure::Refused(format!("{} does not answer", self.name));
        let stdin = self.child.stdin.as_mut().ok_or_else(silent)?;
        let line = format!("{question}\n");
        let asked = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await?;
            self.lines.next_line().await
        };
        match timeout(within, asked).await {
            Ok(Ok(Some(answer))) => serde_json::from_str(&answer)
                .map_err(|e| Failure::refused(&format!("the answer of {}", self.name), &e)),
            Ok(Ok(None) | Err(_)) | Err(_) => Err(silent()),
        }
    }

    /// Lets it end in order.
    pub(crate) async fn stop(mut self) {
        self.child.ask_to_stop();
        self.child.gone().await;
    }
}

fn end_of_log(path: &Path) -> String {
    let log = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
    let lines: String = lines[from..]
        .iter()
        .map(|line| format!("\n  {line}"))
        .collect();
    format!("; {} ends with:{lines}", path.display())
}
