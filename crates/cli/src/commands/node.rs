//! `node list`.

use clap::Subcommand;

use crate::client::{Client, NodeArgs};
use crate::failure::Failure;
use crate::output::{node_table, print_list};

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List all nodes that share the store: their addresses, and when they were last seen
    #[command(after_help = "Example:\n  lanekeeper node list")]
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
}

pub async fn run(command: &NodeCommand) -> Result<(), Failure> {
    let NodeCommand::List { node } = command;
    let list = Client::new(node)?.get("/api/v1/nodes", &[]).await?;
    print_list(&list, "nodes", node.json, node_table)
}
