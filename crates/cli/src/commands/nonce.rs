//! `nonce allocate`, `submitted`, `used`, `recyclable` and `list`: nonce reservations.

use clap::{Args, Subcommand};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::lane::{LaneArgs, lane_path};
use crate::client::{Client, decode};
use crate::failure::Failure;
use crate::output::{print_answer, print_json, print_line};

#[derive(Debug, Subcommand)]
pub enum NonceCommand {
    /// Reserve the smallest free nonce of an account
    #[command(after_help = "\
Example:
  lanekeeper nonce allocate 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266
  lanekeeper nonce submitted 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…

Sign and send the transaction yourself, and report its outcome before the reservation expires.")]
    Allocate {
        #[command(flatten)]
        lane: LaneArgs,
    },
    /// Report that a transaction is about to be sent, before its bytes leave
    #[command(
        after_help = "Example:\n  lanekeeper nonce submitted 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…"
    )]
    Submitted(TxHashArgs),
    /// Report that a nonce is used
    #[command(
        after_help = "Example:\n  lanekeeper nonce used 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…"
    )]
    Used(TxHashArgs),
    /// Release a nonce that will not be used
    #[command(
        after_help = "Example:\n  lanekeeper nonce recyclable 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --reason 'not needed'"
    )]
    Recyclable {
        #[command(flatten)]
        reserved: ReservedNonceArgs,
        /// Why the nonce is not used
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// List the reservations of an account
    #[command(
        after_help = "Example:\n  lanekeeper nonce list 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    )]
    List {
        #[command(flatten)]
        lane: LaneArgs,
    },
}

/// Selects a reserved nonce, and proves that the caller holds it.
#[derive(Debug, Args)]
pub struct ReservedNonceArgs {
    #[command(flatten)]
    lane: LaneArgs,
    /// The nonce
    #[arg(value_name = "NONCE")]
    nonce: u64,
    /// The holder that `nonce allocate` returned
    #[arg(long, value_name = "UUID")]
    holder: String,
}

#[derive(Debug, Args)]
pub struct TxHashArgs {
    #[command(flatten)]
    reserved: ReservedNonceArgs,
    /// The transaction's hash
    #[arg(long, value_name = "HASH")]
    tx_hash: String,
}

/// A reservation as the API returns it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReservationView {
    nonce: u64,
    holder: Option<String>,
    state: String,
    tx_hash: Option<String>,
    expires_at: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReservationPageView {
    next_nonce: u64,
    nonces: Vec<ReservationView>,
    has_more: bool,
}

pub fn run(command: &NonceCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        match command {
            NonceCommand::Allocate { lane } => allocate(lane).await,
            NonceCommand::Submitted(args) => mark_with_hash(args, "submitted").await,
            NonceCommand::Used(args) => mark_with_hash(args, "used").await,
            NonceCommand::Recyclable { reserved, reason } => {
                let body = json!({ "holder": reserved.holder, "reason": reason });
                mark(reserved, "recyclable", &body).await
            }
            NonceCommand::List { lane } => list(lane).await,
        }
    }
    .boxed()
}

async fn allocate(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let path = format!("{}/nonces", lane_path(&client, args).await?);
    let answer = client.post(&path, &json!({})).await?;
    print_answer(&answer, args.node.json, reservation_line)
}

async fn mark_with_hash(args: &TxHashArgs, mark_name: &str) -> Result<(), Failure> {
    let body = json!({ "holder": args.reserved.holder, "txHash": args.tx_hash });
    mark(&args.reserved, mark_name, &body).await
}

async fn mark(args: &ReservedNonceArgs, mark_name: &str, body: &Value) -> Result<(), Failure> {
    let client = Client::new(&args.lane.node)?;
    let lane = lane_path(&client, &args.lane).await?;
    let path = format!("{lane}/nonces/{}/{mark_name}", args.nonce);
    let answer = client.post(&path, body).await?;
    print_answer(&answer, args.lane.node.json, reservation_line)
}

async fn list(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(&args.node)?;
    let path = format!("{}/nonces", lane_path(&client, args).await?);
    let answer = client.get(&path, &[]).await?;
    if args.node.json {
        print_json(&answer);
        return Ok(());
    }
    let ReservationPageView {
        next_nonce,
        nonces,
        has_more,
    } = decode(&answer)?;
    for reservation in &nonces {
        print_line!("{}", reservation_line(reservation));
    }
    let more = if has_more {
        ", and more than are listed"
    } else {
        ""
    };
    print_line!(
        "{} reserved or free{more}; the next new nonce is {next_nonce}",
        nonces.len()
    );
    Ok(())
}

fn reservation_line(reservation: &ReservationView) -> String {
    let mut line = format!("nonce {}  {}", reservation.nonce, reservation.state);
    if let Some(holder) = &reservation.holder {
        line += &format!("  holder {holder}");
    }
    line += &format!("  until {}", reservation.expires_at);
    if let Some(hash) = &reservation.tx_hash {
        line += &format!("  {hash}");
    }
    line
}
