//! What holders report of their nonces.

use alloy_primitives::{B256, Bytes};

use crate::reservation::{Holder, Mark, MarkRefusal, Reservation};
use crate::{Attempt, AttemptKind, EventKind, Fees, Nonce, SubState, Timestamp, TxState};

use super::{MarkOutcome, reservation_from_row};
use crate::lane::slots::Slot;
use crate::lane::{Effect, Lane, Step, StepContext};

impl Lane {
    /// Applies what a holder reports of its nonce.
    pub fn mark(
        &mut self,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
        now: Timestamp,
    ) -> (Step, MarkOutcome) {
        let mut cx = StepContext::new(now);
        let outcome = self.apply_mark(nonce, holder, mark, &mut cx);
        self.request_work(&mut cx);
        (cx.into_step(self.journal.token()), outcome)
    }

    fn apply_mark(
        &mut self,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
        cx: &mut StepContext,
    ) -> MarkOutcome {
        let Some(mut marked) = self.reservation(nonce) else {
            return match nonce < self.ledger.cursor() {
                true => MarkOutcome::NotOpen {
                    is_free: self.is_free(nonce),
                },
                false => MarkOutcome::Refused(MarkRefusal::NotReserved(nonce)),
            };
        };
        if let Err(refusal) = marked.mark(holder, mark) {
            return MarkOutcome::Refused(refusal);
        }
        let applied = match mark {
            Mark::Submitted(hash) => self.attach_named(nonce, *hash, cx),
            Mark::Used(hash) => self
                .attach_named(nonce, *hash, cx)
                .inspect(|()| self.record_used(nonce, cx)),
            Mark::Recyclable { reason, .. } => self.release_reservation(nonce, reason, cx),
        };
        match applied {
            // What the chain shows weighs more than what was reported.
            Ok(()) => MarkOutcome::Taken(self.reservation(nonce).unwrap_or(marked)),
            Err(refusal) => MarkOutcome::Refused(refusal),
        }
    }

    /// Whether a nonce below the cursor that no slot holds is not consumed, as far as is known.
    fn is_free(&self, nonce: Nonce) -> bool {
        // The chain may not have been queried yet since the lane was loaded, or never is.
        self.ledger.is_unheld(nonce) || self.reconciliation.was_unheld(nonce)
    }

    /// The reservation at a nonce, as far as it is in memory.
    fn reservation(&self, nonce: Nonce) -> Option<Reservation> {
        let rules = self.rules.reservations?;
        let slot = self.slots.get(nonce)?;
        let reservation = reservation_from_row(self.key, &slot.tx, None, rules)?;
        Some(reservation.with_attempts(slot.attempts()))
    }

    /// A transaction that was made elsewhere stands at a reserved nonce: it is watched like any other.
    pub(super) fn attach_named(
        &mut self,
        nonce: Nonce,
        hash: B256,
        cx: &mut StepContext,
    ) -> Result<(), MarkRefusal> {
        let named_for = self.slots.nonce_of(hash);
        if let Some(at) = named_for.filter(|at| *at != nonce) {
            return Err(MarkRefusal::HashElsewhere { hash, nonce: at });
        }
        let Some(slot) = self.slots.get_mut(nonce) else {
            return Err(MarkRefusal::NotReserved(nonce));
        };
        if named_for.is_some() {
            // Perhaps another one was named in between: the last report counts.
            if !slot.is_mined() && slot.tx.tx_hash != Some(hash) {
                slot.tx.tx_hash = Some(hash);
                slot.tx.written.at = cx.now;
                cx.writes.updates.push(slot.tx.clone());
            }
            return Ok(());
        }
        let is_first = slot.attempts().is_empty();
        let kind = match is_first {
            true => AttemptKind::Original,
            false => AttemptKind::Replace,
        };
        let tx_hash = hash;
        let event = match is_first {
            true => EventKind::TxSubmitted { tx_hash, nonce },
            false => EventKind::TxReplaced {
                tx_hash,
                nonce,
                kind,
            },
        };
        if !slot.is_mined() {
            slot.tx.tx_hash = Some(hash);
            slot.tx
                .transition(TxState::Tracking, SubState::Submitted, cx.now);
        }
        slot.mark_submitted_elsewhere(cx.now);
        self.journal.emit_event(Some(&mut slot.tx), event, cx);
        let attempt = named_attempt(slot, nonce, hash, kind, cx.now);
        cx.writes.attempts.push(attempt.clone());
        cx.writes.updates.push(slot.tx.clone());
        cx.effects.push(Effect::Watch(hash));
        self.slots.add_attempt(nonce, attempt);
        Ok(())
    }

    /// The holder reports the nonce as used: that is written, and it cannot be released any more. The chain closes
    /// it.
    fn record_used(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let slot = self.slots.get_mut(nonce);
        if let Some(slot) = slot.filter(|slot| slot.tx.confirmed_at.is_none()) {
            slot.tx.confirmed_at = Some(cx.now);
            slot.tx.written.at = cx.now;
            cx.writes.updates.push(slot.tx.clone());
        }
    }

    /// A reserved nonce will not be used: the next reservation gets it.
    pub(super) fn release_reservation(
        &mut self,
        nonce: Nonce,
        reason: &str,
        cx: &mut StepContext,
    ) -> Result<(), MarkRefusal> {
        let inclusion = self.slots.get(nonce).map(|slot| &slot.tx.inclusion);
        if let Some(Some(mined)) = inclusion {
            let by = mined.tx_hash.to_string();
            return Err(MarkRefusal::IsUsed { nonce, by });
        }
        let Some(mut slot) = self.slots.remove(nonce) else {
            return Err(MarkRefusal::NotReserved(nonce));
        };
        self.ledger.free(nonce);
        slot.tx.nonce = None;
        cx.effects.extend(slot.hashes().map(Effect::Unwatch));
        self.journal
            .end_failed(slot.tx, SubState::Cancelled, reason.to_owned(), cx);
        Ok(())
    }
}

/// The attempt that stands for a transaction made elsewhere: its bytes and fees are not known.
fn named_attempt(
    slot: &Slot,
    nonce: Nonce,
    hash: B256,
    kind: AttemptKind,
    now: Timestamp,
) -> Attempt {
    Attempt {
        hash,
        tx_id: slot.tx.id,
        kind,
        nonce,
        gas: 0,
        fees: Fees::Legacy { gas_price: 0 },
        raw: Bytes::new(),
        signed_at: now,
        first_sent_at: Some(now),
    }
}
