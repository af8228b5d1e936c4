//! Settings of a holder, as JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proof::Outcome;
use serde::Deserialize;

/// The settings file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Path of the journal.
    pub(crate) journal: PathBuf,
    pub(crate) chain_id: u64,
    /// URL of the chain's node.
    pub(crate) rpc: String,
    /// Index of the paying account in the test mnemonic.
    pub(crate) account: u32,
    /// Number of concurrent workers.
    pub(crate) workers: usize,
    /// Pause of a worker after each nonce.
    pub(crate) pace_ms: u64,
    /// Where nonces come from.
    pub(crate) source: SourceSettings,
}

/// The library, or the nodes of a cluster.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub(crate) enum SourceSettings {
    /// The library, in this process.
    Library {
        scheme: String,
        postgres: String,
        redis: Option<String>,
        times: Times,
    },
    /// Over HTTP, at any of these nodes.
    Http { nodes: Vec<String> },
}

/// Timeouts, shorter than in production.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Times {
    pub(crate) reservation_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) sweep_ms: u64,
    pub(crate) free_grace_ms: u64,
    pub(crate) issue_grace_ms: u64,
    pub(crate) probe_ms: u64,
    /// Size of an allocation block, in schemes that have one.
    pub(crate) block: usize,
}

impl Settings {
    pub(crate) fn read(file: &Path) -> Outcome<Self> {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    }

    pub(crate) fn pace(&self) -> Duration {
        Duration::from_millis(self.pace_ms)
    }
}
