//! A commit whose outcome is unknown: its callers wait until a regrant has proved whether the batch landed.

use std::time::Duration;

use domain::{LaneKey, TxId};
use metrics::counter;

use super::{EventCounts, LaneCell, PendingCreate, Shard, ShardOutcome, refuse_creates};
use crate::node::{AcceptedTx, Refusal};
use crate::ports::RegrantOutcome;

/// How long callers are held while the store is queried.
pub(super) const UNKNOWN_COMMIT_PATIENCE: Duration = Duration::from_secs(2);

/// A batch with an unknown outcome, and the callers that it would answer.
pub(crate) struct UnknownBatch {
    pub(crate) batch_seq_before: u64,
    pub(crate) creates: Vec<PendingCreate>,
    pub(crate) records: Vec<AcceptedTx>,
    pub(crate) changed: Vec<TxId>,
    pub(crate) event_counts: EventCounts,
}

impl Shard {
    /// A regrant has proved what became of the batch: the callers are answered, and the lane is read again.
    pub(super) fn on_unknown_commit_resolved(&mut self, key: LaneKey, outcome: RegrantOutcome) {
        let (mut batch, mut waiting) = match self.lanes.remove(&key) {
            Some(LaneCell::UnknownCommit { batch, waiting, .. }) => (batch, waiting),
            cell @ (Some(_) | None) => {
                self.lanes.extend(cell.map(|cell| (key, cell)));
                return;
            }
        };
        match outcome {
            RegrantOutcome::Held {
                batch_seq,
                lease_grant,
            } if batch_seq > batch.batch_seq_before => {
                self.announce(key, lease_grant, batch.changed, &batch.event_counts);
                for (create, record) in batch.creates.into_iter().zip(batch.records) {
                    create.answer(ShardOutcome::Accepted(Box::new(record)));
                }
            }
            // It never landed: the requests are still to be done.
            RegrantOutcome::Held { .. } => drop(waiting.splice(0..0, batch.creates)),
            // Another node keeps the lane. A batch that landed before is found by its request ids; until then a
            // refusal must not claim that nothing was stored.
            RegrantOutcome::Fenced => {
                tracing::warn!(lane = %key, "fenced: another node keeps this lane now");
                counter!("lanekeeper_lease_fenced_total", "op" => "resolve").increment(1);
                for create in &mut batch.creates {
                    create.maybe_stored = true;
                }
                drop(waiting.splice(0..0, batch.creates));
            }
        }
        self.open_lane(key, waiting);
    }

    /// Answers callers that waited too long for the store: an uncertain answer now is worth more to them than a
    /// certain one later.
    pub(super) fn answer_overdue_callers(&mut self) {
        let now = self.core.ports.clock.monotonic();
        for cell in self.lanes.values_mut() {
            let LaneCell::UnknownCommit {
                batch,
                waiting,
                since,
            } = cell
            else {
                continue;
            };
            if now.since(*since) < UNKNOWN_COMMIT_PATIENCE {
                continue;
            }
            batch.records.clear();
            refuse_creates(batch.creates.drain(..), &Refusal::OutcomeUnknown);
            refuse_creates(waiting.drain(..), &outcome_pending());
        }
    }
}

pub(super) fn outcome_pending() -> Refusal {
    Refusal::StoreUnavailable(
        "the outcome of an earlier commit of this lane is not known yet".into(),
    )
}
