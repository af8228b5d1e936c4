//! What a lane that was just loaded does not know yet about its nonces, and what its store may have lost.
//!
//! Invariant: the nonces of the store are compared with the chain once, by the first credible answer after the load.

use std::ops::Range;

use super::possible_loss::PossibleLoss;
use super::unrecorded::UnrecordedTransactions;
use crate::{Nonce, Timestamp};

/// The comparison of the store with the chain that is still open.
#[derive(Clone, Debug)]
pub(super) struct Reconciliation {
    /// The store's nonces, until they are compared with the chain.
    pub(super) stored: Option<StoredNonces>,
    /// Whether this keeper sent what the rows show as sent. After an ownership change that is not known: all of it is
    /// sent again.
    pub(super) are_deliveries_known: bool,
    /// Set while commits of this lane may be lost.
    pub(super) loss: Option<PossibleLoss>,
    /// Transactions on chain that no tx recorded.
    pub(super) unrecorded: UnrecordedTransactions,
}

/// The nonces as the store had them at load.
#[derive(Clone, Debug)]
pub(super) struct StoredNonces {
    /// The cursor at load: nonces allocated since are not in `held`.
    pub(super) cursor: Nonce,
    pub(super) held: Vec<Range<u64>>,
    /// The bound at load: what a reorg reopened since is not in `held` either.
    pub(super) consumed_below: Nonce,
}

impl StoredNonces {
    pub(super) fn new(cursor: Nonce, held: Vec<Range<u64>>, consumed_below: Nonce) -> Self {
        Self {
            cursor,
            held,
            consumed_below,
        }
    }
}

impl Reconciliation {
    pub(super) fn new(stored: StoredNonces, unrecorded: UnrecordedTransactions) -> Self {
        Self {
            stored: Some(stored),
            are_deliveries_known: false,
            loss: None,
            unrecorded,
        }
    }

    /// Whether no tx held this nonce at load and it was not known as consumed.
    pub(super) fn was_unheld(&self, nonce: Nonce) -> bool {
        self.stored.as_ref().is_some_and(|stored| {
            let is_held = stored.held.iter().any(|run| run.contains(&nonce.0));
            (stored.consumed_below..stored.cursor).contains(&nonce) && !is_held
        })
    }

    /// Whether nothing may be allocated yet, because it is not known what lost commits have allocated.
    pub(super) fn is_searching(&self) -> bool {
        self.loss.as_ref().is_some_and(|loss| !loss.is_settled())
    }

    /// This keeper allocates a gap: its tx shows what consumes it once it is mined.
    pub(super) fn hold_unknown(&mut self, nonce: Nonce) {
        if let Some(loss) = &mut self.loss {
            loss.hold_unknown(nonce);
        }
    }

    /// A tx gave up a nonce at which it sent nothing: a lost commit may have done the same, and allocated it again.
    pub(super) fn add_unknown(&mut self, nonce: Nonce) {
        if let Some(loss) = &mut self.loss {
            loss.add_unknown([nonce]);
        }
    }

    /// Whether a lost attempt of ours may have consumed this nonce. A lost commit may have allocated nonces above
    /// the cursor too, but no more than a credible jump.
    pub(super) fn may_be_lost(&self, nonce: Nonce, max_chain_jump: u64) -> bool {
        let highest = |loss: &PossibleLoss| loss.cursor_at_load.0.saturating_add(max_chain_jump);
        self.loss
            .as_ref()
            .is_some_and(|loss| nonce.0 < highest(loss))
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        if let Some(loss) = &mut self.loss {
            loss.clamp_times(now);
        }
    }

    /// A node reports a transaction that is not ours: one that waited behind a missing nonce, where no query shows it.
    pub(super) fn reopen(&mut self) {
        if let Some(loss) = &mut self.loss {
            loss.reopen();
        }
    }

    /// Whether the last tx that may have been lost is resolved by now; returns true once.
    pub(super) fn finish(&mut self) -> bool {
        self.loss.take_if(|loss| loss.is_over()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> Reconciliation {
        let stored = StoredNonces::new(Nonce(9), std::iter::once(4..6).collect(), Nonce(3));
        Reconciliation::new(stored, UnrecordedTransactions::default())
    }

    #[test]
    fn nonces_up_to_a_credible_jump_above_the_cursor_may_be_lost() {
        let mut loaded = loaded();
        assert!(!loaded.may_be_lost(Nonce(0), 10));
        loaded.loss = Some(PossibleLoss::new(Nonce(9), [].into(), false));
        assert!(loaded.may_be_lost(Nonce(18), 10) && !loaded.may_be_lost(Nonce(19), 10));
        assert!(loaded.is_searching());
        assert!(!loaded.finish(), "the chain has not answered");
    }

    #[test]
    fn unheld_nonces_lie_between_the_bounds_of_the_load() {
        let loaded = loaded();
        let unheld: Vec<u64> = (0..12).filter(|n| loaded.was_unheld(Nonce(*n))).collect();
        assert_eq!(unheld, [3, 6, 7, 8]);
    }
}
