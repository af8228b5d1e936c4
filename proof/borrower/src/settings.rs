//! What a borrower is told once, as JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proof::Outcome;
use serde::Deserialize;

/// All of it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Where every step is written down.
    pub(crate) journal: PathBuf,
    /// The chain.
    pub(crate) chain_id: u64,
    /// Its node.
    pub(crate) rpc: String,
    /// Which account of the test mnemonic it pays from.
    pub(crate) account: u32,
    /// How many borrow at once.
    pub(crate) desks: usize,
    /// How long a desk rests after each nonce.
    pub(crate) pace_ms: u64,
    /// Where nonces come from.
    pub(crate) door: DoorSettings,
}

/// The library, or the nodes of a cluster.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub(crate) enum DoorSettings {
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

/// Times that are shorter in a proof than in life.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Times {
    pub(crate) reservation_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) sweep_ms: u64,
    pub(crate) free_grace_ms: u64,
    pub(crate) issue_grace_ms: u64,
    pub(crate) probe_ms: u64,
    /// How many nonces are taken at once, where a scheme does so.
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
