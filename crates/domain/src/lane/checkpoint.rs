//! Retracting accepts that were not committed, so that a turn continues without a request whose id is stored already.
//!
//! Accepting requests and signing their first attempts adds slots and changes the small parts of a lane, and never a
//! slot that was there before. So a checkpoint copies the small parts alone, however many txs are in flight.

use super::chain::ChainKnowledge;
use super::holds::Holds;
use super::journal::Journal;
use super::ledger::NonceLedger;
use super::mempool::MempoolControl;
use super::paging::Paging;
use super::reconciliation::Reconciliation;
use super::reservations::ReservationTracker;
use super::{Lane, Tx};

/// A lane as it was before the accepts of a turn.
#[derive(Clone, Debug)]
pub struct LaneCheckpoint {
    journal: Journal,
    holds: Holds,
    ledger: NonceLedger,
    paging: Paging,
    chain: ChainKnowledge,
    mempool: MempoolControl,
    reservations: ReservationTracker,
    reconciliation: Reconciliation,
}

impl Lane {
    /// The present state, for [`Lane::retract_accepts`].
    #[must_use]
    pub fn checkpoint(&self) -> LaneCheckpoint {
        LaneCheckpoint {
            journal: self.journal.clone(),
            holds: self.holds.clone(),
            ledger: self.ledger.clone(),
            paging: self.paging.clone(),
            chain: self.chain.clone(),
            mempool: self.mempool.clone(),
            reservations: self.reservations.clone(),
            reconciliation: self.reconciliation.clone(),
        }
    }

    /// Retracts the accepts since a checkpoint, of which nothing was committed. Since then only requests were accepted
    /// and their first attempts signed; `accepted` are the rows of these requests.
    pub fn retract_accepts<'a>(
        &mut self,
        checkpoint: LaneCheckpoint,
        accepted: impl IntoIterator<Item = &'a Tx>,
    ) {
        for tx in accepted {
            let is_its_slot = |nonce| {
                self.slots
                    .get(nonce)
                    .is_some_and(|slot| slot.tx.id == tx.id)
            };
            if let Some(nonce) = tx.nonce.filter(|nonce| is_its_slot(*nonce)) {
                self.slots.remove(nonce);
            }
        }
        let LaneCheckpoint {
            journal,
            holds,
            ledger,
            paging,
            chain,
            mempool,
            reservations,
            reconciliation,
        } = checkpoint;
        self.journal = journal;
        self.holds = holds;
        self.ledger = ledger;
        self.paging = paging;
        self.chain = chain;
        self.mempool = mempool;
        self.reservations = reservations;
        self.reconciliation = reconciliation;
    }
}
