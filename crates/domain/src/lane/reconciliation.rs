//! What a lane that was just loaded does not know yet about its nonces, and what its store may have lost.
//!
//! Invariants: the nonces of the store are compared with the chain once, by the first credible answer after the
//! load. A changed history of the store casts doubt on the lane until the chain's nonce agrees with the cursor; a
//! consumed nonce below the recorded bound may be ours until every tx below it is resolved.

use std::ops::Range;

use crate::Nonce;

/// The comparison of the store with the chain that is still open.
#[derive(Clone, Debug)]
pub(super) struct Reconciliation {
    /// The store's nonces, until they are compared with the chain.
    pub(super) stored: Option<StoredNonces>,
    /// Whether this keeper sent what the rows show as sent. After an ownership change that is not known: all of it is
    /// sent again.
    pub(super) are_deliveries_known: bool,
    loss: PossibleLoss,
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

/// Whether the store may have lost commits of this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PossibleLoss {
    None,
    /// The store's history changed, and the chain has not agreed with the cursor yet.
    HistorySuspect {
        below: Nonce,
    },
    /// The chain agrees with the cursor. Attempts below this nonce may still be lost.
    PossiblyLostBelow(Nonce),
}

impl Reconciliation {
    pub(super) fn new(stored: StoredNonces) -> Self {
        Self {
            stored: Some(stored),
            are_deliveries_known: false,
            loss: PossibleLoss::None,
        }
    }

    /// Whether no tx held this nonce at load and it was not known as consumed.
    pub(super) fn was_unheld(&self, nonce: Nonce) -> bool {
        self.stored.as_ref().is_some_and(|stored| {
            let is_held = stored.held.iter().any(|run| run.contains(&nonce.0));
            (stored.consumed_below..stored.cursor).contains(&nonce) && !is_held
        })
    }

    /// The store's history changed since the lane was last written.
    pub(super) fn suspect_history(&mut self, cursor: Nonce) {
        self.loss = PossibleLoss::HistorySuspect { below: cursor };
    }

    pub(super) fn is_history_suspect(&self) -> bool {
        matches!(self.loss, PossibleLoss::HistorySuspect { .. })
    }

    /// The chain agrees with the cursor: no allocated nonce was lost.
    pub(super) fn trust_cursor(&mut self) {
        if let PossibleLoss::HistorySuspect { below } = self.loss {
            self.loss = PossibleLoss::PossiblyLostBelow(below);
        }
    }

    /// Whether a lost attempt of ours may have consumed this nonce. A lost commit may have allocated nonces above
    /// the cursor too, but no more than a credible jump.
    pub(super) fn may_be_lost(&self, nonce: Nonce, max_chain_jump: u64) -> bool {
        match self.loss {
            PossibleLoss::None => false,
            PossibleLoss::HistorySuspect { below } | PossibleLoss::PossiblyLostBelow(below) => {
                nonce.0 < below.0.saturating_add(max_chain_jump)
            }
        }
    }

    /// Whether the last tx that may have been lost is resolved by now; says so once.
    pub(super) fn finish(&mut self, floor: Nonce) -> bool {
        let PossibleLoss::PossiblyLostBelow(below) = self.loss else {
            return false;
        };
        let is_over = floor >= below;
        if is_over {
            self.loss = PossibleLoss::None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect() -> Reconciliation {
        let mut loaded = Reconciliation::new(StoredNonces {
            cursor: Nonce(9),
            held: std::iter::once(4..6).collect(),
            consumed_below: Nonce(3),
        });
        loaded.suspect_history(Nonce(9));
        loaded
    }

    #[test]
    fn suspect_history_ends_only_after_the_cursor_is_trusted() {
        let mut loaded = suspect();
        assert!(!loaded.finish(Nonce(9)), "the chain has not answered");
        loaded.trust_cursor();
        assert!(!loaded.finish(Nonce(8)), "a tx below is open");
        assert!(loaded.may_be_lost(Nonce(18), 10) && !loaded.may_be_lost(Nonce(19), 10));
        assert!(loaded.finish(Nonce(9)));
        assert!(!loaded.finish(Nonce(9)), "once");
        assert!(!loaded.may_be_lost(Nonce(0), 10));
    }

    #[test]
    fn unheld_nonces_lie_between_the_bounds_of_the_load() {
        let loaded = suspect();
        let unheld: Vec<u64> = (0..12).filter(|n| loaded.was_unheld(Nonce(*n))).collect();
        assert_eq!(unheld, [3, 6, 7, 8]);
    }
}
