//! Delivery of envelopes to one endpoint.

use domain::attempt::OutgoingEnvelope;
use domain::{Address, SendOutcome};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::SendDeadline;
use super::report::{build_reports, failure_outcome, with_endpoint_name};
use super::strategy::SendMode;
use super::tally::SendReport;
use crate::classify::NodeErrorKind;
use crate::rpc::endpoint::{Admission, BatchOutcome, Endpoint};
use crate::rpc::failure::Failure;
use crate::rpc::limits::{BATCH_BYTES_MAX, HUNG_SEND_MIN};
use crate::rpc::wire::Outcome;

/// The result of sending one envelope.
#[derive(Clone)]
pub(super) enum Delivery {
    /// Not sent, because an earlier envelope failed or there was no time left.
    NotStarted,
    /// Sent and not answered until the deadline, although there was time for it.
    Hung,
    Answer(Outcome<Box<RawValue>>),
    /// The answer to the batch lacks this envelope.
    Unanswered,
    Failed(Failure),
}

/// Sends to one endpoint; reports in order.
pub(super) async fn deliver(
    endpoint: &Endpoint,
    account: Address,
    items: &[&OutgoingEnvelope],
    deadline: SendDeadline,
) -> Vec<SendReport> {
    // Checked once here, so that concurrent calls do not all check.
    let checked = deadline.wait_for(endpoint.check_chain()).await;
    let checked = checked.unwrap_or_else(|| {
        let why = "its chain id was not answered in time";
        Err(Failure::Unchecked(Box::new(Failure::AnswerLost(
            why.into(),
        ))))
    });
    if let Err(failure) = checked {
        return vec![undelivered_report(endpoint, &failure); items.len()];
    }
    let calls: Vec<Value> = items.iter().map(|item| json!([item.raw])).collect();
    let (mode, concurrency_max) = choose_mode(endpoint, account, calls.len());
    let began = Instant::now();
    let mut deliveries = match mode {
        SendMode::Batches => send_in_batches(endpoint, &calls, deadline).await,
        SendMode::Singles => send_singly(endpoint, &calls, concurrency_max, deadline).await,
    };
    record_hung_sends(endpoint, account, &deliveries);
    let all_answered = deliveries
        .iter()
        .all(|delivery| matches!(delivery, Delivery::Answer(_)));
    if all_answered && (mode == SendMode::Singles || endpoint.can_batch()) {
        endpoint
            .strategy
            .record_timing(mode, calls.len(), began.elapsed());
    }
    resend_in_order(endpoint, &calls, &mut deliveries, deadline).await;
    build_reports(endpoint, account, items, deliveries, deadline).await
}

/// After a send of this account hung, its envelopes are sent one at a time: those before the one that hangs arrive, and
/// it is the first that is tried the next time.
fn choose_mode(endpoint: &Endpoint, account: Address, count: usize) -> (SendMode, usize) {
    if endpoint.health.has_hung_send(account) {
        return (SendMode::Singles, 1);
    }
    let mode = if endpoint.can_batch() {
        endpoint.strategy.choose(count)
    } else {
        SendMode::Singles
    };
    (mode, endpoint.strategy.concurrency_max())
}

/// Records whether the endpoint answers sends. A send that hung until its deadline counts, a lost connection does not:
/// queries show that as well.
fn record_hung_sends(endpoint: &Endpoint, account: Address, deliveries: &[Delivery]) {
    let is_answered = |delivery: &Delivery| matches!(delivery, Delivery::Answer(_));
    let is_hung = |delivery: &Delivery| matches!(delivery, Delivery::Hung);
    if deliveries.iter().any(is_hung) {
        endpoint.health.record_hung_send(account);
    } else if deliveries.iter().any(is_answered) {
        endpoint.health.record_answered_send(account);
    }
}

async fn send_in_batches(
    endpoint: &Endpoint,
    calls: &[Value],
    deadline: SendDeadline,
) -> Vec<Delivery> {
    let mut deliveries = Vec::with_capacity(calls.len());
    while deliveries.len() < calls.len() {
        let rest = &calls[deliveries.len()..];
        let part = &rest[..batch_len(rest, endpoint.batch_max)];
        let admission = match admit(endpoint, part.len(), deadline).await {
            Ok(admission) => admission,
            Err(delivery) => {
                deliveries.extend(vec![delivery; part.len()]);
                break; // the rest is sent later
            }
        };
        let began = admission.at;
        match deadline
            .wait_for(endpoint.send_batch(admission, part))
            .await
        {
            Some(Ok(BatchOutcome::Each(each))) => deliveries.extend(
                each.into_iter()
                    .map(|outcome| outcome.map_or(Delivery::Unanswered, Delivery::Answer)),
            ),
            Some(Ok(BatchOutcome::Unsupported)) => {
                let concurrency_max = endpoint.strategy.concurrency_max();
                deliveries.extend(send_singly(endpoint, rest, concurrency_max, deadline).await);
            }
            Some(Err(failure)) => deliveries.extend(vec![Delivery::Failed(failure); part.len()]),
            None => deliveries.extend(vec![unanswered_since(began); part.len()]),
        }
        if deliveries.last().is_some_and(stops_sending) {
            break;
        }
    }
    deliveries.resize(calls.len(), Delivery::NotStarted);
    deliveries
}

/// How many calls fit into one batch, by number and by bytes: at least one.
fn batch_len(calls: &[Value], batch_max: usize) -> usize {
    let mut bytes = 0_usize;
    let fits = |call: &&Value| {
        let fits = bytes < BATCH_BYTES_MAX;
        let raw = call[0].as_str().map_or(0, str::len);
        bytes = bytes.saturating_add(raw);
        fits
    };
    calls.iter().take(batch_max).take_while(fits).count()
}

/// Sends concurrently, started in order, at most `concurrency_max` at a time. Stops after an answer that makes the
/// rest pointless: the rest was certainly not sent.
async fn send_singly(
    endpoint: &Endpoint,
    calls: &[Value],
    concurrency_max: usize,
    deadline: SendDeadline,
) -> Vec<Delivery> {
    let mut deliveries = vec![Delivery::NotStarted; calls.len()];
    let mut in_flight = FuturesUnordered::new();
    let mut waiting = calls.iter().enumerate();
    let mut is_over = false;
    loop {
        while !is_over
            && in_flight.len() < concurrency_max
            && endpoint.next_wait() < deadline.patience()
        {
            let Some((index, params)) = waiting.next() else {
                break;
            };
            in_flight.push(async move { (index, send_one(endpoint, params, deadline).await) });
        }
        let Some((index, answer)) = in_flight.next().await else {
            return deliveries;
        };
        is_over |= stops_sending(&answer);
        deliveries[index] = answer;
    }
}

async fn send_one(endpoint: &Endpoint, params: &Value, deadline: SendDeadline) -> Delivery {
    let admission = match admit(endpoint, 1, deadline).await {
        Ok(admission) => admission,
        Err(delivery) => return delivery,
    };
    let began = admission.at;
    match deadline
        .wait_for(endpoint.send_one(admission, params))
        .await
    {
        Some(Ok(outcome)) => Delivery::Answer(outcome),
        Some(Err(failure)) => Delivery::Failed(failure),
        None => unanswered_since(began),
    }
}

/// Waits until so many sends may start in one request; otherwise returns what becomes of them.
async fn admit(
    endpoint: &Endpoint,
    sends: usize,
    deadline: SendDeadline,
) -> Result<Admission<'_>, Delivery> {
    let patience = deadline.patience();
    if patience.is_zero() {
        return Err(Delivery::NotStarted);
    }
    let admission = endpoint.admit_sends(sends, patience).await;
    admission.map_err(|failure| {
        if matches!(failure, Failure::NotAdmitted) {
            Delivery::NotStarted
        } else {
            Delivery::Failed(failure)
        }
    })
}

/// Some nodes accept no tx before its predecessor, and concurrent sends may overtake each other. Envelopes that
/// were refused for that are sent again in order, once.
async fn resend_in_order(
    endpoint: &Endpoint,
    calls: &[Value],
    deliveries: &mut [Delivery],
    deadline: SendDeadline,
) {
    let is_ahead = |delivery: &Delivery| error_kind(delivery) == Some(NodeErrorKind::NonceTooHigh);
    if calls.len() < 2 || !deliveries.iter().any(is_ahead) {
        return;
    }
    let indices: Vec<usize> = (0..calls.len())
        .filter(|index| {
            is_ahead(&deliveries[*index]) || matches!(deliveries[*index], Delivery::NotStarted)
        })
        .collect();
    let in_order: Vec<Value> = indices.iter().map(|index| calls[*index].clone()).collect();
    let answers = send_singly(endpoint, &in_order, 1, deadline).await;
    if matches!(answers.first(), Some(Delivery::Answer(Ok(_)))) {
        endpoint.strategy.require_nonce_order();
    }
    for (index, answer) in indices.into_iter().zip(answers) {
        // Without a new answer the earlier refusal remains.
        if !matches!(answer, Delivery::NotStarted) {
            deliveries[index] = answer;
        }
    }
}

/// A send that began then has no answer at its deadline. The time that it waited for admission does not count: the
/// endpoint had no part in it.
fn unanswered_since(began: Instant) -> Delivery {
    if began.elapsed() >= HUNG_SEND_MIN {
        Delivery::Hung
    } else {
        Delivery::Failed(unanswered())
    }
}

pub(super) fn unanswered() -> Failure {
    Failure::AnswerLost("no answer before the deadline of the send".to_owned())
}

pub(super) fn error_kind(delivery: &Delivery) -> Option<NodeErrorKind> {
    let Delivery::Answer(Err(error)) = delivery else {
        return None;
    };
    Some(error.kind())
}

/// Whether the envelopes after this one would fail as well.
fn stops_sending(delivery: &Delivery) -> bool {
    match delivery {
        Delivery::NotStarted | Delivery::Hung | Delivery::Failed(_) => true,
        Delivery::Answer(Ok(_)) | Delivery::Unanswered => false,
        Delivery::Answer(Err(error)) => match error.as_rpc_error().send_outcome() {
            SendOutcome::Full { .. } | SendOutcome::Underfunded(_) | SendOutcome::Busy(_) => true,
            SendOutcome::Accepted
            | SendOutcome::NonceTooLow
            | SendOutcome::Underpriced(_)
            | SendOutcome::ReplacementUnderpriced(_)
            | SendOutcome::ForeignPending(_)
            | SendOutcome::Refused(_)
            | SendOutcome::Rejected(_)
            | SendOutcome::GasTooLow(_)
            | SendOutcome::Unknown(_)
            | SendOutcome::NotSent(_) => false,
        },
    }
}

fn undelivered_report(endpoint: &Endpoint, failure: &Failure) -> SendReport {
    if failure.is_wrong_chain() {
        return SendReport::WrongChain(with_endpoint_name(endpoint, &failure.to_string()));
    }
    SendReport::Outcome(failure_outcome(endpoint, failure))
}
