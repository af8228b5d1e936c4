//! Readers of txs, events, lanes and nodes, and callers that wait for a tx. An accepted tx must be found
//! at every node.

use std::time::Duration;

use domain::{TxId, TxState};
use engine::node::{Refusal, WaitFor};
use engine::ports::{StoreError, TxRecord};
use tokio::time::Instant;

use super::{AcceptedTx, WorkloadContext};
use crate::world::features::Feature;
use crate::world::machine::{CallOutcome, Machine};

/// The longest pause between two queries.
const PAUSE_MS_MAX: u64 = 4_000;
/// The most callers that begin to wait at once: more than a node accepts.
const WAITERS_MAX: u64 = 80;
/// The longest time that a caller waits.
const WAIT_MS_MAX: u64 = 60_000;

pub(super) async fn run_queries(context: WorkloadContext) {
    loop {
        context.pause(0, PAUSE_MS_MAX).await;
        let machine = context.pick_machine().clone();
        let Some(accepted_tx) = context.accepted_txs.pick(&context.rng) else {
            continue;
        };
        context.trace.fire(Feature::Queries);
        match context.rng.below(6) {
            0 => check_by_id(&context, &machine, accepted_tx).await,
            1 => check_by_request(&context, &machine, accepted_tx).await,
            2 => check_events(&context, &machine, accepted_tx).await,
            3 => drop(
                context
                    .call_node(&machine, |node| async move {
                        node.lanes(None, usize::MAX).await
                    })
                    .await,
            ),
            4 => drop(
                context
                    .call_node(&machine, |node| async move { node.readiness().await })
                    .await,
            ),
            _ => start_waiters(&context, &machine),
        }
    }
}

async fn check_by_id(context: &WorkloadContext, machine: &Machine, accepted_tx: AcceptedTx) {
    let id = accepted_tx.tx_id;
    let read = context.call_node(machine, |node| async move { node.tx(id).await });
    check_record(context, machine, &accepted_tx, read.await);
}

async fn check_by_request(context: &WorkloadContext, machine: &Machine, accepted_tx: AcceptedTx) {
    let (lane, request_id) = (accepted_tx.lane, accepted_tx.request_id.clone());
    let read = context.call_node(machine, |node| async move {
        node.tx_by_request(lane, &request_id).await
    });
    check_record(context, machine, &accepted_tx, read.await);
}

fn check_record(
    context: &WorkloadContext,
    machine: &Machine,
    accepted_tx: &AcceptedTx,
    read: Option<Result<Option<TxRecord>, StoreError>>,
) {
    let Some(Ok(found)) = read else {
        return; // no answer proves nothing
    };
    let is_it = found.is_some_and(|record| record.tx.id == accepted_tx.tx_id);
    if !is_it && !is_lost(context, accepted_tx.tx_id) {
        let (node, id) = (machine.name(), &accepted_tx.request_id);
        context.trace.violation(&format!(
            "nothing accepted is lost: {node} does not find {id} as {}",
            accepted_tx.tx_id
        ));
    }
}

async fn check_events(context: &WorkloadContext, machine: &Machine, accepted_tx: AcceptedTx) {
    let id = accepted_tx.tx_id;
    let read = context.call_node(machine, |node| async move { node.tx_events(id).await });
    let Some(Ok(events)) = read.await else {
        return;
    };
    let kinds: Vec<&str> = events
        .iter()
        .flatten()
        .map(|recorded| recorded.event.kind.as_str())
        .collect();
    let begins_well = kinds.first().is_none_or(|first| *first == "TxAccepted");
    if (events.is_none() || !begins_well) && !is_lost(context, id) {
        context.trace.violation(&format!(
            "events are gapless: {} reads the events of {} as {kinds:?}",
            machine.name(),
            accepted_tx.request_id
        ));
    }
}

fn start_waiters(context: &WorkloadContext, machine: &Machine) {
    for _ in 0..context.rng.between(1, WAITERS_MAX) {
        let Some(accepted_tx) = context.accepted_txs.pick(&context.rng) else {
            return;
        };
        let until = *context.rng.pick(&[WaitFor::Mined, WaitFor::Confirmed]);
        let timeout = context.rng.millis(0, WAIT_MS_MAX);
        let waiting = wait_for_tx(
            context.clone(),
            machine.clone(),
            accepted_tx,
            until,
            timeout,
        );
        // Detached: the task ends by itself, or with the world.
        drop(tokio::spawn(waiting));
    }
}

async fn wait_for_tx(
    context: WorkloadContext,
    machine: Machine,
    accepted_tx: AcceptedTx,
    until: WaitFor,
    timeout: Duration,
) {
    let (id, began) = (accepted_tx.tx_id, Instant::now());
    let outcome = machine
        .call(|node| async move { node.wait(id, until, timeout).await })
        .await;
    let CallOutcome::Answer(answer) = outcome else {
        return;
    };
    let is_right = match answer {
        // An answer long before the timeout means that the state was reached.
        Ok(Some(record)) => began.elapsed() >= timeout / 2 || has_reached(&record, until),
        Ok(None) => is_lost(&context, id),
        Err(refusal) => matches!(refusal, Refusal::Busy | Refusal::StoreUnavailable(_)),
    };
    if !is_right {
        context.trace.violation(&format!(
            "waiters get true answers: {} about {}",
            machine.name(),
            accepted_tx.request_id
        ));
    }
}

fn has_reached(record: &TxRecord, until: WaitFor) -> bool {
    let tx = &record.tx;
    let has_ended = tx.state.is_terminal() || tx.state == TxState::Stuck;
    match until {
        WaitFor::Accepted | WaitFor::Submitted => true,
        WaitFor::Mined => has_ended || tx.inclusion.is_some(),
        WaitFor::Confirmed => has_ended,
    }
}

fn is_lost(context: &WorkloadContext, id: TxId) -> bool {
    context.store.loss().txs.contains(&id)
}
