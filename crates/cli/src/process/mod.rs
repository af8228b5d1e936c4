//! Child processes: nodes with generated configuration files, for `dev --nodes` and `bench`.

mod child;
mod node_file;

use std::path::{Path, PathBuf};

pub use child::{ChildProcess, LineProcess, program_command, reduce_logs, run_to_end};
pub use node_file::{NodeFile, table, write_private_file};

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::Failure;

/// The name of a node of a local cluster; the first is `node-1`.
pub fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// A running node.
pub struct NodeProcess {
    pub name: String,
    pub url: String,
    pub config: PathBuf,
    pub child: ChildProcess,
}

/// Starts a node with a configuration file, and waits until it serves. Without a log file its log goes to
/// the stderr of this process.
pub fn start_node<'a>(
    name: &'a str,
    config: &'a Path,
    log: Option<&'a Path>,
) -> BoxFuture<'a, Result<NodeProcess, Failure>> {
    async move {
        let mut command = program_command()?;
        command
            .args(["serve", "--json", "--while-stdin", "--config"])
            .arg(config);
        remove_node_variables(&mut command);
        if log.is_none() {
            reduce_logs(&mut command);
        }
        let (child, ready) = ChildProcess::start(command, name, log).await?;
        let url = ready.get("api").and_then(serde_json::Value::as_str);
        let url = url.ok_or_else(|| {
            Failure::Refused(format!(
                "the first line of {name} contains no API address: {ready}"
            ))
        })?;
        Ok(NodeProcess {
            name: name.to_owned(),
            url: url.to_owned(),
            config: config.to_owned(),
            child,
        })
    }
    .boxed()
}

/// Variables that would override the node-specific keys of every generated file with the same value.
pub const NODE_VARIABLES: &[&str] = &[
    "LANEKEEPER_NODE__NAME",
    "LANEKEEPER_NODE__ADVERTISE",
    "LANEKEEPER_NODE__CLUSTER_SECRET",
    "LANEKEEPER_NODE__CLUSTER_SECRET_FILE",
    "LANEKEEPER_HTTP__LISTEN",
    "LANEKEEPER_STORE__URL",
];

/// Keeps this process' own [`NODE_VARIABLES`] from a child.
pub fn remove_node_variables(command: &mut tokio::process::Command) {
    for variable in NODE_VARIABLES {
        command.env_remove(variable);
    }
}
