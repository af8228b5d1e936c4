//! Whether many envelopes go faster in batches or singly. Nodes differ: some work a batch off one
//! by one and take single calls side by side.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::rpc::health::average;
use crate::rpc::limits::{BURST_MIN, BURSTS_BETWEEN_TRIALS, SINGLE_SENDS_AT_ONCE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Batches,
    Singles,
}

/// What was measured at one endpoint.
#[derive(Default)]
pub(in crate::rpc) struct Ways {
    measured: Mutex<Measured>,
    keeps_nothing_ahead: AtomicBool,
}

#[derive(Default)]
struct Measured {
    /// Time per envelope.
    batches: Option<Duration>,
    singles: Option<Duration>,
    bursts: u32,
}

impl Ways {
    /// How to send so many. Few of them go the way that is known to be faster; many also try the
    /// other one now and then.
    pub(super) fn choose(&self, count: usize) -> Way {
        let mut measured = self.measured();
        let faster = measured.faster();
        if count < BURST_MIN {
            return faster;
        }
        measured.bursts = measured.bursts.wrapping_add(1);
        if measured.batches.is_none() {
            return Way::Batches;
        }
        if measured.singles.is_none() {
            return Way::Singles;
        }
        match (
            measured.bursts.is_multiple_of(BURSTS_BETWEEN_TRIALS),
            faster,
        ) {
            (true, Way::Batches) | (false, Way::Singles) => Way::Singles,
            (true, Way::Singles) | (false, Way::Batches) => Way::Batches,
        }
    }

    /// Takes in how long so many took.
    pub(super) fn note(&self, way: Way, count: usize, took: Duration) {
        let Ok(envelopes) = u32::try_from(count) else {
            return;
        };
        if count < BURST_MIN {
            return;
        }
        let mut measured = self.measured();
        let slot = match way {
            Way::Batches => &mut measured.batches,
            Way::Singles => &mut measured.singles,
        };
        *slot = Some(average(*slot, took / envelopes));
    }

    /// How many single calls may be under way at once.
    pub(super) fn width(&self) -> usize {
        if self.keeps_nothing_ahead.load(Ordering::Relaxed) {
            1
        } else {
            SINGLE_SENDS_AT_ONCE
        }
    }

    /// The node refuses what comes before its predecessor: from now on one at a time.
    pub(super) fn keeps_nothing_ahead(&self) {
        self.keeps_nothing_ahead.store(true, Ordering::Relaxed);
    }

    fn measured(&self) -> std::sync::MutexGuard<'_, Measured> {
        self.measured
            .lock()
            .expect("nothing panics while holding it")
    }
}

impl Measured {
    fn faster(&self) -> Way {
        match (self.batches, self.singles) {
            (Some(batches), Some(singles)) if singles < batches => Way::Singles,
            (Some(_) | None, _) => Way::Batches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let ways = Ways::default();
        let us = |singles: u64| match ways.choose(100) {
            Way::Batches => ways.note(Way::Batches, 100, Duration::from_micros(100 * 1000)),
            Way::Singles => ways.note(Way::Singles, 100, Duration::from_micros(100 * singles)),
        };
        assert_eq!(ways.choose(2), Way::Batches);
        us(400);
        us(400);
        assert_eq!(ways.choose(2), Way::Singles);
        let chosen = |count| -> Vec<Way> { (0..count).map(|_| ways.choose(100)).collect() };
        let batches = chosen(640)
            .iter()
            .filter(|way| **way == Way::Batches)
            .count();
        assert_eq!(batches, 10);
        // The node has become slow at single calls.
        for _ in 0..20 {
            us(5000);
        }
        assert_eq!(ways.choose(2), Way::Batches);
    }

    #[test]
    fn few_say_nothing() {
        let ways = Ways::default();
        ways.note(Way::Singles, 31, Duration::from_secs(1));
        ways.note(Way::Batches, 31, Duration::from_secs(9));
        assert_eq!(ways.choose(31), Way::Batches);
    }
}
