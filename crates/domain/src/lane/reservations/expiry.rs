//! What becomes of reservations without a report of their holders: time passes, and the chain shows things.

use alloy_primitives::B256;

use super::{RESERVE_TIMEOUT, ReservationTerms};
use crate::lane::{AccountNonces, ChainQuery, Effect, Lane, StepContext};
use crate::{Nonce, SubState, Timestamp, Tx};

impl Lane {
    /// A reserved nonce is consumed at finality depth, by a transaction that its holder did not name.
    /// `is_named`: a tx of the store has that transaction as its attempt already, as when a former holder released
    /// the nonce and its transaction was mined after all.
    pub(in crate::lane) fn on_reserved_consumed(
        &mut self,
        nonce: Nonce,
        by: Option<B256>,
        is_named: bool,
        cx: &mut StepContext,
    ) {
        // It belongs to the account, so the nonce was reserved for it: watched, and closed by its receipt.
        if let Some(hash) = by.filter(|_| !is_named) {
            if self.attach_named(nonce, hash, cx).is_ok() {
                cx.effects.push(Effect::FetchReceipts(vec![hash]));
            }
            return;
        }
        let Some(mut slot) = self.slots.remove(nonce) else {
            return;
        };
        self.ledger.mark_consumed(nonce);
        // A hash belongs to one attempt only, so this reservation ends without one.
        slot.tx.tx_hash = by.or(slot.tx.tx_hash);
        let reason = match by {
            Some(hash) => format!("nonce {nonce} was consumed by a former holder's {hash}"),
            None => {
                format!("nonce {nonce} is consumed, and no endpoint shows by which transaction")
            }
        };
        cx.effects.extend(slot.hashes().map(Effect::Unwatch));
        self.journal
            .end_failed(slot.tx, SubState::ForeignNonce, reason, cx);
    }

    /// A holder that asks for a nonce may know more of the chain than the lane does: then the lane queries the
    /// chain before it reserves.
    pub(in crate::lane) fn check_chain_before_reserving(&mut self, tx: &Tx, cx: &mut StepContext) {
        let terms = ReservationTerms::decode(&tx.request.payload).filter(|_| self.is_reserving());
        let Some(terms) = terms else {
            return;
        };
        if self.chain.nonces().is_none() || self.rules.nonce.chain_query == ChainQuery::Off {
            return; // no nonce is allocated before the chain is known, if it is to be known
        }
        let holder_knows_more = terms.at_least > self.chain.used_below();
        // What was pending there as a foreign transaction seems to be gone.
        let holder_sees_less = self.ledger.has_contested_from(terms.at_least);
        if holder_knows_more || holder_sees_less {
            // A query that is under way may have started before the holder saw the chain.
            let to_come = 1_u8.saturating_add(u8::from(self.chain.is_querying()));
            self.reservations.await_answers(to_come);
            self.query_with_quorum(cx);
        }
    }

    /// An answer of the chain is here; queries again while reservations need another one.
    pub(in crate::lane) fn count_awaited_answer(&mut self, cx: &mut StepContext) {
        self.reservations.count_answer();
        if self.reservations.awaits_answers() {
            self.query_with_quorum(cx);
        }
    }

    /// Whether a receipt of a named transaction must wait: as far as is known its nonce is not consumed, so the
    /// transaction may be another account's, or have another nonce. The chain is queried.
    pub(in crate::lane) fn is_unproven(&mut self, nonce: Nonce, cx: &mut StepContext) -> bool {
        let is_queried = self.rules.nonce.chain_query != ChainQuery::Off;
        let waits = self.is_reserving() && is_queried && self.chain.latest() <= nonce;
        if waits {
            self.reservations.add_unproven(nonce);
            self.query_with_quorum(cx);
        }
        waits
    }

    /// The chain's nonce is known anew: receipts that waited for it are fetched again.
    pub(in crate::lane) fn read_proven_receipts(&mut self, latest: Nonce, cx: &mut StepContext) {
        if self.reservations.take_proven(latest) {
            self.fetch_missing_receipts(latest, cx);
        }
    }

    /// At every block, while receipts wait: the endpoint that answered before may have been behind.
    pub(in crate::lane) fn query_for_unproven(&mut self, cx: &mut StepContext) {
        let slots = &self.slots;
        let is_open = |nonce| slots.get(nonce).is_some_and(|slot| !slot.is_mined());
        if self.reservations.retain_unproven(is_open) {
            self.query_with_quorum(cx);
        }
    }

    /// Whether the next free nonce blocks slots above it: it is reserved without room. (A reorg may have opened
    /// more than the window allows.)
    pub(in crate::lane) fn reserves_a_blocker(&self) -> bool {
        let free = self.ledger.smallest_gap_from(self.chain.used_below());
        self.is_reserving() && free.is_some_and(|gap| Some(gap) < self.slots.highest())
    }

    /// A gap that is consumed or pending, as far as is known by now, is not reserved.
    pub(in crate::lane) fn contest_used_gaps(&mut self) {
        if self.is_reserving() {
            self.ledger.contest_gaps_below(self.chain.used_below());
        }
    }

    /// Whether the holder no longer waits for its nonce, which would then be reserved in vain until it times out.
    pub(in crate::lane) fn is_reserve_timed_out(&self, tx: &Tx, now: Timestamp) -> bool {
        let rules = self.rules.reservations;
        let waits_for = rules.map(|rules| rules.timeout_of(tx).max(RESERVE_TIMEOUT));
        waits_for.is_some_and(|time| now.since(tx.request.created_at) > time)
    }

    /// Ends a reservation that never got a nonce.
    pub(in crate::lane) fn end_unreserved(&mut self, tx: Tx, cx: &mut StepContext) {
        let reason = "the reserve request timed out before a nonce was free".to_owned();
        cx.writes.queued_removed.push(tx.id);
        self.journal.end_failed(tx, SubState::Cancelled, reason, cx);
    }

    /// Counts how long nonces are reserved, and releases those whose holder reported nothing for too long, if the
    /// chain shows nothing of them: queried after their time was over, at every endpoint that must agree.
    pub(in crate::lane) fn expire_reservations(&mut self, cx: &mut StepContext) {
        let Some(rules) = self.rules.reservations else {
            return;
        };
        let passed = self.reservations.tick(cx.now);
        let answers = self.chain.answers();
        let with_pending = answers.saturating_add(u64::from(self.chain.is_querying()));
        let mut is_overdue = false;
        let mut expired = Vec::new();
        // A mined slot above a nonce shows that it is consumed, whatever a node that is behind reports.
        let mined = self.slots.highest_mined();
        let consumed_below = mined.map_or(self.ledger.consumed_below(), Nonce::next);
        for (nonce, slot) in self.slots.range_mut(..) {
            let timeout = rules.timeout_of(&slot.tx).saturating_add(rules.grace);
            let Some(time) = slot.reserved_time() else {
                continue;
            };
            if time.count(passed) < timeout {
                continue;
            }
            let answers_before = *time.answers_before.get_or_insert(with_pending);
            is_overdue = true;
            let shows_nothing = self.chain.nonces().is_some_and(|known| {
                let AccountNonces { latest, pending } = known.nonces;
                known.includes_pools && latest <= nonce && pending <= nonce
            }) && consumed_below <= nonce;
            let is_checked = answers > answers_before && shows_nothing;
            if is_checked {
                expired.push(nonce);
            }
        }
        for nonce in expired {
            let reason =
                "its holder reported nothing until it timed out, and the chain shows nothing of it";
            self.release_reservation(nonce, reason, cx).ok(); // one that is mined stays
        }
        if is_overdue {
            self.keep_querying_with_quorum(cx);
        }
    }
}
