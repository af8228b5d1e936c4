//! The broadcaster: sends envelopes to the chain, in nonce order per lane, in batches of what is queued.
//!
//! One batch of a lane is in flight at a time; other lanes do not wait for it. Every envelope is durable
//! before it is queued here, so losing it costs time, not money: the lane sends it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::attempt::OutgoingEnvelope;
use domain::{Input, LaneKey, Nonce, SendOutcome};
use metrics::counter;

use crate::core::{Core, lock};

/// The most envelopes of one call.
const SEND_MAX: usize = 100;

/// Envelopes of one chain that wait to be sent, by lane. A lane has an entry while a task sends for it.
#[derive(Default)]
pub(crate) struct Outbox {
    lanes: Mutex<BTreeMap<LaneKey, LaneOutbox>>,
}

#[derive(Default)]
struct LaneOutbox {
    epoch: u64,
    waiting: BTreeMap<Nonce, OutgoingEnvelope>,
}

impl Outbox {
    /// Adds envelopes. Returns whether a task must be started for the lane.
    fn add_envelopes(&self, lane: LaneKey, epoch: u64, outgoing: Vec<OutgoingEnvelope>) -> bool {
        let mut lanes = lock(&self.lanes);
        let is_new = !lanes.contains_key(&lane);
        let outbox = lanes.entry(lane).or_default();
        if outbox.epoch != epoch {
            // The lane was opened anew: only its present envelopes count.
            outbox.waiting.clear();
            outbox.epoch = epoch;
        }
        outbox
            .waiting
            .extend(outgoing.into_iter().map(|bytes| (bytes.nonce, bytes)));
        is_new
    }

    /// The length of the longest queue.
    pub(crate) fn longest_queue_len(&self) -> usize {
        let lanes = lock(&self.lanes);
        let lengths = lanes.values().map(|outbox| outbox.waiting.len());
        lengths.max().unwrap_or(0)
    }

    /// The next batch; `None` (and the lane's task ends) when nothing is queued.
    fn next_batch(&self, lane: LaneKey) -> Option<(u64, Vec<OutgoingEnvelope>)> {
        let mut lanes = lock(&self.lanes);
        let outbox = lanes.get_mut(&lane)?;
        let batch = std::iter::from_fn(|| outbox.waiting.pop_first()).take(SEND_MAX);
        let batch: Vec<_> = batch.map(|(_, bytes)| bytes).collect();
        if batch.is_empty() {
            lanes.remove(&lane);
            return None;
        }
        Some((outbox.epoch, batch))
    }
}

/// Queues envelopes of a lane. Never waits: memory is bounded by the lane's mempool depth.
pub(crate) fn enqueue_envelopes(
    core: &Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    outgoing: Vec<OutgoingEnvelope>,
) {
    let outbox = &core.chain(lane.chain_id).outbox;
    if outbox.add_envelopes(lane, epoch, outgoing) {
        let broadcast = run_lane_broadcast(Arc::clone(core), lane);
        core.tasks.spawn("broadcast", broadcast);
    }
}

async fn run_lane_broadcast(core: Arc<Core>, lane: LaneKey) {
    let chain_state = core.chain(lane.chain_id);
    while let Some((epoch, batch)) = chain_state.outbox.next_batch(lane) {
        let began = core.ports.clock.monotonic();
        let outcomes = send_within_lease(&core, lane, &batch).await;
        let now = core.ports.clock.monotonic();
        let health = &chain_state.send_health;
        health.record_outcomes(lane, &outcomes, began, now);
        chain_state.sent_wakeup.notify_one();
        let inputs = batch.into_iter().zip(outcomes).map(|(bytes, outcome)| {
            counter!("lanekeeper_tx_submit_total", "result" => outcome_label(&outcome))
                .increment(1);
            Input::Sent {
                hash: bytes.hash,
                nonce: bytes.nonce,
                outcome,
            }
        });
        core.send_inputs(lane, Some(epoch), inputs.collect()).await;
    }
}

/// Sends while the lease can be trusted, and no longer: dropping the send closes its connection. The chain is given the
/// remaining trust and returns before it is over, so that outcomes which have arrived are kept.
async fn send_within_lease(
    core: &Core,
    lane: LaneKey,
    batch: &[OutgoingEnvelope],
) -> Vec<SendOutcome> {
    let clock = &core.ports.clock;
    let token = core.leases.token(lane);
    // Another keeper may have replaced these bytes: a lease that was lost and acquired anew does not continue the send.
    let trust = || match core.leases.token(lane) == token {
        true => core.leases.trusted_for(lane, clock.monotonic()),
        false => Duration::ZERO,
    };
    if trust().is_zero() {
        return vec![SendOutcome::NotSent(clock.monotonic()); batch.len()];
    }
    let mut sending = core
        .chain(lane.chain_id)
        .chain
        .send(lane.signer, batch, &trust);
    loop {
        let left = trust();
        if left.is_zero() {
            let why = "the lease could not be trusted any longer during the send";
            return vec![SendOutcome::Unknown(why.into()); batch.len()];
        }
        tokio::select! {
            biased;
            outcomes = &mut sending => {
                assert_eq!(outcomes.len(), batch.len(), "the chain answers every envelope");
                return outcomes;
            }
            () = clock.sleep(left) => {} // a renewal may have extended it meanwhile
        }
    }
}

fn outcome_label(outcome: &SendOutcome) -> &'static str {
    match outcome {
        SendOutcome::Accepted => "accepted",
        SendOutcome::NonceTooLow => "nonce_too_low",
        SendOutcome::Underpriced(_) => "underpriced",
        SendOutcome::ReplacementUnderpriced(_) => "replacement_underpriced",
        SendOutcome::Underfunded(_) => "underfunded",
        SendOutcome::ForeignPending(_) => "foreign_pending",
        SendOutcome::Full { .. } => "full",
        SendOutcome::Busy(_) => "busy",
        SendOutcome::Refused(_) => "refused",
        SendOutcome::Rejected(_) | SendOutcome::GasTooLow(_) => "rejected",
        SendOutcome::Unknown(_) => "unknown",
        SendOutcome::NotSent(_) => "not_sent",
    }
}
