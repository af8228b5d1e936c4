//! The configuration: one TOML file, overridable by the environment, checked as a whole.
//!
//! Read [`sections`] for the keys. All problems are told at once, each with its place and its fix.

pub(crate) mod sections;

mod check;
mod node;
mod problem;
mod raw;
mod reader;
mod show;
mod values;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use problem::Problem;
pub(crate) use raw::RawFile;
pub(crate) use reader::{Origin, Shown, Sources};
pub(crate) use values::{parse_duration, show_duration};
pub(crate) use words::{AuthMode, NonceMode, PostgresUrl, StoreUrl};

use reader::Reader;

/// The whole configuration, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) node: sections::Node,
    pub(crate) http: sections::Http,
    pub(crate) store: sections::Store,
    pub(crate) chains: Vec<sections::Chain>,
    pub(crate) signers: Vec<sections::Signer>,
    pub(crate) lease: sections::Lease,
    pub(crate) nonce: sections::NonceRules,
    pub(crate) redis: sections::Redis,
    pub(crate) lane: sections::Lane,
    pub(crate) worker: sections::Worker,
    pub(crate) resubmit: sections::Resubmit,
    pub(crate) stuck: sections::Stuck,
    pub(crate) confirmations: sections::Confirmations,
    pub(crate) routing: sections::Routing,
    pub(crate) auth: sections::Auth,
    pub(crate) auth_keys: Vec<sections::AuthKey>,
    /// Every key with its value and origin, in the order of [`sections`].
    pub(crate) shown: Vec<Shown>,
    /// The same origins by path: a file may have thousands of keys.
    origins: BTreeMap<String, Origin>,
    /// What works but should not stay so.
    pub(crate) warnings: Vec<Problem>,
}

impl Config {
    /// Reads and checks everything, and tells all problems at once.
    pub(crate) fn read(sources: Sources) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader::new(sources);
        let node = reader.one();
        let http = reader.one();
        let store = reader.one();
        let chains = reader.some("add a [[chain]] with id and rpc");
        let signers = reader.some("add a [[signer]] with kind = \"key\" and keyFile");
        let lease = reader.one();
        let nonce = reader.one();
        let redis = reader.one();
        let lane = reader.one();
        let worker = reader.one();
        let resubmit = reader.one();
        let stuck = reader.one();
        let confirmations = reader.one();
        let routing = reader.one();
        let auth = reader.one();
        let auth_keys = reader.many();
        let (shown, mut problems) = reader.finish();

        let read = || {
            Some(Self {
                node: node?,
                http: http?,
                store: store?,
                chains: chains?,
                signers: signers?,
                lease: lease?,
                nonce: nonce?,
                redis: redis?,
                lane: lane?,
                worker: worker?,
                resubmit: resubmit?,
                stuck: stuck?,
                confirmations: confirmations?,
                routing: routing?,
                auth: auth?,
                auth_keys: auth_keys?,
                origins: shown
                    .iter()
                    .map(|line| (line.path.clone(), line.origin.clone()))
                    .collect(),
                shown,
                warnings: Vec::new(),
            })
        };
        match read() {
            Some(mut config) => {
                problems.extend(config.check());
                config.warnings = config.warn();
                if problems.is_empty() {
                    Ok(config)
                } else {
                    Err(problems)
                }
            }
            None => Err(problems),
        }
    }

    /// Where a key's value came from.
    pub(crate) fn origin(&self, path: &str) -> Origin {
        self.origins.get(path).cloned().unwrap_or(Origin::Default)
    }
}

/// Reads a configuration file.
pub(crate) fn read_file(path: &Path) -> Result<RawFile, Vec<Problem>> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        vec![Problem::nowhere(format!(
            "{} cannot be read: {e}",
            path.display()
        ))]
    })?;
    RawFile::parse(path, &text)
}

/// The variables of the environment that mean a key.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let ours = |name: &str| name.starts_with("LANEKEEPER_") && name.contains("__");
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| ours(name))
        .collect()
}
