//! The call of a lane's shard: bounded, and answered by the commit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::LaneKey;
use domain::lane::AdmittedRequest;
use metrics::counter;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::core::Core;
use crate::node::Refusal;
use crate::shard::{Message, PendingCreate, ShardOutcome};

/// How long a caller is held while the outcome of its commit is unknown.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Sends the request to its lane's shard and waits for the commit.
pub(super) async fn call_lane(
    core: &Core,
    lane: LaneKey,
    request: AdmittedRequest,
) -> Result<ShardOutcome, Refusal> {
    let unknown = Refusal::UnknownSigner(lane.chain_id, lane.signer);
    let entry = core.lanes.entries.get(&lane).ok_or(unknown)?;
    let full = || {
        counter!("lanekeeper_inbox_rejected_total").increment(1);
        Refusal::Busy
    };
    let _slot = CallerSlot::acquire(&entry.callers, core.config.inbox / 2).ok_or_else(full)?;
    let (reply, answered) = oneshot::channel();
    let create = PendingCreate {
        request,
        reply,
        arrived_at: core.ports.clock.monotonic(),
        tries: 0,
        is_repeat: false,
        maybe_stored: false,
        balance_queries: 0,
        is_shortfall_confirmed: !core.chain(lane.chain_id).has_second_endpoint,
    };
    match core.lanes.shards[entry.shard].try_send(Message::Create { lane, create }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return Err(full()),
        Err(TrySendError::Closed(_)) => return Err(Refusal::Draining),
    }
    tokio::select! {
        biased;
        outcome = answered => outcome.map_err(|_gone| Refusal::OutcomeUnknown),
        () = core.ports.clock.sleep(ANSWER_DEADLINE) => Err(Refusal::OutcomeUnknown),
    }
}

/// A slot among the callers of one lane. A hot lane takes at most half of its shard's inbox, so that the others
/// still get in.
struct CallerSlot<'a>(&'a AtomicUsize);

impl<'a> CallerSlot<'a> {
    fn acquire(callers: &'a AtomicUsize, max: usize) -> Option<Self> {
        let slot = Self(callers);
        let before = callers.fetch_add(1, Ordering::Relaxed);
        (before < max.max(1)).then_some(slot) // a slot that is refused is freed by its drop
    }
}

impl Drop for CallerSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_lane_refuses_callers_until_one_leaves() {
        let callers = AtomicUsize::new(0);
        let first = CallerSlot::acquire(&callers, 2).expect("free");
        let _second = CallerSlot::acquire(&callers, 2).expect("free");
        assert!(CallerSlot::acquire(&callers, 2).is_none());
        assert_eq!(
            callers.load(Ordering::Relaxed),
            2,
            "a refusal leaves nothing"
        );
        drop(first);
        assert!(CallerSlot::acquire(&callers, 2).is_some());
    }

    #[test]
    fn lane_with_the_smallest_inbox_takes_one_caller() {
        let callers = AtomicUsize::new(0);
        let _only = CallerSlot::acquire(&callers, 0).expect("at least one");
        assert!(CallerSlot::acquire(&callers, 0).is_none());
    }
}
