//! What a lane that reserves nonces waits for: answers of the chain before it reserves the next one, proof for
//! receipts that holders named, and time.
//!
//! Invariants: a receipt counts only once the chain shows its nonce as consumed, because the named transaction may
//! belong to another account. Time is counted in ticks of this keeper, each at most [`TICK_MAX`], so that a
//! clock that is set forward ends no reservation.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Nonce, Timestamp};

/// What one tick counts at most for the time that a nonce is reserved.
const TICK_MAX: Duration = Duration::from_secs(2);

/// What the reservations of a lane wait for.
#[derive(Clone, Debug, Default)]
pub(in crate::lane) struct ReservationTracker {
    /// How many more answers of the chain are needed before a nonce is reserved.
    answers_awaited: u8,
    /// Nonces whose named transaction has a receipt, while the chain does not show them as consumed.
    unproven: BTreeSet<Nonce>,
    ticked_at: Option<Timestamp>,
}

impl ReservationTracker {
    pub(in crate::lane) fn awaits_answers(&self) -> bool {
        self.answers_awaited > 0
    }

    /// No nonce is reserved before so many more answers of the chain.
    pub(super) fn await_answers(&mut self, count: u8) {
        self.answers_awaited = self.answers_awaited.max(count);
    }

    pub(super) fn count_answer(&mut self) {
        self.answers_awaited = self.answers_awaited.saturating_sub(1);
    }

    pub(super) fn add_unproven(&mut self, nonce: Nonce) {
        self.unproven.insert(nonce);
    }

    /// Whether some of the receipts that waited are proven, because the chain's nonce passed theirs.
    pub(super) fn take_proven(&mut self, latest: Nonce) -> bool {
        let waiting = self.unproven.split_off(&latest);
        !std::mem::replace(&mut self.unproven, waiting).is_empty()
    }

    /// Keeps the receipts of nonces that are still open; returns whether any waits.
    pub(super) fn retain_unproven(&mut self, is_open: impl Fn(Nonce) -> bool) -> bool {
        self.unproven.retain(|nonce| is_open(*nonce));
        !self.unproven.is_empty()
    }

    /// How much time this tick counts.
    pub(super) fn tick(&mut self, now: Timestamp) -> Duration {
        let before = self.ticked_at.replace(now);
        before.map_or(Duration::ZERO, |before| now.since(before).min(TICK_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_is_set_forward_counts_one_tick() {
        let mut tracker = ReservationTracker::default();
        assert_eq!(tracker.tick(Timestamp(5_000)), Duration::ZERO);
        assert_eq!(tracker.tick(Timestamp(5_300)), Duration::from_millis(300));
        assert_eq!(tracker.tick(Timestamp(9_000_000)), TICK_MAX);
    }

    #[test]
    fn receipt_is_proven_when_the_chain_passes_its_nonce() {
        let mut tracker = ReservationTracker::default();
        tracker.add_unproven(Nonce(4));
        assert!(!tracker.take_proven(Nonce(4)));
        assert!(tracker.take_proven(Nonce(5)));
        assert!(!tracker.take_proven(Nonce(5)), "once");
    }
}
