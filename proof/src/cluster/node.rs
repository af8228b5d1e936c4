//! One node: a `lanekeeper serve` process that is killed, frozen, drained and started again.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::Method;
use rig::ports::{Port, free_port};
use tokio::process::{Child, Command};

use crate::{Api, Outcome, Scratch, binary, demand, eventually};

/// How long a node may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A drained node has ended well before this, after its delay.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// What can be sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Freezes it, wherever it is.
    Stop,
    /// Lets it go on.
    Continue,
    /// Asks it to end in order.
    Terminate,
}

/// A node, running or not.
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its API.
    pub api: Api,
    /// Where its store is.
    pub store: String,
    /// Its further environment.
    pub env: Vec<(String, String)>,
    port: Port,
    config: PathBuf,
    log: PathBuf,
    /// How long the log was when it was started last.
    log_from: usize,
    child: Option<Child>,
}

impl Node {
    /// One that works in this folder and writes its log into that one. It wants a configuration file.
    pub fn new(name: String, store: String, home: &Scratch, logs: &Path) -> Outcome<Self> {
        let port = free_port();
        let log = logs.join(format!("{name}.log"));
        File::create(&log)?; // what a former run left goes
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

    /// Where its configuration is to be.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Where its API is to listen.
    pub fn listen(&self) -> SocketAddr {
        self.port.address()
    }

    /// Starts it, without waiting for it.
    pub fn start(&mut self, home: &Scratch) -> Outcome<()> {
        demand(self.child.is_none(), format!("node {} runs", self.name))?;
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

    /// Waits until it is ready.
    pub async fn ready(&self) -> Outcome<()> {
        let what = format!("node {} is ready ({})", self.name, self.log.display());
        eventually(&what, READY_WITHIN, || async {
            Ok(self.is_ready().await.then_some(()))
        })
        .await
    }

    /// Whether it says that it is ready.
    pub async fn is_ready(&self) -> bool {
        let patience = Duration::from_secs(1);
        let answer = self.api.ask(Method::GET, "/readyz", None, patience).await;
        answer.is_ok_and(|answer| answer.status.is_success())
    }

    /// Its process id.
    pub fn pid(&self) -> Outcome<u32> {
        let pid = self.child.as_ref().and_then(Child::id);
        pid.ok_or_else(|| format!("node {} has ended", self.name).into())
    }

    /// Sends a signal.
    pub async fn signal(&self, signal: Signal) -> Outcome<()> {
        send(signal, self.pid()?).await
    }

    /// `kill -9`; waits until it is gone.
    pub async fn kill_nine(&mut self) -> Outcome<()> {
        let mut child = self.child.take().ok_or("the node has ended")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Asks it to end in order, and waits until it has. It must say that it went well.
    pub async fn terminate(&mut self) -> Outcome<()> {
        self.signal(Signal::Terminate).await?;
        let mut child = self.child.take().ok_or("the node has ended")?;
        let status = tokio::time::timeout(ENDED_WITHIN, child.wait()).await??;
        demand(
            status.success(),
            format!("node {} ended with {status}", self.name),
        )
    }

    /// How it ended, if it did so by itself since it was started. Then it can be started again.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether it was started and not ended by us.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// A metric of it, summed over its labels that contain this text.
    pub async fn metric(&self, name: &str, label: &str) -> Outcome<f64> {
        let text = self.api.text("/metrics").await?;
        let ours = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        });
        let values = ours.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// How often its log has a line with this text.
    pub fn logged(&self, text: &str) -> Outcome<usize> {
        Ok(self.logged_lines(text)?.len())
    }

    /// The lines of its log with this text.
    pub fn logged_lines(&self, text: &str) -> Outcome<Vec<String>> {
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let lines = log.lines().filter(|line| line.contains(text));
        Ok(lines.map(str::to_owned).collect())
    }

    /// What it has logged since it was started last.
    pub fn said(&self) -> Outcome<String> {
        let log = fs::read(&self.log)?;
        let since = log.get(self.log_from..).unwrap_or_default();
        Ok(String::from_utf8_lossy(since).into_owned())
    }
}

/// Sends a signal to any process.
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
    demand(done.success(), format!("kill -s {word} {pid}: {done}"))
}
