//! `tx send`, `tx get`, `tx watch` and `tx list`.

mod follow;

use std::time::Duration;

use alloy_primitives::{Address, Bytes, U256};
use clap::{Args, Subcommand};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::client::{Client, NodeArgs, TxView, decode};
use crate::failure::Failure;
use crate::output::{print_answer, print_list, print_quiet, tx_details, tx_table};
use crate::{address, amount};
use follow::{Stage, TxFollower, report_outcome};

#[derive(Debug, Subcommand)]
pub enum TxCommand {
    /// Send a transaction exactly once
    Send(Box<SendArgs>),
    /// Show one transaction
    Get(GetArgs),
    /// Follow one transaction until it is confirmed or has failed
    Watch(WatchArgs),
    /// List transactions, newest first
    List(ListArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper tx send --from 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 \\
    --to 0x70997970C51812dc3A010C7d01b50e0d17dc79C8 --value 0.1eth --wait confirmed
  lanekeeper tx send --from 0x… --to 0x… --data 0xa9059cbb… --request-id payout-7

A request with the same --request-id is sent at most once, however often it is repeated.")]
pub struct SendArgs {
    /// The account that sends
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse)]
    from: Address,
    /// The recipient; without it, --data is deployed as a contract
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse, required_unless_present = "data")]
    to: Option<Address>,
    /// The amount: 1.5eth, 2gwei, or wei
    #[arg(long, value_name = "AMOUNT", default_value = "0", value_parser = amount::parse)]
    value: U256,
    /// Call data or init code, in hex
    #[arg(long, value_name = "HEX")]
    data: Option<Bytes>,
    /// The gas limit; estimated when left out
    #[arg(long, value_name = "GAS")]
    gas: Option<u64>,
    /// The maximum fee per gas (EIP-1559), such as 30gwei
    #[arg(long, value_name = "AMOUNT", value_parser = amount::parse)]
    max_fee: Option<U256>,
    /// The tip per gas (EIP-1559), such as 1gwei
    #[arg(long, value_name = "AMOUNT", value_parser = amount::parse)]
    tip: Option<U256>,
    /// The gas price (legacy)
    #[arg(long, value_name = "AMOUNT", value_parser = amount::parse, conflicts_with_all = ["max_fee", "tip"])]
    gas_price: Option<U256>,
    /// The chain's id; required when the node serves several chains
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    /// The idempotency key: repeating a request with it is safe (random when left out)
    #[arg(long, value_name = "KEY")]
    request_id: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Args)]
struct WaitArgs {
    /// Wait until the transaction reaches this stage
    #[arg(long, value_enum, default_value_t = Stage::Accepted)]
    wait: Stage,
    /// Stop waiting after this long
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = crate::duration::parse_flag)]
    timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper tx get 019a8c5e-7d0f-7c3e-9b1a-2f4d5e6a7b8c
  lanekeeper tx get 0x5c50…                     (the hash of any attempt)
  lanekeeper tx get --from 0x… --request-id payout-7")]
pub struct GetArgs {
    /// The tx id, or the hash of one of its attempts
    #[arg(value_name = "TX", required_unless_present = "request_id")]
    tx: Option<String>,
    /// The idempotency key it was sent with
    #[arg(long, value_name = "KEY", requires = "from", conflicts_with = "tx")]
    request_id: Option<String>,
    /// The account it was sent from
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse)]
    from: Option<Address>,
    /// The chain's id; required when the node serves several chains
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lanekeeper tx watch 019a8c5e-7d0f-7c3e-9b1a-2f4d5e6a7b8c")]
pub struct WatchArgs {
    /// The tx id
    #[arg(value_name = "TX")]
    tx: uuid::Uuid,
    /// Stop waiting after this long
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse_flag)]
    timeout: Duration,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lanekeeper tx list --state STUCK
  lanekeeper tx list --from 0x… --limit 20")]
pub struct ListArgs {
    /// Only txs of this account
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse)]
    from: Option<Address>,
    /// Only txs of this chain
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    /// Only txs in this state: CREATED, ALLOCATED, TRACKING, CONFIRMED, FAILED_FINAL or STUCK
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Option<&'static str>,
    /// The most txs to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Continue after the previous page
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    #[command(flatten)]
    node: NodeArgs,
}

fn parse_state(text: &str) -> Result<&'static str, String> {
    let state = text.to_uppercase().replace('-', "_").parse();
    let names = || domain::TxState::ALL.map(domain::TxState::as_str).join(", ");
    state
        .map(domain::TxState::as_str)
        .map_err(|_unknown| format!("the states are {}", names()))
}

pub fn run(command: &TxCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        match command {
            TxCommand::Send(args) => send(args).await,
            TxCommand::Get(args) => get(args).await,
            TxCommand::Watch(args) => watch(args).await,
            TxCommand::List(args) => list(args).await,
        }
    }
    .boxed()
}

async fn send(args: &SendArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let follower = TxFollower::new(&client, args.wait.timeout);
    let request_id = args.request_id.clone().unwrap_or_else(|| {
        let random: u128 = rand::random();
        format!("cli-{random:032x}")
    });
    if !args.node.json && args.request_id.is_none() {
        // Printed before the request is sent: if the answer is lost, this id must be repeated.
        print_quiet(&format!("request id {request_id}"));
    }
    let sent = client
        .post("/api/v1/tx", &request_body(args, &request_id))
        .await?;
    let tx: TxView = decode(&sent)?;
    if !args.node.json {
        print_quiet(&format!("tx {}", tx.tx_id));
    }
    let last = args.wait.wait;
    let tx = if args.node.json && last == Stage::Accepted {
        sent
    } else {
        follower
            .wait_until(&tx.tx_id, last, !args.node.json)
            .await?
    };
    report_outcome(&tx, last, args.node.json)
}

fn request_body(args: &SendArgs, request_id: &str) -> Value {
    let mut payload = serde_json::Map::new();
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            payload.insert(key.to_owned(), value.into());
        }
    };
    set("to", args.to.map(|to| to.to_string()));
    set("value", Some(args.value.to_string()));
    set("data", args.data.as_ref().map(ToString::to_string));
    set("gas", args.gas.map(|gas| gas.to_string()));
    set("maxFeePerGas", args.max_fee.map(|wei| wei.to_string()));
    set("maxPriorityFeePerGas", args.tip.map(|wei| wei.to_string()));
    set("gasPrice", args.gas_price.map(|wei| wei.to_string()));
    let mut body = json!({
        "signer": args.from.to_string(), "requestId": request_id, "payload": payload,
    });
    if let Some(chain) = args.chain {
        body["chainId"] = chain.into();
    }
    body
}

async fn get(args: &GetArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let tx = match (&args.tx, &args.request_id, args.from) {
        (Some(tx), _, _) if tx.starts_with("0x") => {
            let hash: alloy_primitives::B256 = (tx.parse())
                .map_err(|_parse| Failure::Usage(format!("{tx} is not a transaction hash")))?;
            client
                .get(&format!("/api/v1/tx/by-hash/{hash}"), &[])
                .await?
        }
        (Some(tx), _, _) => {
            let id: uuid::Uuid = (tx.parse()).map_err(|_parse| {
                Failure::Usage(format!("{tx:?} is neither a tx id nor a 0x hash"))
            })?;
            client.get(&format!("/api/v1/tx/{id}"), &[]).await?
        }
        (None, Some(request_id), Some(from)) => {
            let mut query = vec![
                ("signer", from.to_string()),
                ("requestId", request_id.clone()),
            ];
            query.extend(args.chain.map(|chain| ("chainId", chain.to_string())));
            client.get("/api/v1/tx/by-request", &query).await?
        }
        (None, _, _) => {
            return Err(Failure::Usage(
                "give a tx id or hash, or --request-id and --from".into(),
            ));
        }
    };
    print_answer(&tx, args.node.json, tx_details)
}

async fn watch(args: &WatchArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let tx = TxFollower::new(&client, args.timeout)
        .wait_until(&args.tx.to_string(), Stage::Confirmed, !args.node.json)
        .await?;
    report_outcome(&tx, Stage::Confirmed, args.node.json)
}

async fn list(args: &ListArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.from.map(|signer| ("signer", signer.to_string())));
    query.extend(args.chain.map(|chain| ("chainId", chain.to_string())));
    query.extend(args.state.map(|state| ("state", state.to_owned())));
    query.extend(args.cursor.clone().map(|cursor| ("cursor", cursor)));
    let page = client.get("/api/v1/tx", &query).await?;
    print_list(&page, "txs", args.node.json, tx_table)?;
    if let Some(next) = page["next"].as_str().filter(|_| !args.node.json) {
        print_quiet(&format!("more: add --cursor {next}"));
    }
    Ok(())
}
