//! How much waits for a worker, as the metrics tell it.

use std::sync::{Arc, Mutex, PoisonError};

use metrics::gauge;

/// How many calls wait for a worker, and how many `with_nonce`s for a turn in its lanes.
const DEPTH: &str = "lanekeeper_nonce_queue_depth";

/// What waits for one worker.
pub(super) struct Depth {
    worker: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    calls: usize,
    turns: usize,
}

/// Somebody waits for a turn until this is dropped.
pub(super) struct WaitsForTurn {
    depth: Arc<Depth>,
    /// How many did when it came, with this one.
    count: usize,
}

impl Depth {
    pub(super) fn of(worker: usize) -> Self {
        let waiting = Mutex::default();
        Self { worker, waiting }
    }

    /// So many calls wait now.
    pub(super) fn calls(&self, count: usize) {
        self.change(|waiting| waiting.calls = count);
    }

    pub(super) fn wait_for_turn(self: &Arc<Self>) -> WaitsForTurn {
        let count = self.change(|waiting| {
            waiting.turns += 1;
            waiting.turns
        });
        let depth = Arc::clone(self);
        WaitsForTurn { depth, count }
    }

    /// Tells it under the lock, so that the last word is the right one.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a queue is far shorter than 2^52"
    )]
    fn change<T>(&self, change: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut waiting);
        let all = waiting.calls + waiting.turns;
        gauge!(DEPTH, "worker" => self.worker.to_string()).set(all as f64);
        changed
    }
}

impl WaitsForTurn {
    pub(super) fn are_more_than(&self, capacity: usize) -> bool {
        self.count > capacity
    }
}

impl Drop for WaitsForTurn {
    fn drop(&mut self) {
        self.depth.change(|waiting| {
            waiting.turns = waiting.turns.checked_sub(1).expect("it was counted");
        });
    }
}
