//! `lane list` and `lane show`.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::print_json;
use crate::client::{Client, LaneView, NodeArgs, view};
use crate::failure::Failure;
use crate::output::{lane_details, lane_table, say};

/// Pages of lanes that are read at most: a node has far fewer.
const PAGES_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum LaneCommand {
    /// All lanes: who keeps them, where they stand, why they wait
    #[command(after_help = "Example:\n  lanekeeper lane list")]
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// One lane
    #[command(
        after_help = "Example:\n  lanekeeper lane show 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    )]
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The account
    #[arg(value_name = "ADDRESS")]
    signer: alloy_primitives::Address,
    /// The chain's id; needed when the account is used on several
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    #[command(flatten)]
    node: NodeArgs,
}

pub(crate) async fn run(command: &LaneCommand) -> Result<(), Failure> {
    match command {
        LaneCommand::List { node } => list(node).await,
        LaneCommand::Show(args) => show(args).await,
    }
}

async fn list(node: &NodeArgs) -> Result<(), Failure> {
    let lanes = all(&Client::new(node)?).await?;
    if node.json {
        print_json(&serde_json::json!({ "lanes": lanes }));
        return Ok(());
    }
    let views: Vec<LaneView> = lanes.iter().map(view).collect::<Result<_, _>>()?;
    say!("{}", lane_table(&views));
    Ok(())
}

async fn show(args: &ShowArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let chain = match args.chain {
        Some(chain) => chain,
        None => only_chain(&client, args).await?,
    };
    let lane = client
        .get(&format!("/api/v1/lanes/{chain}/{}", args.signer), &[])
        .await?;
    if args.node.json {
        print_json(&lane);
    } else {
        say!("{}", lane_details(&view(&lane)?));
    }
    Ok(())
}

/// The chain on which the account is used, when it is only one.
async fn only_chain(client: &Client, args: &ShowArgs) -> Result<u64, Failure> {
    let lanes: Vec<LaneView> = all(client)
        .await?
        .iter()
        .map(view)
        .collect::<Result<_, _>>()?;
    let signer = args.signer.to_string();
    let mut chains = lanes
        .iter()
        .filter(|lane| lane.signer.eq_ignore_ascii_case(&signer));
    match (chains.next(), chains.next()) {
        (Some(lane), None) => Ok(lane.chain_id),
        (None, _) => Err(Failure::Refused(format!(
            "{signer} is not a signer of this node"
        ))),
        (Some(_), Some(_)) => Err(Failure::Usage(format!(
            "{signer} is used on several chains: add --chain ID"
        ))),
    }
}

async fn all(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut lanes = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let query: Vec<(&str, String)> = cursor
            .take()
            .map(|next| ("cursor", next))
            .into_iter()
            .collect();
        let page = client.get("/api/v1/lanes", &query).await?;
        lanes.extend(
            page.get("lanes")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .cloned(),
        );
        cursor = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(lanes)
}
