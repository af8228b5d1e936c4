//! `events tail`.

use std::io::Write as _;
use std::ops::ControlFlow;

use clap::{Args, Subcommand};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::address;
use crate::client::{Client, EventFeed, EventView, Message, NodeArgs, decode};
use crate::failure::Failure;
use crate::output::{Tone, clock_time, event_line, paint, safe, short};

#[derive(Debug, Subcommand)]
pub enum EventsCommand {
    /// Print all events from the oldest on, and follow the stream
    #[command(after_help = "\
Examples:
  lanekeeper events tail
  lanekeeper events tail --type TxConfirmed,TxFailed --json
  lanekeeper events tail --after CURSOR        (a cursor that --json printed)")]
    Tail(TailArgs),
}

#[derive(Debug, Args)]
pub struct TailArgs {
    /// Only these types, separated by commas
    #[arg(long = "type", value_name = "TYPES")]
    types: Option<String>,
    /// Only events of this account
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse)]
    from: Option<alloy_primitives::Address>,
    /// Only events of this chain
    #[arg(long, value_name = "ID")]
    chain: Option<u64>,
    /// Start after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    node: NodeArgs,
}

pub fn run(command: &EventsCommand) -> BoxFuture<'_, Result<(), Failure>> {
    async move {
        let EventsCommand::Tail(args) = command;
        let client = Client::new(&args.node)?;
        let mut query = Vec::new();
        query.extend(args.types.clone().map(|types| ("type", types)));
        query.extend(args.from.map(|signer| ("signer", signer.to_string())));
        query.extend(args.chain.map(|chain| ("chainId", chain.to_string())));
        let mut feed = EventFeed::new(&client, query, args.after.clone());
        let json = args.node.json;
        let following = feed.follow(
            |message| print_message(message, json),
            |reason| tracing::warn!("the event stream was lost ({reason}); reconnecting"),
        );
        tokio::select! {
            biased;
            ended = following => ended,
            // Ctrl-C is the regular end of this command.
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|e| Failure::refused("waiting for Ctrl-C", &e))
            }
        }
    }
    .boxed()
}

/// Prints a message; breaks when stdout is closed.
fn print_message(message: &Message, json: bool) -> Result<ControlFlow<()>, Failure> {
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
        let event: EventView = decode(&event)?;
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
