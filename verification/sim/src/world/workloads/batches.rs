//! Many requests in one call to one node: of several lanes, with duplicates and with accepted ones.

use domain::{LaneKey, RequestId};
use engine::node::NewTx;

use super::{WorkloadContext, to_answer};
use crate::event::WorldEvent;
use crate::world::features::Feature;

/// The most requests of one call.
const BATCH_MAX: u64 = 20;
/// The longest pause between two calls.
const PAUSE_MS_MAX: u64 = 20_000;

pub(super) async fn send_batches(context: WorkloadContext) {
    loop {
        context.pause(0, PAUSE_MS_MAX).await;
        if !context.requests.is_empty() {
            context.trace.fire(Feature::Batches);
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
        let (answer, node) = (to_answer(answers.next()), machine.name().clone());
        context
            .accepted_txs
            .record_answer(&context.trace, (lane, request_id), node, answer);
    }
}
