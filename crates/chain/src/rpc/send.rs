//! Handing signed bytes to nodes, in order, and saying of each what came of it.
//!
//! What may have left this process and was not answered is [`SendOutcome::Unknown`]; what
//! certainly did not leave is [`SendOutcome::Busy`].

use std::time::Duration;

use domain::SendOutcome;
use domain::attempt::Outgoing;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::endpoint::{Batch, Endpoint};
use super::failure::Failure;
use super::limits::{BATCH_BYTES_MAX, BATCH_MAX};
use super::wire::{NodeError, Outcome};

const METHOD: &str = "eth_sendRawTransaction";

/// Sends everything. No request starts later than `start_within` after the call: the right to
/// send was checked just before it and must not be stretched by slow endpoints.
pub(super) async fn send(
    endpoints: &[&Endpoint],
    outgoing: &[Outgoing],
    start_within: Duration,
) -> Vec<SendOutcome> {
    let allowance = Allowance {
        began: Instant::now(),
        start_within,
    };
    let mut outcomes = Vec::with_capacity(outgoing.len());
    for part in parts(outgoing) {
        let sent = send_part(endpoints, part, allowance).await;
        let unreached = sent
            .iter()
            .all(|outcome| matches!(outcome, SendOutcome::Busy(_) | SendOutcome::Unknown(_)));
        outcomes.extend(sent);
        if unreached {
            // Nobody takes anything now: more of the same would only take more time.
            break;
        }
    }
    let why = "not sent: the endpoints did not take what goes before it";
    outcomes.resize(outgoing.len(), SendOutcome::Busy(why.to_owned()));
    outcomes
}

/// The time in which requests may start.
#[derive(Clone, Copy)]
struct Allowance {
    began: Instant,
    start_within: Duration,
}

impl Allowance {
    fn is_used_up(self) -> bool {
        self.began.elapsed() > self.start_within
    }
}

/// Parts that fit into one batch each, in number and in bytes.
fn parts(outgoing: &[Outgoing]) -> Vec<&[Outgoing]> {
    let mut parts = Vec::new();
    let mut rest = outgoing;
    while !rest.is_empty() {
        let mut bytes = 0_usize;
        let fitting = rest
            .iter()
            .take(BATCH_MAX)
            .take_while(|item| {
                let fits = bytes < BATCH_BYTES_MAX;
                bytes = bytes.saturating_add(item.raw.len().saturating_mul(2));
                fits
            })
            .count();
        let (part, after) = rest.split_at(fitting);
        parts.push(part);
        rest = after;
    }
    parts
}

/// Goes from endpoint to endpoint with whatever is still in doubt.
async fn send_part(
    endpoints: &[&Endpoint],
    part: &[Outgoing],
    allowance: Allowance,
) -> Vec<SendOutcome> {
    let unsent = SendOutcome::Busy("not sent: time was up before its turn".to_owned());
    let mut outcomes = vec![unsent; part.len()];
    for endpoint in endpoints {
        let open: Vec<usize> = (0..part.len())
            .filter(|index| is_open(&outcomes[*index]))
            .collect();
        if open.is_empty() || allowance.is_used_up() {
            break;
        }
        let items: Vec<&Outgoing> = open.iter().map(|index| &part[*index]).collect();
        let answers = send_to(endpoint, &items, allowance).await;
        for (index, answer) in open.into_iter().zip(answers) {
            let before = outcomes[index].clone();
            outcomes[index] = settle(before, answer);
        }
    }
    outcomes
}

/// Whether another endpoint should be asked.
fn is_open(outcome: &SendOutcome) -> bool {
    match outcome {
        SendOutcome::Busy(_) | SendOutcome::Unknown(_) => true,
        SendOutcome::Accepted
        | SendOutcome::NonceTooLow
        | SendOutcome::Underpriced(_)
        | SendOutcome::ReplacementUnderpriced(_)
        | SendOutcome::Underfunded(_)
        | SendOutcome::Rejected(_)
        | SendOutcome::NotSent(_) => false,
    }
}

/// What two endpoints' answers mean together. Where the first may have taken the bytes, a refusal
/// of the second does not take them back.
fn settle(before: SendOutcome, after: SendOutcome) -> SendOutcome {
    match (before, after) {
        (_, after @ (SendOutcome::Accepted | SendOutcome::NonceTooLow)) => after,
        (before @ SendOutcome::Unknown(_), _) => before,
        (_, after) => after,
    }
}

/// One endpoint's answers, in order.
async fn send_to(
    endpoint: &Endpoint,
    items: &[&Outgoing],
    allowance: Allowance,
) -> Vec<SendOutcome> {
    let calls: Vec<Value> = items.iter().map(|item| json!([item.raw])).collect();
    match endpoint.batch::<Value>(METHOD, &calls).await {
        Ok(Batch::Each(each)) => items
            .iter()
            .zip(each)
            .map(|(item, outcome)| match outcome {
                Some(outcome) => judged(endpoint, item, outcome),
                None => SendOutcome::Unknown(named(endpoint, "it left this one out")),
            })
            .collect(),
        Ok(Batch::NotTaken) => send_singly(endpoint, items, &calls, allowance).await,
        Err(failure) => vec![undelivered(endpoint, &failure); items.len()],
    }
}

/// One after the other, because their order matters. Stops where an answer fails to come: what
/// follows did certainly not leave.
async fn send_singly(
    endpoint: &Endpoint,
    items: &[&Outgoing],
    calls: &[Value],
    allowance: Allowance,
) -> Vec<SendOutcome> {
    let mut outcomes = Vec::with_capacity(items.len());
    for (item, params) in items.iter().zip(calls) {
        if allowance.is_used_up() {
            break;
        }
        match endpoint.ask::<Value>(METHOD, params).await {
            Ok(outcome) => outcomes.push(judged(endpoint, item, outcome)),
            Err(failure) => {
                outcomes.push(undelivered(endpoint, &failure));
                break;
            }
        }
    }
    let unsent = SendOutcome::Busy(named(endpoint, "not sent after what goes before it"));
    outcomes.resize(items.len(), unsent);
    outcomes
}

fn judged(endpoint: &Endpoint, item: &Outgoing, outcome: Outcome<Value>) -> SendOutcome {
    match outcome {
        Ok(answer) => {
            let hash = answer.as_str().and_then(|text| text.parse().ok());
            if hash == Some(item.hash) {
                return SendOutcome::Accepted;
            }
            let (from, hash) = (endpoint.name(), item.hash);
            tracing::warn!(endpoint = from, %hash, "a node named another hash than ours");
            SendOutcome::Unknown(named(endpoint, "it answered with another hash"))
        }
        Err(error) => refused(endpoint, item, &error),
    }
}

fn refused(endpoint: &Endpoint, item: &Outgoing, error: &NodeError) -> SendOutcome {
    let outcome = error.complaint().send_outcome();
    if let SendOutcome::Unknown(_) = outcome {
        let (from, hash, code) = (endpoint.name(), item.hash, error.code);
        let error = &error.message;
        tracing::warn!(endpoint = from, %hash, code, error, "not in the table of node errors");
    }
    outcome
}

fn undelivered(endpoint: &Endpoint, failure: &Failure) -> SendOutcome {
    let text = named(endpoint, &failure.to_string());
    if failure.had_no_effect() {
        SendOutcome::Busy(text)
    } else {
        SendOutcome::Unknown(text)
    }
}

fn named(endpoint: &Endpoint, text: &str) -> String {
    format!("{}: {text}", endpoint.name())
}
