//! Many requests in one call to one node: of several lanes, some of them twice, some accepted before.

use domain::{LaneKey, RequestId};
use engine::node::{Accepted, NewTx, Refusal};

use super::Scene;
use crate::event::{Answer, WorldEvent};

/// The most requests of one call.
const BATCH_MAX: u64 = 20;
/// The longest pause between two calls.
const PAUSE_MS_MAX: u64 = 20_000;

pub(super) async fn send_for_ever(scene: Scene) {
    loop {
        scene.rest(0, PAUSE_MS_MAX).await;
        if !scene.requests.is_empty() {
            send(&scene).await;
        }
    }
}

async fn send(scene: &Scene) {
    let machine = scene.some_machine().clone();
    let count = scene.rng.between(2, BATCH_MAX);
    let picks = (0..count).map(|_| scene.rng.pick(&scene.requests));
    let batch: Vec<NewTx> = picks.map(super::super::client::Request::to_new).collect();
    let keys: Vec<(LaneKey, RequestId)> = batch
        .iter()
        .map(|new| (new.lane, new.request_id.clone()))
        .collect();
    for (lane, request_id) in &keys {
        scene.trace.tell(WorldEvent::Asked {
            lane: *lane,
            request_id: request_id.clone(),
            node: machine.name().clone(),
        });
    }
    let asked = scene.lease_request(
        &machine,
        |node| async move { node.create_many(batch).await },
    );
    let answers = asked.await;
    if answers.as_ref().is_some_and(|all| all.len() != keys.len()) {
        scene
            .trace
            .violation("one answer per request: a batch got another number of answers");
        return;
    }
    let mut answers = answers.unwrap_or_default().into_iter();
    for (lane, request_id) in keys {
        let answer = told(answers.next());
        if let Answer::Accepted { tx_id, .. } = answer {
            scene.promised.add(lane, &request_id, tx_id);
        }
        scene.trace.tell(WorldEvent::Answered {
            lane,
            request_id,
            node: machine.name().clone(),
            answer,
        });
    }
}

/// What a client hears.
fn told(answer: Option<Result<Accepted, Refusal>>) -> Answer {
    match answer {
        Some(Ok(accepted)) => Answer::Accepted {
            tx_id: accepted.record.tx.id,
            is_new: accepted.is_new,
        },
        Some(Err(refusal)) => Answer::Refused(refusal),
        None => Answer::Silence,
    }
}
