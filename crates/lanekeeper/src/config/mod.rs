//! The configuration: one TOML file, overridable by the environment, validated as a whole.
//!
//! The keys are declared by area, each with its default, its rule and what the engine gets from it: [`node`],
//! [`chains`], [`signers`], [`reservations`], [`access`]. All problems are reported at once, each with its
//! location and its fix.

mod access;
mod chains;
mod node;
mod reservations;
mod signers;

mod problem;
mod raw;
mod reader;
mod section;
mod setting;
mod show;
mod validation;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

pub(crate) use access::AuthMode;
pub(crate) use chains::Chain;
pub(crate) use node::StoreUrl;
pub(crate) use problem::Problem;
pub(crate) use raw::RawFile;
use reader::Reader;
pub(crate) use reader::{EffectiveKey, Origin, Sources};
pub(crate) use signers::Signer;

/// The whole configuration, validated.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) node: node::Node,
    pub(crate) http: node::Http,
    pub(crate) store: node::Store,
    pub(crate) chains: Vec<chains::Chain>,
    pub(crate) signers: Vec<signers::Signer>,
    pub(crate) lease: node::Lease,
    pub(crate) nonce: reservations::NonceRules,
    pub(crate) redis: reservations::Redis,
    pub(crate) lane: chains::Lane,
    pub(crate) admission: node::Admission,
    pub(crate) worker: node::Worker,
    pub(crate) resubmit: chains::Resubmission,
    pub(crate) stuck: chains::Stuck,
    pub(crate) confirmations: chains::Confirmations,
    pub(crate) routing: node::Routing,
    pub(crate) auth: access::Auth,
    pub(crate) auth_keys: Vec<access::AuthKey>,
    /// Every key with its value and origin, in the order of declaration.
    pub(crate) keys: Vec<EffectiveKey>,
    /// The same origins by path: a file may have thousands of keys.
    origins: BTreeMap<String, Origin>,
    /// What works but should be changed.
    pub(crate) warnings: Vec<Problem>,
}

impl Config {
    /// Reads and validates all sources, and reports all problems at once.
    pub(crate) fn read(sources: Sources) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader::new(sources);
        let node = reader.read_section();
        let http = reader.read_section();
        let store = reader.read_section();
        let chains = reader.read_required_list("add a [[chain]] with id and rpc");
        let signers = reader.read_required_list("add a [[signer]] with kind = \"key\" and keyFile");
        let lease = reader.read_section();
        let nonce = reader.read_section();
        let redis = reader.read_section();
        let lane = reader.read_section();
        let admission = reader.read_section();
        let worker = reader.read_section();
        let resubmit = reader.read_section();
        let stuck = reader.read_section();
        let confirmations = reader.read_section();
        let routing = reader.read_section();
        let auth = reader.read_section();
        let auth_keys = reader.read_list();
        let (keys, mut problems, warnings) = reader.finish();

        let complete = || {
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
                admission: admission?,
                worker: worker?,
                resubmit: resubmit?,
                stuck: stuck?,
                confirmations: confirmations?,
                routing: routing?,
                auth: auth?,
                auth_keys: auth_keys?,
                origins: keys
                    .iter()
                    .map(|key| (key.path.clone(), key.origin.clone()))
                    .collect(),
                keys,
                warnings,
            })
        };
        let config = complete();
        problems.extend(config.iter().flat_map(Self::validate));
        problems.sort();
        match config {
            Some(mut config) if problems.is_empty() => {
                config.warnings.extend(config.find_warnings());
                Ok(config)
            }
            Some(_) | None => Err(problems),
        }
    }

    /// Reads and validates a file and an environment.
    pub(crate) fn read_file(
        path: &Path,
        env: BTreeMap<String, String>,
    ) -> Result<Self, Vec<Problem>> {
        Self::read(Sources {
            file: Some(read_file(path)?),
            env,
            ..Sources::default()
        })
    }

    /// Where the value of a key came from.
    pub(crate) fn origin(&self, path: &str) -> Origin {
        self.origins.get(path).cloned().unwrap_or(Origin::Default)
    }
}

/// Reads a configuration file.
pub(crate) fn read_file(path: &Path) -> Result<RawFile, Vec<Problem>> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        let message = format!("{} cannot be read: {e}", path.display());
        vec![Problem::without_location(message)]
    })?;
    RawFile::parse(path, &text)
}

/// Variables of the client and of the tests, which set no key.
const OTHER_VARIABLES: [&str; 4] = [
    "LANEKEEPER_URL",
    "LANEKEEPER_KEY",
    "LANEKEEPER_LOG",
    "LANEKEEPER_TOOLS",
];
const TEST_PREFIX: &str = "LANEKEEPER_TEST_";

/// The environment variables that set a key, or seem to.
pub(crate) fn environment() -> Result<BTreeMap<String, String>, Vec<Problem>> {
    read_variables(std::env::vars_os())
}

fn read_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>, Vec<Problem>> {
    let (mut variables, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, value) in all {
        let shown = name.to_string_lossy().into_owned();
        let is_other = OTHER_VARIABLES.contains(&&*shown) || shown.starts_with(TEST_PREFIX);
        if !shown.starts_with("LANEKEEPER_") || is_other {
            continue;
        }
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                variables.insert(name, value);
            }
            (Err(_), _) | (_, Err(_)) => {
                let message = "is not UTF-8: set it to text, or unset it".to_owned();
                problems.push(Problem::in_env(&shown, message));
            }
        }
    }
    problems.sort();
    if problems.is_empty() {
        Ok(variables)
    } else {
        Err(problems)
    }
}
