//! The commands of the binary itself, one file each. Client commands are in the crate `cli`.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod dev;
pub(crate) mod devchain;
pub(crate) mod key;
pub(crate) mod migrate;
pub(crate) mod serve;

use cli::Failure;
use cli::process::NODE_VARIABLES;

use crate::config::{Config, Problem, environment};

/// Reads a configuration file and the environment, and logs the warnings.
fn load(path: &std::path::Path) -> Result<Config, Failure> {
    let config = environment()
        .and_then(|env| Config::read_file(path, env))
        .map_err(config_failure)?;
    log_warnings(&config);
    Ok(config)
}

fn log_warnings(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

/// Reads a generated configuration file of a child process in the way that process does.
pub(crate) fn read_generated(path: &std::path::Path) -> Result<Config, Failure> {
    let mut env = environment().map_err(config_failure)?;
    env.retain(|key, _| !NODE_VARIABLES.contains(&key.as_str()));
    Config::read_file(path, env).map_err(config_failure)
}

fn config_failure(problems: Vec<Problem>) -> Failure {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("  {problem}"))
        .collect();
    Failure::Usage(format!(
        "the configuration is invalid:\n{}",
        lines.join("\n")
    ))
}
