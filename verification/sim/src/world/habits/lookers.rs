//! People and programs that look: at a tx under each of its names, at its story, at lanes and nodes; and
//! callers who wait until a tx got further. What was promised must be there, whichever node is asked.

use std::time::Duration;

use domain::{TxId, TxState};
use engine::node::{Refusal, WaitFor};
use engine::ports::{StoreError, TxRecord};
use tokio::time::Instant;

use super::{Promise, Scene};
use crate::world::machine::{Heard, Machine};

/// The longest pause between two looks.
const PAUSE_MS_MAX: u64 = 4_000;
/// The most callers who begin to wait at once: more than a node takes.
const WAITERS_MAX: u64 = 80;
/// The longest time that a caller waits.
const WAIT_MS_MAX: u64 = 60_000;

pub(super) async fn look_for_ever(scene: Scene) {
    loop {
        scene.rest(0, PAUSE_MS_MAX).await;
        let machine = scene.some_machine().clone();
        let Some(promise) = scene.promised.some(&scene.rng) else {
            continue;
        };
        match scene.rng.below(6) {
            0 => by_id(&scene, &machine, promise).await,
            1 => by_request(&scene, &machine, promise).await,
            2 => story(&scene, &machine, promise).await,
            3 => drop(
                scene
                    .lease_request(&machine, |node| async move { node.lanes().await })
                    .await,
            ),
            4 => drop(
                scene
                    .lease_request(&machine, |node| async move { node.readiness().await })
                    .await,
            ),
            _ => begin_waiting(&scene, &machine),
        }
    }
}

async fn by_id(scene: &Scene, machine: &Machine, promise: Promise) {
    let id = promise.tx_id;
    let read = scene.lease_request(machine, |node| async move { node.tx(id).await });
    judge(scene, machine, &promise, read.await);
}

async fn by_request(scene: &Scene, machine: &Machine, promise: Promise) {
    let (lane, request_id) = (promise.lane, promise.request_id.clone());
    let read = scene.lease_request(machine, |node| async move {
        node.tx_by_request(lane, &request_id).await
    });
    judge(scene, machine, &promise, read.await);
}

fn judge(
    scene: &Scene,
    machine: &Machine,
    promise: &Promise,
    read: Option<Result<Option<TxRecord>, StoreError>>,
) {
    let Some(Ok(found)) = read else {
        return; // no answer is no claim
    };
    let is_it = found.is_some_and(|record| record.tx.id == promise.tx_id);
    if !is_it && !is_lost(scene, promise.tx_id) {
        let (node, id) = (machine.name(), &promise.request_id);
        scene.trace.violation(&format!(
            "nothing accepted is lost: {node} does not find {id} as {}",
            promise.tx_id
        ));
    }
}

async fn story(scene: &Scene, machine: &Machine, promise: Promise) {
    let id = promise.tx_id;
    let read = scene.lease_request(machine, |node| async move { node.tx_events(id).await });
    let Some(Ok(story)) = read.await else {
        return;
    };
    let words: Vec<&str> = story
        .iter()
        .flatten()
        .map(|told| told.event.kind.as_str())
        .collect();
    let begins_well = words.first().is_none_or(|first| *first == "TxAccepted");
    if (story.is_none() || !begins_well) && !is_lost(scene, id) {
        scene.trace.violation(&format!(
            "events without a hole: {} reads the story of {} as {words:?}",
            machine.name(),
            promise.request_id
        ));
    }
}

fn begin_waiting(scene: &Scene, machine: &Machine) {
    for _ in 0..scene.rng.between(1, WAITERS_MAX) {
        let Some(promise) = scene.promised.some(&scene.rng) else {
            return;
        };
        let until = *scene.rng.pick(&[WaitFor::Mined, WaitFor::Confirmed]);
        let timeout = scene.rng.millis(0, WAIT_MS_MAX);
        let waiting = wait(scene.clone(), machine.clone(), promise, until, timeout);
        // The handle is let go: it ends by itself, or with the world.
        drop(tokio::spawn(waiting));
    }
}

async fn wait(scene: Scene, machine: Machine, promise: Promise, until: WaitFor, timeout: Duration) {
    let (id, began) = (promise.tx_id, Instant::now());
    let heard = machine
        .call(|node| async move { node.wait(id, until, timeout).await })
        .await;
    let Heard::Answer(answer) = heard else {
        return;
    };
    let is_right = match answer {
        // Long before its time was up: then because it is so.
        Ok(Some(record)) => began.elapsed() >= timeout / 2 || is_so(&record, until),
        Ok(None) => is_lost(&scene, id),
        Err(refusal) => matches!(refusal, Refusal::Busy | Refusal::StoreUnavailable(_)),
    };
    if !is_right {
        scene.trace.violation(&format!(
            "waiters hear the truth: {} about {}",
            machine.name(),
            promise.request_id
        ));
    }
}

fn is_so(record: &TxRecord, until: WaitFor) -> bool {
    let tx = &record.tx;
    let has_ended = tx.state.is_terminal() || tx.state == TxState::Stuck;
    match until {
        WaitFor::Accepted | WaitFor::Submitted => true,
        WaitFor::Mined => has_ended || tx.inclusion.is_some(),
        WaitFor::Confirmed => has_ended,
    }
}

fn is_lost(scene: &Scene, id: TxId) -> bool {
    scene.store.loss().txs.contains(&id)
}
