//! `events tail`.

use std::io::Write as _;
use std::ops::ControlFlow;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::{Client, EventView, Feed, Message, NodeArgs, view};
use crate::failure::Failure;
use crate::output::{Tone, clock_time, event_line, paint, safe, short};

#[derive(Debug, Subcommand)]
pub(crate) enum EventsCommand {
    /// Print every event from the oldest on, and follow
    #[command(after_help = "\
Examples:
  lanekeeper events tail
  lanekeeper events tail --type TxConfirmed,TxFailed --json
  lanekeeper events tail --after CURSOR        (a cursor of --json lines)")]
    Tail(TailArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Only these types, separated by commas
    #[arg(long = "type", value_name = "TYPES")]
    types: Option<String>,
    /// Only of this account
    #[arg(long, value_name = "ADDRESS")]
    from: Option<alloy_primitives::Address>,
    /// Only of this chain
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    /// Go on after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    node: NodeArgs,
}

pub(crate) async fn run(command: &EventsCommand) -> Result<(), Failure> {
    let EventsCommand::Tail(args) = command;
    let client = Client::new(&args.node)?;
    let mut query = Vec::new();
    query.extend(args.types.clone().map(|types| ("type", types)));
    query.extend(args.from.map(|signer| ("signer", signer.to_string())));
    query.extend(args.chain.map(|chain| ("chainId", chain.to_string())));
    let mut feed = Feed::new(&client, query, args.after.clone());
    let json = args.node.json;
    let following = feed.follow(
        |message| print(message, json),
        |reason| tracing::warn!("the event stream was lost ({reason}); connecting again"),
    );
    tokio::select! {
        biased;
        ended = following => ended,
        // Whoever stops watching is done watching.
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|e| Failure::refused("waiting for Ctrl-C", &e))
        }
    }
}

/// Prints a message; breaks when nobody reads any more.
fn print(message: &Message, json: bool) -> Result<ControlFlow<()>, Failure> {
    if message.data.is_empty() {
        return Ok(ControlFlow::Continue(()));
    }
    let mut event: Value = serde_json::from_str(&message.data)
        .map_err(|e| Failure::Unreachable(format!("an event is not JSON: {e}")))?;
    let line = if json {
        if let (Some(event), Some(cursor)) = (event.as_object_mut(), &message.cursor) {
            event.insert("cursor".to_owned(), cursor.clone().into());
        }
        event.to_string()
    } else {
        let event: EventView = view(&event)?;
        let about = event.tx_id.as_deref().unwrap_or("(lane)");
        format!(
            "{} {} {} {}",
            paint(Tone::Quiet, &safe(clock_time(&event.at))),
            paint(Tone::Quiet, &format!("{:<11}", safe(&short(&event.signer)))),
            format_args!("{:<36}", safe(about)),
            event_line(&event)
        )
    };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(_) => Ok(ControlFlow::Break(())),
    }
}
