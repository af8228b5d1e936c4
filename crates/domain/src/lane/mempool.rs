//! How many attempts may be in nodes' pools at present, and when the node is probed for more.
//!
//! Invariants: a burst of refusals narrows the depth once. The depth grows only on an answer to a probe: a node
//! that says yes may still drop the transaction. After an answer that did not widen it, the next probe waits, each
//! time twice as long.

use std::time::Duration;

use crate::window::MempoolDepth;
use crate::{Nonce, Timestamp};

/// A burst of refusals within this time narrows the depth once.
const NARROW_PAUSE: Duration = Duration::from_secs(1);
/// The first pause between an answer that did not widen the depth and the next probe.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// For this long after a refusal for lack of room the depth does not grow again.
const GROW_PAUSE: Duration = Duration::from_secs(30);

/// The control of a lane's mempool depth.
#[derive(Clone, Debug)]
pub(super) struct MempoolControl {
    depth: MempoolDepth,
    narrowed_at: Option<Timestamp>,
    /// The highest nonce that a node should hold with all below it, while its pending nonce is queried for that.
    probed: Option<Nonce>,
    /// The last answers, while they said that no more fits.
    full: Option<FullPool>,
}

/// Answers in a row that did not widen the depth.
#[derive(Clone, Copy, Debug)]
struct FullPool {
    at: Timestamp,
    times: u32,
}

impl MempoolControl {
    pub(super) fn new(depth: MempoolDepth) -> Self {
        Self {
            depth,
            narrowed_at: None,
            probed: None,
            full: None,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.depth.limit()
    }

    /// Whether the node may be probed now: the depth is unknown, and no answer is awaited or recent.
    pub(super) fn can_probe(&self, now: Timestamp) -> bool {
        let is_paused = self.full.is_some_and(|full| {
            let pause = PROBE_PAUSE
                .saturating_mul(2_u32.saturating_pow(full.times))
                .min(PROBE_PAUSE_MAX);
            now.since(full.at) < pause
        });
        self.probed.is_none() && self.depth.is_growing() && !is_paused
    }

    /// The node's pending nonce is queried to see whether it holds everything up to `highest`.
    pub(super) fn start_probe(&mut self, highest: Nonce) {
        self.probed = Some(highest);
    }

    /// Applies the node's answer to a probe, if one is under way: everything below `held` is in its pool.
    pub(super) fn finish_probe(&mut self, latest: Nonce, held: Nonce, now: Timestamp) {
        let Some(highest_sent) = self.probed.take() else {
            return;
        };
        let refused_lately = |at: Timestamp| now.since(at) < GROW_PAUSE;
        let would_grow = held > highest_sent;
        let is_full = !would_grow || self.narrowed_at.is_some_and(refused_lately);
        let times = self.full.map_or(0, |full| full.times).saturating_add(1);
        self.full = is_full.then_some(FullPool { at: now, times });
        if !would_grow || !is_full {
            self.depth.learn(latest, held, highest_sent);
        }
    }

    /// A node refused for lack of room; `most` is what it holds, where it says so.
    pub(super) fn narrow(&mut self, most: Option<u64>, now: Timestamp) {
        let is_over = |at: Timestamp| now.since(at) >= NARROW_PAUSE;
        if self.narrowed_at.is_none_or(is_over) {
            self.narrowed_at = Some(now);
            self.depth.narrow(most);
        }
    }

    /// A node accepts envelopes again.
    pub(super) fn recover(&mut self) {
        self.depth.recover();
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        self.narrowed_at = self.narrowed_at.map(|at| at.min(now));
        if let Some(full) = &mut self.full {
            full.at = full.at.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_of_refusals_narrows_once() {
        let mut mempool = MempoolControl::new(MempoolDepth::auto());
        for millis in [0, 400, 999] {
            mempool.narrow(None, Timestamp(millis));
        }
        assert_eq!(mempool.limit(), MempoolDepth::AUTO_START / 2);
        mempool.narrow(None, Timestamp(1_000));
        assert_eq!(mempool.limit(), MempoolDepth::AUTO_START / 4);
    }

    #[test]
    fn probe_waits_longer_after_each_answer_that_shows_a_full_pool() {
        let mut mempool = MempoolControl::new(MempoolDepth::auto());
        for (at, pause) in [(0, 100), (1_000, 200), (2_000, 400)] {
            mempool.start_probe(Nonce(15));
            assert!(!mempool.can_probe(Timestamp(at)), "one at a time");
            mempool.finish_probe(Nonce(0), Nonce(15), Timestamp(at));
            let is_due = |millis: u64| mempool.can_probe(Timestamp(at.saturating_add(millis)));
            assert!(!is_due(pause - 1) && is_due(pause));
        }
        mempool.start_probe(Nonce(15));
        mempool.finish_probe(Nonce(0), Nonce(16), Timestamp(3_000));
        assert_eq!(mempool.limit(), MempoolDepth::AUTO_START * 2);
        assert!(mempool.can_probe(Timestamp(3_000)));
    }
}
