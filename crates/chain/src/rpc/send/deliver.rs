//! Envelopes on their way to one endpoint.

use domain::SendOutcome;
use domain::attempt::OutgoingEnvelope;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Allowance;
use super::judge::{failed, judged, named};
use super::tally::Heard;
use super::ways::Way;
use crate::classify::Meaning;
use crate::rpc::endpoint::{Batch, Endpoint};
use crate::rpc::failure::Failure;
use crate::rpc::limits::BATCH_BYTES_MAX;
use crate::rpc::wire::Outcome;

const METHOD: &str = "eth_sendRawTransaction";

/// What came back for one envelope.
#[derive(Clone)]
pub(super) enum Told {
    /// It did not leave: what goes before it got no further, or time was up.
    NotStarted,
    Answer(Outcome<Box<RawValue>>),
    /// The batch was answered, this one was not.
    LeftOut,
    Failed(Failure),
}

/// One endpoint's answers, in order.
pub(super) async fn deliver(
    endpoint: &Endpoint,
    items: &[&OutgoingEnvelope],
    allowance: Allowance,
) -> Vec<Heard> {
    // Asked once here, so that calls side by side do not all ask.
    if let Err(failure) = endpoint.check_chain().await {
        return vec![undelivered(endpoint, &failure); items.len()];
    }
    let calls: Vec<Value> = items.iter().map(|item| json!([item.raw])).collect();
    let way = if endpoint.takes_batches() {
        endpoint.ways().choose(calls.len())
    } else {
        Way::Singles
    };
    let began = Instant::now();
    let mut told = match way {
        Way::Batches => in_batches(endpoint, &calls, allowance).await,
        Way::Singles => singly(endpoint, &calls, endpoint.ways().width(), allowance).await,
    };
    let all_answered = told.iter().all(|told| matches!(told, Told::Answer(_)));
    if all_answered && (way == Way::Singles || endpoint.takes_batches()) {
        endpoint.ways().note(way, calls.len(), began.elapsed());
    }
    one_by_one(endpoint, &calls, &mut told, allowance).await;
    judged(endpoint, items, told).await
}

async fn in_batches(endpoint: &Endpoint, calls: &[Value], allowance: Allowance) -> Vec<Told> {
    let mut told = Vec::with_capacity(calls.len());
    while told.len() < calls.len() && !allowance.is_used_up() {
        let rest = &calls[told.len()..];
        let part = &rest[..fitting(rest, endpoint.batch_max())];
        match endpoint.batch::<Box<RawValue>>(METHOD, part).await {
            Ok(Batch::Each(each)) => told.extend(
                each.into_iter()
                    .map(|outcome| outcome.map_or(Told::LeftOut, Told::Answer)),
            ),
            Ok(Batch::NotTaken) => {
                let width = endpoint.ways().width();
                told.extend(singly(endpoint, rest, width, allowance).await);
            }
            Err(failure) => told.extend(vec![Told::Failed(failure); part.len()]),
        }
        if told.last().is_some_and(is_pointless_after) {
            break;
        }
    }
    told.resize(calls.len(), Told::NotStarted);
    told
}

/// How many of these fit into one batch, in number and in bytes: at least one.
fn fitting(calls: &[Value], batch_max: usize) -> usize {
    let mut bytes = 0_usize;
    let fits = |call: &&Value| {
        let fits = bytes < BATCH_BYTES_MAX;
        let raw = call[0].as_str().map_or(0, str::len);
        bytes = bytes.saturating_add(raw);
        fits
    };
    calls.iter().take(batch_max).take_while(fits).count()
}

/// Side by side, started in order, at most `width` under way. No more are started where an answer
/// makes the rest pointless: those did certainly not leave.
async fn singly(
    endpoint: &Endpoint,
    calls: &[Value],
    width: usize,
    allowance: Allowance,
) -> Vec<Told> {
    let mut told = vec![Told::NotStarted; calls.len()];
    let mut under_way = FuturesUnordered::new();
    let mut waiting = calls.iter().enumerate();
    let mut is_over = false;
    loop {
        while !is_over && under_way.len() < width && !allowance.is_used_up() {
            let Some((index, params)) = waiting.next() else {
                break;
            };
            under_way.push(async move {
                match endpoint.ask::<Box<RawValue>>(METHOD, params).await {
                    Ok(outcome) => (index, Told::Answer(outcome)),
                    Err(failure) => (index, Told::Failed(failure)),
                }
            });
        }
        let Some((index, answer)) = under_way.next().await else {
            return told;
        };
        is_over |= is_pointless_after(&answer);
        told[index] = answer;
    }
}

/// Some nodes keep nothing whose predecessor they do not have, and side by side one may overtake
/// the other. What was refused for that is sent again in order, once.
async fn one_by_one(endpoint: &Endpoint, calls: &[Value], told: &mut [Told], allowance: Allowance) {
    let is_ahead = |told: &Told| meaning(told) == Some(Meaning::TooFarAhead);
    if calls.len() < 2 || !told.iter().any(is_ahead) {
        return;
    }
    let again: Vec<usize> = (0..calls.len())
        .filter(|index| is_ahead(&told[*index]) || matches!(told[*index], Told::NotStarted))
        .collect();
    let in_order: Vec<Value> = again.iter().map(|index| calls[*index].clone()).collect();
    let answers = singly(endpoint, &in_order, 1, allowance).await;
    if matches!(answers.first(), Some(Told::Answer(Ok(_)))) {
        endpoint.ways().keeps_nothing_ahead();
    }
    for (index, answer) in again.into_iter().zip(answers) {
        // A refusal stands where nothing new was learnt.
        if !matches!(answer, Told::NotStarted) {
            told[index] = answer;
        }
    }
}

pub(super) fn meaning(told: &Told) -> Option<Meaning> {
    match told {
        Told::Answer(Err(error)) => Some(error.complaint().meaning()),
        Told::Answer(Ok(_)) | Told::NotStarted | Told::LeftOut | Told::Failed(_) => None,
    }
}

/// Whether what comes after this one would fare no better.
fn is_pointless_after(told: &Told) -> bool {
    match told {
        Told::NotStarted | Told::Failed(_) => true,
        Told::Answer(Ok(_)) | Told::LeftOut => false,
        Told::Answer(Err(error)) => match error.complaint().send_outcome() {
            SendOutcome::Full { .. } | SendOutcome::Underfunded(_) | SendOutcome::Busy(_) => true,
            SendOutcome::Accepted
            | SendOutcome::NonceTooLow
            | SendOutcome::Underpriced(_)
            | SendOutcome::ReplacementUnderpriced(_)
            | SendOutcome::ForeignPending(_)
            | SendOutcome::Refused(_)
            | SendOutcome::Rejected(_)
            | SendOutcome::Unknown(_)
            | SendOutcome::NotSent(_) => false,
        },
    }
}

fn undelivered(endpoint: &Endpoint, failure: &Failure) -> Heard {
    if failure.is_wrong_chain() {
        return Heard::Stranger(named(endpoint, &failure.to_string()));
    }
    Heard::Outcome(failed(endpoint, failure))
}
