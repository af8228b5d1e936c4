//! `lane list`, `lane show` and `lane resume`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

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
    Show {
        #[command(flatten)]
        lane: LaneArgs,
    },
    /// Let a halted lane go on although its store has lost commits
    #[command(after_help = "\
Example:
  lanekeeper lane show 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266        (says what is missing)
  lanekeeper lane resume 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 \\
    --accept-loss --reason 'INC-7: payouts 31 to 33 were repeated by hand'

A lane halts when a standby was promoted and the lane's last commits are not in it. It then goes on
from what the store and the chain say: what was accepted and lost is not sent.")]
    Resume(ResumeArgs),
}

/// Which lane.
#[derive(Debug, Args)]
pub(crate) struct LaneArgs {
    /// The account
    #[arg(value_name = "ADDRESS")]
    signer: alloy_primitives::Address,
    /// The chain's id; needed when the account is used on several
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    #[command(flatten)]
    node: NodeArgs,
}

impl LaneArgs {
    pub(super) fn node(&self) -> &NodeArgs {
        &self.node
    }
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    lane: LaneArgs,
    /// Accept that what is missing stays missing
    #[arg(long, required = true)]
    accept_loss: bool,
    /// Why; it is logged together with the name of your key
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(crate) async fn run(command: &LaneCommand) -> Result<(), Failure> {
    match command {
        LaneCommand::List { node } => list(node).await,
        LaneCommand::Show { lane } => show(lane).await,
        LaneCommand::Resume(args) => resume(args).await,
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

/// All lanes of a node.
pub(crate) async fn views(client: &Client) -> Result<Vec<LaneView>, Failure> {
    all(client).await?.iter().map(view).collect()
}

async fn show(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let lane = client.get(&path(&client, args).await?, &[]).await?;
    if args.node.json {
        print_json(&lane);
    } else {
        say!("{}", lane_details(&view(&lane)?));
    }
    Ok(())
}

async fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let client = Client::new(&args.lane.node)?;
    let path = format!("{}/resume", path(&client, &args.lane).await?);
    let body = json!({ "reason": args.reason, "acceptLoss": args.accept_loss });
    let answer = client.post(&path, &body).await?;
    if args.lane.node.json {
        print_json(&answer);
    } else {
        say!("{}", lane_details(&view(&answer)?));
    }
    Ok(())
}

/// Where a lane is.
pub(super) async fn path(client: &Client, args: &LaneArgs) -> Result<String, Failure> {
    let chain = match args.chain {
        Some(chain) => chain,
        None => only_chain(client, args).await?,
    };
    Ok(format!("/api/v1/lanes/{chain}/{}", args.signer))
}

/// The chain on which the account is used, when it is only one.
async fn only_chain(client: &Client, args: &LaneArgs) -> Result<u64, Failure> {
    let lanes = views(client).await?;
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
