//! `node list`.

use clap::Subcommand;
use serde_json::Value;

use super::print_json;
use crate::client::{Client, MemberView, NodeArgs, view};
use crate::failure::Failure;
use crate::output::{node_table, say};

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// All nodes that share the store: where they are, and when they were last seen
    #[command(after_help = "Example:\n  lanekeeper node list")]
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
}

pub(crate) async fn run(command: &NodeCommand) -> Result<(), Failure> {
    let NodeCommand::List { node } = command;
    let list = Client::new(node)?.get("/api/v1/nodes", &[]).await?;
    if node.json {
        print_json(&list);
        return Ok(());
    }
    let members: Vec<MemberView> = view(list.get("nodes").unwrap_or(&Value::Null))?;
    say!("{}", node_table(&members));
    Ok(())
}
