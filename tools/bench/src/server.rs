//! The servers under load: child processes with temporary folders.

use std::net::SocketAddr;

use cli::Failure;
use cli::process::{ChildProcess, program_command, reduce_logs};
use serde_json::Value;
use tokio::process::Command;

/// A server in a child process, killed when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The ready line.
    pub(crate) ready: Value,
    _child: ChildProcess,
    /// Deleted after the child has ended.
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts `lanekeeper dev` in a new folder.
    pub(crate) async fn start_dev(lanes: u32, mempool_depth: &str) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()
            .map_err(|e| Failure::refused("cannot create a temporary folder", &e))?;
        let mut command = program_command()?;
        command
            .args(["dev", "--json", "--while-stdin"])
            .args(["--port", "0", "--chain-port", "0"])
            .args(["--accounts", &lanes.max(10).to_string()])
            .arg("--dir")
            .arg(folder.path())
            .env("LANEKEEPER_LANE__MEMPOOL_DEPTH", mempool_depth);
        Self::start(command, Some(folder)).await
    }

    /// Starts the server that does nothing.
    pub(crate) async fn start_http_limit() -> Result<Self, Failure> {
        let mut command = program_command()?;
        command.args(["bench", "limit-http"]);
        Self::start(command, None).await
    }

    async fn start(
        mut command: Command,
        folder: Option<tempfile::TempDir>,
    ) -> Result<Self, Failure> {
        reduce_logs(&mut command);
        let (child, ready) = ChildProcess::start(command, "the server under test", None).await?;
        let address = ready
            .get("api")
            .and_then(Value::as_str)
            .and_then(socket_address);
        let address = address.ok_or_else(|| {
            Failure::Refused(format!(
                "the first line of the server contains no API address: {ready}"
            ))
        })?;
        Ok(Self {
            address,
            ready,
            _child: child,
            _folder: folder,
        })
    }

    /// The funded accounts.
    pub(crate) fn accounts(&self) -> Vec<String> {
        let accounts = self.ready.get("accounts").and_then(Value::as_array);
        accounts
            .into_iter()
            .flatten()
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect()
    }
}

/// The socket address of a URL such as `http://127.0.0.1:8645`.
pub(crate) fn socket_address(url: &str) -> Option<SocketAddr> {
    let url = reqwest::Url::parse(url).ok()?;
    url.socket_addrs(|| None).ok()?.into_iter().next()
}
