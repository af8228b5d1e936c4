//! The servers under load: child processes in folders of their own, gone when the run is over.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::process::Command;

use crate::failure::Failure;
use crate::fleet::{Child, this_program};

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
            .args(["dev", "--json", "--while-stdin"])
            .args(["--port", "0", "--chain-port", "0"])
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
        be_quiet(&mut command);
        let (child, ready) = Child::start(command, "the server under test", None).await?;
        let address = ready
            .get("api")
            .and_then(Value::as_str)
            .and_then(address_of);
        let address = address.ok_or_else(|| {
            Failure::Refused(format!("the server's first line has no address: {ready}"))
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

/// Logs only what went wrong, unless somebody wants more.
pub(crate) fn be_quiet(command: &mut Command) {
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "error");
    }
}

/// The socket behind `http://127.0.0.1:8645`.
pub(crate) fn address_of(url: &str) -> Option<SocketAddr> {
    let url = reqwest::Url::parse(url).ok()?;
    url.socket_addrs(|| None).ok()?.into_iter().next()
}
