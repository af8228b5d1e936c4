//! `nonce allocate`, `submitted`, `used`, `recyclable` and `list`: lent nonces.

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lane::{LaneArgs, path};
use super::print_json;
use crate::client::{Client, view};
use crate::failure::Failure;
use crate::output::say;

#[derive(Debug, Subcommand)]
pub(crate) enum NonceCommand {
    /// Borrow the smallest free nonce of an account
    #[command(after_help = "\
Example:
  lanekeeper nonce allocate 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266
  lanekeeper nonce submitted 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…

Sign and send by yourself with it, and say what became of it before it expires.")]
    Allocate {
        #[command(flatten)]
        lane: LaneArgs,
    },
    /// Say that a transaction is about to be sent, before its bytes leave
    #[command(
        after_help = "Example:\n  lanekeeper nonce submitted 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…"
    )]
    Submitted(SentArgs),
    /// Say that a nonce is used
    #[command(
        after_help = "Example:\n  lanekeeper nonce used 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --tx-hash 0x…"
    )]
    Used(SentArgs),
    /// Give a nonce back
    #[command(
        after_help = "Example:\n  lanekeeper nonce recyclable 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 7 --holder 5f0c… --reason 'not needed'"
    )]
    Recyclable {
        #[command(flatten)]
        lent: LentArgs,
        /// Why it is not used
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// What is lent of an account at present
    #[command(
        after_help = "Example:\n  lanekeeper nonce list 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    )]
    List {
        #[command(flatten)]
        lane: LaneArgs,
    },
}

/// Which nonce, and who says so.
#[derive(Debug, Args)]
pub(crate) struct LentArgs {
    #[command(flatten)]
    lane: LaneArgs,
    /// The nonce
    #[arg(value_name = "NONCE")]
    nonce: u64,
    /// The holder that came with it
    #[arg(long, value_name = "UUID")]
    holder: String,
}

#[derive(Debug, Args)]
pub(crate) struct SentArgs {
    #[command(flatten)]
    lent: LentArgs,
    /// The transaction's hash
    #[arg(long, value_name = "HASH")]
    tx_hash: String,
}

/// A lent nonce, as the API shows it.
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
struct LentView {
    next_nonce: u64,
    nonces: Vec<ReservationView>,
    has_more: bool,
}

pub(crate) async fn run(command: &NonceCommand) -> Result<(), Failure> {
    match command {
        NonceCommand::Allocate { lane } => allocate(lane).await,
        NonceCommand::Submitted(args) => sent(args, "submitted").await,
        NonceCommand::Used(args) => sent(args, "used").await,
        NonceCommand::Recyclable { lent, reason } => {
            let body = json!({ "holder": lent.holder, "reason": reason });
            mark(lent, "recyclable", &body).await
        }
        NonceCommand::List { lane } => list(lane).await,
    }
}

async fn allocate(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(args.node())?;
    let path = format!("{}/nonces", path(&client, args).await?);
    let answer = client.post(&path, &json!({})).await?;
    show(args, &answer)
}

async fn sent(args: &SentArgs, word: &str) -> Result<(), Failure> {
    let body = json!({ "holder": args.lent.holder, "txHash": args.tx_hash });
    mark(&args.lent, word, &body).await
}

async fn mark(args: &LentArgs, word: &str, body: &Value) -> Result<(), Failure> {
    let client = Client::new(args.lane.node())?;
    let lane = path(&client, &args.lane).await?;
    let path = format!("{lane}/nonces/{}/{word}", args.nonce);
    let answer = client.post(&path, body).await?;
    show(&args.lane, &answer)
}

async fn list(args: &LaneArgs) -> Result<(), Failure> {
    let client = Client::new(args.node())?;
    let path = format!("{}/nonces", path(&client, args).await?);
    let answer = client.get(&path, &[]).await?;
    if args.node().json {
        print_json(&answer);
        return Ok(());
    }
    let LentView {
        next_nonce,
        nonces,
        has_more,
    } = view(&answer)?;
    for lent in &nonces {
        say!("{}", line(lent));
    }
    let more = if has_more {
        ", and more than are listed"
    } else {
        ""
    };
    say!(
        "{} lent or free{more}; {next_nonce} was never lent",
        nonces.len()
    );
    Ok(())
}

fn show(args: &LaneArgs, answer: &Value) -> Result<(), Failure> {
    if args.node().json {
        print_json(answer);
    } else {
        say!("{}", line(&view(answer)?));
    }
    Ok(())
}

fn line(lent: &ReservationView) -> String {
    let ReservationView {
        nonce,
        state,
        expires_at,
        ..
    } = lent;
    let holder = lent
        .holder
        .as_ref()
        .map(|holder| format!("  holder {holder}"));
    let hash = lent.tx_hash.as_ref().map(|hash| format!("  {hash}"));
    let (holder, hash) = (holder.unwrap_or_default(), hash.unwrap_or_default());
    format!("nonce {nonce}  {state}{holder}  until {expires_at}{hash}")
}
