//! The servers under load: child processes in folders of their own, gone when the run is over.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::failure::Failure;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A server in a child process, killed when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// What it said when it was ready.
    pub(crate) ready: Value,
    _child: Child,
    /// Deleted after the child is gone.
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    /// A fresh `lanekeeper dev`.
    pub(crate) async fn dev(lanes: u32, mempool_depth: &str) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|e| Failure::refused("a temporary folder", &e))?;
        let mut command = this_program()?;
        command
            .args(["dev", "--json", "--port", "0", "--chain-port", "0"])
            .args(["--accounts", &lanes.max(10).to_string()])
            .arg("--dir")
            .arg(folder.path())
            .env("LANEKEEPER_LANE__MEMPOOL_DEPTH", mempool_depth);
        Self::start(command, Some(folder)).await
    }

    /// The server that does nothing.
    pub(crate) async fn http_limit() -> Result<Self, Failure> {
        let mut command = this_program()?;
        command.args(["bench", "limit-http"]);
        Self::start(command, None).await
    }

    async fn start(
        mut command: Command,
        folder: Option<tempfile::TempDir>,
    ) -> Result<Self, Failure> {
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "error");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|e| Failure::refused("no child process", &e))?;
        let stdout = child.stdout.take().expect("stdout was piped above");
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await;
        let line = match line {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None) | Err(_)) | Err(_) => {
                return Err(Failure::Refused(
                    "the server under test did not start".into(),
                ));
            }
        };
        let ready: Value = serde_json::from_str(&line)
            .map_err(|e| Failure::refused("the server's first line", &e))?;
        let address = ready
            .get("api")
            .and_then(Value::as_str)
            .and_then(address_of);
        let address = address.ok_or_else(|| {
            Failure::Refused(format!("the server's first line has no address: {line}"))
        })?;
        Ok(Self {
            address,
            ready,
            _child: child,
            _folder: folder,
        })
    }

    /// The accounts it gives out.
    pub(crate) fn accounts(&self) -> Vec<String> {
        let accounts = self.ready.get("accounts").and_then(Value::as_array);
        accounts
            .into_iter()
            .flatten()
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect()
    }
}

fn this_program() -> Result<Command, Failure> {
    let path = std::env::current_exe().map_err(|e| Failure::refused("this program", &e))?;
    Ok(Command::new(path))
}

/// The socket behind `http://127.0.0.1:8645`.
pub(crate) fn address_of(url: &str) -> Option<SocketAddr> {
    let url = reqwest::Url::parse(url).ok()?;
    url.socket_addrs(|| None).ok()?.into_iter().next()
}
