//! Whether batches or single calls are faster for many envelopes. Nodes differ: some process the calls of a batch
//! one by one and single calls concurrently.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::rpc::health::average;
use crate::rpc::limits::{BURST_MIN, BURSTS_BETWEEN_PROBES, CONCURRENT_SINGLE_SENDS_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    Batches,
    Singles,
}

/// The measurements of one endpoint.
#[derive(Default)]
pub(in crate::rpc) struct SendStrategy {
    timings: Mutex<SendTimings>,
    needs_nonce_order: AtomicBool,
}

#[derive(Default)]
struct SendTimings {
    /// Time per envelope.
    batches: Option<Duration>,
    singles: Option<Duration>,
    bursts: u32,
}

impl SendStrategy {
    /// The mode for `count` envelopes: the faster one. Large sends try the other one periodically.
    pub(super) fn choose(&self, count: usize) -> SendMode {
        let mut timings = self.lock_timings();
        let faster = timings.faster();
        if count < BURST_MIN {
            return faster;
        }
        timings.bursts = timings.bursts.wrapping_add(1);
        if timings.batches.is_none() {
            return SendMode::Batches;
        }
        if timings.singles.is_none() {
            return SendMode::Singles;
        }
        match (timings.bursts.is_multiple_of(BURSTS_BETWEEN_PROBES), faster) {
            (true, SendMode::Batches) | (false, SendMode::Singles) => SendMode::Singles,
            (true, SendMode::Singles) | (false, SendMode::Batches) => SendMode::Batches,
        }
    }

    /// Records the duration of a send; small ones are ignored.
    pub(super) fn record_timing(&self, mode: SendMode, count: usize, took: Duration) {
        let Ok(envelopes) = u32::try_from(count) else {
            return;
        };
        if count < BURST_MIN {
            return;
        }
        let mut timings = self.lock_timings();
        let slot = match mode {
            SendMode::Batches => &mut timings.batches,
            SendMode::Singles => &mut timings.singles,
        };
        *slot = Some(average(*slot, took / envelopes));
    }

    /// The most concurrent single calls.
    pub(super) fn concurrency_max(&self) -> usize {
        if self.needs_nonce_order.load(Ordering::Relaxed) {
            1
        } else {
            CONCURRENT_SINGLE_SENDS_MAX
        }
    }

    /// The node accepts no tx before its predecessor: from now on one call at a time.
    pub(super) fn require_nonce_order(&self) {
        self.needs_nonce_order.store(true, Ordering::Relaxed);
    }

    fn lock_timings(&self) -> std::sync::MutexGuard<'_, SendTimings> {
        self.timings
            .lock()
            .expect("nothing panics while holding it")
    }
}

impl SendTimings {
    fn faster(&self) -> SendMode {
        match (self.batches, self.singles) {
            (Some(batches), Some(singles)) if singles < batches => SendMode::Singles,
            (Some(_) | None, _) => SendMode::Batches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_mode_is_found_again_after_a_change() {
        let strategy = SendStrategy::default();
        let us = |singles: u64| match strategy.choose(100) {
            SendMode::Batches => {
                strategy.record_timing(SendMode::Batches, 100, Duration::from_micros(100 * 1000))
            }
            SendMode::Singles => {
                strategy.record_timing(SendMode::Singles, 100, Duration::from_micros(100 * singles))
            }
        };
        assert_eq!(strategy.choose(2), SendMode::Batches);
        us(400);
        us(400);
        assert_eq!(strategy.choose(2), SendMode::Singles);
        let chosen =
            |count| -> Vec<SendMode> { (0..count).map(|_| strategy.choose(100)).collect() };
        let batches = chosen(640)
            .iter()
            .filter(|mode| **mode == SendMode::Batches)
            .count();
        assert_eq!(batches, 10);
        // Single calls have become slow.
        for _ in 0..20 {
            us(5000);
        }
        assert_eq!(strategy.choose(2), SendMode::Batches);
    }

    #[test]
    fn small_sends_are_not_measured() {
        let strategy = SendStrategy::default();
        strategy.record_timing(SendMode::Singles, 31, Duration::from_secs(1));
        strategy.record_timing(SendMode::Batches, 31, Duration::from_secs(9));
        assert_eq!(strategy.choose(31), SendMode::Batches);
    }
}
