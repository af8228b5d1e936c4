//! Many requests in one call to one node: of several lanes, with duplicates and with accepted ones.

use domain::{LaneKey, RequestId};
use engine::node::{AcceptedTx, NewTx, Refusal};

use super::WorkloadContext;
use crate::event::{Answer, WorldEvent};

/// The most requests of one call.
const BATCH_MAX: u64 = 20;
/// The longest pause between two calls.
const PAUSE_MS_MAX: u64 = 20_000;

pub(super) async fn send_batches(context: WorkloadContext) {
    loop {
        context.pause(0, PAUSE_MS_MAX).await;
        if !context.requests.is_empty() {
            send(&context).await;
        }
    }
}

async fn send(context: &WorkloadContext) {
    let machine = context.pick_machine().clone();
    let count = context.rng.between(2, BATCH_MAX);
    let picks = (0..count).map(|_| context.rng.pick(&context.requests));
    let batch: Vec<NewTx> = picks.map(super::super::client::Request::to_new).collect();
    let keys: Vec<(LaneKey, RequestId)> = batch
        .iter()
        .map(|new| (new.lane, new.request_id.clone()))
        .collect();
    for (lane, request_id) in &keys {
        context.trace.record(WorldEvent::RequestSent {
            lane: *lane,
            request_id: request_id.clone(),
            node: machine.name().clone(),
        });
    }
    let answer = context.call_node(
        &machine,
        |node| async move { node.create_many(batch).await },
    );
    let answers = answer.await;
    if answers.as_ref().is_some_and(|all| all.len() != keys.len()) {
        context
            .trace
            .violation("one answer per request: a batch got another number of answers");
        return;
    }
    let mut answers = answers.unwrap_or_default().into_iter();
    for (lane, request_id) in keys {
        let answer = to_answer(answers.next());
        if let Answer::Accepted { tx_id, .. } = answer {
            context.accepted_txs.add(lane, &request_id, tx_id);
        }
        context.trace.record(WorldEvent::RequestAnswered {
            lane,
            request_id,
            node: machine.name().clone(),
            answer,
        });
    }
}

/// The answer as a client sees it.
fn to_answer(answer: Option<Result<AcceptedTx, Refusal>>) -> Answer {
    match answer {
        Some(Ok(accepted)) => Answer::Accepted {
            tx_id: accepted.record.tx.id,
            is_new: accepted.is_new,
        },
        Some(Err(refusal)) => Answer::Refused(refusal),
        None => Answer::NoAnswer,
    }
}
