//! One file per command.

pub(crate) mod config;
pub(crate) mod dev;
pub(crate) mod devchain;
pub(crate) mod events;
pub(crate) mod key;
pub(crate) mod lane;
pub(crate) mod migrate;
pub(crate) mod node;
pub(crate) mod nonce;
pub(crate) mod serve;
pub(crate) mod tx;

use crate::config::{Config, Problem, Sources, environment, read_file};
use crate::failure::Failure;
use crate::fleet;
use crate::output::say;

/// Prints JSON for programs: one value per line.
fn print_json(value: &serde_json::Value) {
    say!("{value}");
}

/// Reads a configuration file with the environment over it, and logs its warnings.
fn load(path: &std::path::Path) -> Result<Config, Failure> {
    let read = || {
        let file = Some(read_file(path)?);
        Config::read(Sources {
            file,
            env: environment(),
            ..Sources::default()
        })
    };
    let config = read().map_err(|problems| wrong_config(&problems))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

/// Reads a configuration that this program made for a child process, as that process will.
pub(crate) fn read_generated(path: &std::path::Path) -> Result<Config, Failure> {
    let read = || {
        let file = Some(read_file(path)?);
        let mut env = environment();
        env.retain(|key, _| !fleet::OWN_KEYS.contains(&key.as_str()));
        Config::read(Sources {
            file,
            env,
            ..Sources::default()
        })
    };
    read().map_err(|problems: Vec<_>| wrong_config(&problems))
}

fn wrong_config(problems: &[Problem]) -> Failure {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("  {problem}"))
        .collect();
    Failure::Usage(format!(
        "the configuration cannot be used:\n{}",
        lines.join("\n")
    ))
}
