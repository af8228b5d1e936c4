//! `node list`.

use clap::Subcommand;

use futures::FutureExt as _;
use futures::future::BoxFuture;

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

pub fn run(command: &NodeCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        let NodeCommand::List { node } = command;
        let list = Client::new(node)?.get("/api/v1/nodes", &[]).await?;
        print_list(&list, "nodes", node.json, node_table)
    }
    .boxed()
}
