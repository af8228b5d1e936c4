//! `node list`.

use clap::Subcommand;
use serde_json::Value;

use crate::client::{Client, MemberView, NodeArgs, decode};
use crate::failure::Failure;
use crate::output::{node_table, print_json, print_line};

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
    if node.json {
        print_json(&list);
        return Ok(());
    }
    let members: Vec<MemberView> = decode(list.get("nodes").unwrap_or(&Value::Null))?;
    print_line!("{}", node_table(&members));
    Ok(())
}
