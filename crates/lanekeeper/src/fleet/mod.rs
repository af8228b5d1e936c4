//! Several nodes on one machine, each a child process with a configuration of its own: the cluster of
//! `dev --nodes` and the nodes under `bench`.

mod files;
mod process;

use std::path::{Path, PathBuf};

pub(crate) use files::{Settings, private_file, table};
pub(crate) use process::{Child, Talker, this_program};

use crate::failure::Failure;

/// How the first node of a cluster is called: `node-1`.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// A running node.
pub(crate) struct NodeProcess {
    pub(crate) name: String,
    /// Where its API is.
    pub(crate) url: String,
    pub(crate) config: PathBuf,
    pub(crate) child: Child,
}

/// Starts a node by its configuration file, and waits until it serves. Its log goes into a file
/// beside it, or else to where ours goes.
pub(crate) async fn start_node(
    name: &str,
    config: &Path,
    log: Option<&Path>,
) -> Result<NodeProcess, Failure> {
    let mut command = this_program()?;
    command
        .args(["serve", "--json", "--while-stdin", "--config"])
        .arg(config);
    // What stands in the file tells one node from the other: the environment would make them equal.
    for key in OWN_KEYS {
        command.env_remove(key);
    }
    if log.is_none() && std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "error");
    }
    let (child, ready) = Child::start(command, name, log).await?;
    let url = ready.get("api").and_then(serde_json::Value::as_str);
    let url = url.ok_or_else(|| Failure::Refused(format!("{name} does not say its address")))?;
    Ok(NodeProcess {
        name: name.to_owned(),
        url: url.to_owned(),
        config: config.to_owned(),
        child,
    })
}

/// Keys that every node of a cluster has its own value for, or that the cluster's maker decides.
pub(crate) const OWN_KEYS: &[&str] = &[
    "LANEKEEPER_NODE__NAME",
    "LANEKEEPER_NODE__ADVERTISE",
    "LANEKEEPER_NODE__CLUSTER_SECRET",
    "LANEKEEPER_NODE__CLUSTER_SECRET_FILE",
    "LANEKEEPER_HTTP__LISTEN",
    "LANEKEEPER_STORE__URL",
];
