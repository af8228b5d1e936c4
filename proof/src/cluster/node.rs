//! A `lanekeeper serve` process that can be killed, frozen, drained and restarted.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::Method;
use rig::ports::{Port, free_port};
use tokio::process::{Child, Command};

use crate::{Api, Outcome, Scratch, binary, ensure, eventually};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A drained node ends well before this, after its delay.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// Signals for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
    /// SIGTERM.
    Terminate,
}

pub struct Node {
    pub name: String,
    pub api: Api,
    /// The store's URL.
    pub store: String,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    port: Port,
    config: PathBuf,
    log: PathBuf,
    /// The length of the log at the last start.
    log_from: usize,
    child: Option<Child>,
}

impl Node {
    /// A node with this working directory and log directory. It needs a configuration file.
    pub fn new(name: String, store: String, home: &Scratch, logs: &Path) -> Outcome<Self> {
        let port = free_port();
        let log = logs.join(format!("{name}.log"));
        File::create(&log)?; // truncates the log of an earlier run
        Ok(Self {
            api: Api::new(format!("http://{}", port.address()))?,
            config: home.path().join(format!("{name}.toml")),
            name,
            store,
            env: Vec::new(),
            port,
            log,
            log_from: 0,
            child: None,
        })
    }

    /// The path of the configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn listen(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn start(&mut self, home: &Scratch) -> Outcome<()> {
        ensure(self.child.is_none(), format!("node {} runs", self.name))?;
        let log = File::options().append(true).open(&self.log)?;
        self.log_from = usize::try_from(log.metadata()?.len())?;
        let level = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into());
        let child = Command::new(binary())
            .args(["serve", "--config"])
            .arg(&self.config)
            .current_dir(home.path())
            .env("RUST_LOG", level)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    pub async fn ready(&self) -> Outcome<()> {
        let what = format!("node {} is ready ({})", self.name, self.log.display());
        eventually(&what, READY_WITHIN, || async {
            Ok(self.is_ready().await.then_some(()))
        })
        .await
    }

    pub async fn is_ready(&self) -> bool {
        let timeout = Duration::from_secs(1);
        let answer = self
            .api
            .request(Method::GET, "/readyz", None, timeout)
            .await;
        answer.is_ok_and(|answer| answer.status.is_success())
    }

    pub fn pid(&self) -> Outcome<u32> {
        let pid = self.child.as_ref().and_then(Child::id);
        pid.ok_or_else(|| format!("node {} has ended", self.name).into())
    }

    pub async fn signal(&self, signal: Signal) -> Outcome<()> {
        send(signal, self.pid()?).await
    }

    pub async fn kill_nine(&mut self) -> Outcome<()> {
        let mut child = self.child.take().ok_or("the node has ended")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Drains it and waits for its end; the exit code must be 0.
    pub async fn terminate(&mut self) -> Outcome<()> {
        self.signal(Signal::Terminate).await?;
        let mut child = self.child.take().ok_or("the node has ended")?;
        let status = tokio::time::timeout(ENDED_WITHIN, child.wait()).await??;
        ensure(
            status.success(),
            format!("node {} ended with {status}", self.name),
        )
    }

    /// The exit status if it ended by itself since its start. Then it can be started again.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    pub fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether it was started and not stopped by the proof.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// A metric, summed over the series whose labels contain this text.
    pub async fn metric(&self, name: &str, label: &str) -> Outcome<f64> {
        let text = self.api.text("/metrics").await?;
        let ours = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        });
        let values = ours.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// The number of log lines with this text.
    pub fn logged(&self, text: &str) -> Outcome<usize> {
        Ok(self.logged_lines(text)?.len())
    }

    pub fn logged_lines(&self, text: &str) -> Outcome<Vec<String>> {
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let lines = log.lines().filter(|line| line.contains(text));
        Ok(lines.map(str::to_owned).collect())
    }

    /// The log since the last start.
    pub fn outcome(&self) -> Outcome<String> {
        let log = fs::read(&self.log)?;
        let since = log.get(self.log_from..).unwrap_or_default();
        Ok(String::from_utf8_lossy(since).into_owned())
    }
}

pub async fn send(signal: Signal, pid: u32) -> Outcome<()> {
    let word = match signal {
        Signal::Stop => "STOP",
        Signal::Continue => "CONT",
        Signal::Terminate => "TERM",
    };
    let done = Command::new("sh")
        .args(["-c", r#"kill -s "$0" "$1""#, word, &pid.to_string()])
        .status()
        .await?;
    ensure(done.success(), format!("kill -s {word} {pid}: {done}"))
}
