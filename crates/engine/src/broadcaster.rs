//! Bytes on their way to the nodes: in nonce order per lane, in batches of what is there.
//!
//! One batch of a lane is under way at a time; other lanes do not wait for it. What was handed over
//! is durable already, so losing it here costs time, not money: the lane sends it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use domain::attempt::OutgoingEnvelope;
use domain::{Input, LaneKey, Nonce, SendOutcome};
use metrics::counter;

use crate::core::Core;

/// The most envelopes of one call.
const SEND_MAX: usize = 100;

/// What waits to be sent, per lane. A lane is here while a task works on it.
#[derive(Default)]
pub(crate) struct Outbox {
    lanes: Mutex<BTreeMap<LaneKey, LaneOutbox>>,
}

struct LaneOutbox {
    epoch: u64,
    waiting: BTreeMap<Nonce, OutgoingEnvelope>,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, LaneOutbox>> {
        self.lanes
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// Adds bytes; says whether a task must be started for the lane.
    fn add(&self, lane: LaneKey, epoch: u64, outgoing: Vec<OutgoingEnvelope>) -> bool {
        let mut lanes = self.lock();
        let is_new = !lanes.contains_key(&lane);
        let outbox = lanes.entry(lane).or_insert_with(|| LaneOutbox {
            epoch,
            waiting: BTreeMap::new(),
        });
        if outbox.epoch != epoch {
            // The lane was opened anew: what it wants sent is what counts.
            outbox.waiting.clear();
            outbox.epoch = epoch;
        }
        outbox
            .waiting
            .extend(outgoing.into_iter().map(|bytes| (bytes.nonce, bytes)));
        is_new
    }

    /// How much waits for the lane that has most.
    pub(crate) fn longest(&self) -> usize {
        let lanes = self.lock();
        let lengths = lanes.values().map(|outbox| outbox.waiting.len());
        lengths.max().unwrap_or(0)
    }

    /// The next batch; `None` (and the lane's task ends) when nothing waits.
    fn take(&self, lane: LaneKey) -> Option<(u64, Vec<OutgoingEnvelope>)> {
        let mut lanes = self.lock();
        let outbox = lanes.get_mut(&lane)?;
        let mut batch = Vec::new();
        while batch.len() < SEND_MAX
            && let Some((_, bytes)) = outbox.waiting.pop_first()
        {
            batch.push(bytes);
        }
        if batch.is_empty() {
            lanes.remove(&lane);
            return None;
        }
        Some((outbox.epoch, batch))
    }
}

/// Takes bytes of a lane. Never waits: memory is bounded by the lane's mempool depth.
pub(crate) fn hand_over(
    core: &Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    outgoing: Vec<OutgoingEnvelope>,
) {
    if core.outbox.add(lane, epoch, outgoing) {
        let core_for_task = Arc::clone(core);
        core.tasks.spawn(
            "broadcast",
            async move { send_all(&core_for_task, lane).await },
        );
    }
}

async fn send_all(core: &Core, lane: LaneKey) {
    let part = core.chain(lane.chain_id);
    while let Some((epoch, batch)) = core.outbox.take(lane) {
        let outcomes = send(core, lane, &batch).await;
        part.sent_bell.notify_one();
        let inputs = batch.into_iter().zip(outcomes).map(|(bytes, outcome)| {
            counter!("lanekeeper_tx_submit_total", "result" => outcome_label(&outcome))
                .increment(1);
            Input::Sent {
                hash: bytes.hash,
                nonce: bytes.nonce,
                outcome,
            }
        });
        core.give(lane, epoch, inputs.collect()).await;
    }
}

/// Sends while the lease can be trusted, and not a byte longer: dropping the send closes its connection.
async fn send(core: &Core, lane: LaneKey, batch: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
    let clock = &core.ports.clock;
    let now = clock.monotonic();
    let allowed = core.leases.may_send_for(lane, now);
    if allowed.is_zero() {
        return vec![SendOutcome::NotSent(now); batch.len()];
    }
    tokio::select! {
        biased;
        outcomes = core.chain(lane.chain_id).chain.send(batch) => {
            assert_eq!(outcomes.len(), batch.len(), "the chain answers every envelope");
            outcomes
        }
        () = clock.sleep(allowed) => {
            let why = "the lease could not be trusted any longer while it was sent";
            vec![SendOutcome::Unknown(why.into()); batch.len()]
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
        SendOutcome::Rejected(_) => "rejected",
        SendOutcome::Unknown(_) => "unknown",
        SendOutcome::NotSent(_) => "not_sent",
    }
}
