//! The queue depth of a worker, as a metric.

use std::sync::Arc;

use metrics::gauge;
use parking_lot::Mutex;

/// Calls that wait for a worker, and `with_nonce` sections that wait in its lanes.
const DEPTH: &str = "lanekeeper_nonce_queue_depth";

/// What waits for one worker.
pub(super) struct QueueDepth {
    worker: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    calls: usize,
    sections: usize,
}

/// A waiting section, until it is dropped.
pub(super) struct SectionWait {
    depth: Arc<QueueDepth>,
    /// Number of waiting sections when it came, itself included.
    count: usize,
}

impl QueueDepth {
    pub(super) fn new(worker: usize) -> Self {
        let waiting = Mutex::default();
        Self { worker, waiting }
    }

    /// Sets the number of waiting calls.
    pub(super) fn set_calls(&self, count: usize) {
        self.change(|waiting| waiting.calls = count);
    }

    pub(super) fn begin_section_wait(self: &Arc<Self>) -> SectionWait {
        let count = self.change(|waiting| {
            waiting.sections += 1;
            waiting.sections
        });
        let depth = Arc::clone(self);
        SectionWait { depth, count }
    }

    /// Sets the gauge under the lock, so that the last value is the right one.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a queue is far shorter than 2^52"
    )]
    fn change<T>(&self, change: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.waiting.lock();
        let changed = change(&mut waiting);
        let all = waiting.calls + waiting.sections;
        gauge!(DEPTH, "worker" => self.worker.to_string()).set(all as f64);
        changed
    }
}

impl SectionWait {
    pub(super) fn exceeds(&self, capacity: usize) -> bool {
        self.count > capacity
    }
}

impl Drop for SectionWait {
    fn drop(&mut self) {
        self.depth.change(|waiting| {
            waiting.sections = waiting.sections.checked_sub(1).expect("it was counted");
        });
    }
}
