//! `lane list`, `lane show` and `lane resume`.

use clap::{Args, Subcommand};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::address;
use crate::client::{Client, LaneView, NodeArgs, decode};
use crate::failure::Failure;
use crate::output::{lane_details, lane_table, print_answer, print_list};

/// The most pages of lanes that are read; a node has far fewer.
const PAGES_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub enum LaneCommand {
    /// List all lanes: keeper, nonces, in-flight and queued txs, and why a lane waits
    #[command(after_help = "Example:\n  lanekeeper lane list")]
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Show one lane
    #[command(
        after_help = "Example:\n  lanekeeper lane show 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    )]
    Show {
        #[command(flatten)]
        lane: LaneArgs,
    },
    /// Resume a halted lane although its store has lost commits
    #[command(after_help = "\
Example:
  lanekeeper lane show 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266        (shows what is missing)
  lanekeeper lane resume 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 \\
    --accept-loss --reason 'INC-7: payouts 31 to 33 were repeated by hand'

A lane halts when a standby was promoted that lacks the lane's last commits. A resumed lane continues
from the state in the store and on the chain: requests that were accepted and lost are not sent.")]
    Resume(ResumeArgs),
}

/// Selects a lane.
#[derive(Debug, Args)]
pub struct LaneArgs {
    /// The account
    #[arg(value_name = "ADDRESS", value_parser = address::parse)]
    signer: alloy_primitives::Address,
    /// The chain's id; required when the account is used on several chains
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    #[command(flatten)]
    pub(super) node: NodeArgs,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    lane: LaneArgs,
    /// Accept that the lost commits stay lost
    #[arg(long, required = true)]
    accept_loss: bool,
    /// The reason; logged together with the name of your key
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub fn run(command: &LaneCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        match command {
            LaneCommand::List { node } => list(node).await,
            LaneCommand::Show { lane } => show(lane).await,
            LaneCommand::Resume(args) => resume(args).await,
        }
    }
    .boxed()
}

async fn list(node: &NodeArgs) -> Result<(), Failure> {
    let lanes = fetch_lanes(&Client::new(node)?).await?;
    print_list(&json!({ "lanes": lanes }), "lanes", node.json, lane_table)
}

/// Fetches all lanes of a node.
pub async fn fetch_lane_views(client: &Client) -> Result<Vec<LaneView>, Failure> {
    fetch_lanes(client).await?.iter().map(decode).collect()
}

async fn show(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let lane = client.get(&lane_path(&client, args).await?, &[]).await?;
    print_answer(&lane, args.node.json, lane_details)
}

async fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let client = Client::new(&args.lane.node)?;
    let path = format!("{}/resume", lane_path(&client, &args.lane).await?);
    let body = json!({ "reason": args.reason, "acceptLoss": args.accept_loss });
    let answer = client.post(&path, &body).await?;
    print_answer(&answer, args.lane.node.json, lane_details)
}

/// The API path of a lane.
pub(super) async fn lane_path(client: &Client, args: &LaneArgs) -> Result<String, Failure> {
    let chain = match args.chain {
        Some(chain) => chain,
        None => find_only_chain(client, args).await?,
    };
    Ok(format!("/api/v1/lanes/{chain}/{}", args.signer))
}

/// Finds the chain of the account, which must be used on one chain only.
async fn find_only_chain(client: &Client, args: &LaneArgs) -> Result<u64, Failure> {
    let lanes = fetch_lane_views(client).await?;
    let signer = args.signer.to_string();
    let mut chains = lanes
        .iter()
        .filter(|lane| lane.signer.eq_ignore_ascii_case(&signer));
    match (chains.next(), chains.next()) {
        (Some(lane), None) => Ok(lane.chain_id),
        (None, _) => Err(Failure::Refused(format!(
            "{signer} is not a signer of this node: `lanekeeper lane list` shows its signers"
        ))),
        (Some(_), Some(_)) => Err(Failure::Usage(format!(
            "{signer} is used on several chains: add --chain ID"
        ))),
    }
}

async fn fetch_lanes(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut lanes = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let query: Vec<(&str, String)> = cursor.iter().cloned().collect();
        let page = client.get("/api/v1/lanes", &query).await?;
        lanes.extend(page["lanes"].as_array().into_iter().flatten().cloned());
        cursor = page["next"]
            .as_str()
            .map(|next| ("cursor", next.to_owned()));
        if cursor.is_none() {
            break;
        }
    }
    Ok(lanes)
}
