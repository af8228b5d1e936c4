//! Getting signatures: of first attempts, of replacements and of fillers.

use alloy_primitives::U256;

use crate::admission::TRANSFER_GAS;
use crate::{
    Attempt, AttemptKind, EventKind, Nonce, Payload, RequestId, SubState, Tx, TxId, TxState,
    UnsignedEnvelope,
};

use super::slots::Slot;
use super::{AdmittedRequest, Agreement, Effect, Lane, OpenCost, StepContext};

impl Lane {
    /// Whether envelopes can be made now: the fee is known and nothing holds the lane.
    pub(super) fn can_sign(&self) -> bool {
        self.chain.view.is_some() && self.holds.is_free()
    }

    /// Brings a tx into memory and has its first attempt signed.
    pub(super) fn start_signing(
        &mut self,
        tx: Tx,
        nonce: Nonce,
        kind: AttemptKind,
        cx: &mut StepContext,
    ) {
        self.slots
            .insert(self.key, nonce, Slot::signing(tx, kind, cx.now));
        self.request_signature(nonce, kind, cx);
    }

    /// Has the next attempt of a tx signed. Where none can be made now, the first attempt is requested later, and a
    /// replacement is dropped: the tx goes on with the attempts that it has.
    pub(super) fn request_signature(
        &mut self,
        nonce: Nonce,
        kind: AttemptKind,
        cx: &mut StepContext,
    ) {
        let unsigned = self.unsigned_envelope(nonce, kind);
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        match unsigned {
            Some(unsigned) => {
                slot.request_signature(kind);
                cx.to_sign.push(unsigned);
            }
            None => {
                slot.drop_replacement();
                slot.retry_signature_later(cx.now);
            }
        }
    }

    /// The signer's answer. Once the attempt is durable its bytes may be sent, so the row changes first.
    pub(super) fn on_signed(&mut self, attempt: Attempt, cx: &mut StepContext) {
        let (nonce, kind) = (attempt.nonce, attempt.kind);
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        // A remote signer may answer after the tx was mined, or for a tx that has left this nonce.
        if slot.signature_request() != Some(kind) || slot.tx.id != attempt.tx_id {
            return;
        }
        let cost_before = slot.cost();
        slot.start_sending(cx.now);
        slot.tx.tx_hash = Some(attempt.hash);
        if !slot.attempts().is_empty() {
            let replaced = EventKind::TxReplaced {
                tx_hash: attempt.hash,
                nonce,
                kind,
            };
            self.journal.emit_event(Some(&mut slot.tx), replaced, cx);
        }
        if kind == AttemptKind::Cancel {
            // The state, and the reason for the no-op, stay.
            slot.tx.written.at = cx.now;
        } else {
            slot.tx.reason = None;
            slot.tx
                .transition(TxState::Tracking, SubState::Signed, cx.now);
        }
        cx.writes.attempts.push(attempt.clone());
        cx.writes.updates.push(slot.tx.clone());
        self.slots.add_attempt(nonce, attempt);
        let Some(slot) = self.slots.get(nonce) else {
            return;
        };
        let cost = slot.cost();
        cx.effects.extend(slot.newest().map(Effect::Send));
        self.journal.open_cost = self.journal.open_cost.minus(cost_before).plus(cost);
    }

    /// The signer did not sign. A tx that has no attempt can safely end: nothing of it was ever sent.
    pub(super) fn on_signing_failed(
        &mut self,
        nonce: Nonce,
        reason: String,
        retryable: bool,
        cx: &mut StepContext,
    ) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        if slot.signature_request().is_none() {
            return;
        }
        if retryable {
            slot.show_signer_reason(reason);
            slot.retry_signature_later(cx.now);
            return;
        }
        if !slot.attempts().is_empty() {
            slot.show_signer_reason(reason);
            slot.drop_replacement(); // the attempts in flight go on
            return;
        }
        let Some(mut slot) = self.slots.remove(nonce) else {
            return;
        };
        self.release_funds(nonce, &slot);
        self.ledger.free(nonce);
        self.reconciliation.add_unknown(nonce);
        slot.tx.nonce = None;
        self.journal
            .end_failed(slot.tx, SubState::SigningFailed, reason, cx);
    }

    /// Fills the smallest gap when other txs wait behind it and no new request has taken it.
    pub(super) fn fill_smallest_gap(&mut self, filler: TxId, cx: &mut StepContext) {
        let Some((gap, since)) = self.ledger.smallest_gap() else {
            return;
        };
        if self.is_reserving() {
            return; // the next reservation gets it
        }
        let others_wait = self.slots.nonces_from(gap).next().is_some() || self.paging.has_backlog();
        let nothing_pending = self.chain.nonces().is_none_or(|known| {
            known.agreement >= Agreement::Living && known.nonces.pending <= gap && known.at >= since
        });
        let is_due = cx.now.since(since) >= self.rules.nonce.gap_fill_after;
        let is_its_turn = self.paging.is_before_backlog(gap) && self.has_room_for(gap);
        if !others_wait || !is_due || !is_its_turn || !self.can_sign() {
            return;
        }
        if nothing_pending {
            self.fill_gap(gap, filler, cx);
        } else {
            self.keep_querying_with_quorum(cx);
        }
    }

    /// A no-op at a nonce that no tx holds, so that the txs behind it can be mined.
    fn fill_gap(&mut self, gap: Nonce, filler: TxId, cx: &mut StepContext) {
        self.ledger.take_gap(gap);
        self.reconciliation.hold_unknown(gap);
        let payload = Payload::transfer(self.key.signer, U256::ZERO);
        let request = AdmittedRequest {
            id: filler,
            request_id: filler_request_id(filler),
            fingerprint: payload.fingerprint(),
            gas: self.no_op_gas(),
            payload,
        };
        let mut tx = Tx::created(request, self.journal.token(), cx.now);
        tx.nonce = Some(gap);
        tx.transition(TxState::Allocated, SubState::Waiting, cx.now);
        self.commit_funds(OpenCost::of_tx(&tx, &[]));
        let kind = EventKind::TxAccepted { nonce: Some(gap) };
        self.journal.emit_event(Some(&mut tx), kind, cx);
        cx.writes.inserts.push(tx.clone());
        self.start_signing(tx, gap, AttemptKind::Filler, cx);
    }

    /// The envelope of the tx at a nonce, at present fees; `None` while the chain's head is unknown, or where a
    /// limit forbids the raise.
    pub(super) fn unsigned_envelope(
        &self,
        nonce: Nonce,
        kind: AttemptKind,
    ) -> Option<UnsignedEnvelope> {
        let view = self.chain.view.as_ref()?;
        let slot = self.slots.get(nonce)?;
        let tx = &slot.tx;
        let mut unsigned = UnsignedEnvelope {
            tx_id: tx.id,
            kind,
            chain_id: self.key.chain_id,
            signer: self.key.signer,
            nonce,
            to: tx.request.payload.to,
            value: tx.request.payload.value,
            data: tx.request.payload.data.clone(),
            gas: slot.payload_gas(),
            fees: self.rules.fee.fees(&tx.request.payload, view.fee),
        };
        match kind {
            AttemptKind::Original | AttemptKind::Replace => {}
            // The chain may demand more by now than when the filler was made.
            AttemptKind::Filler => unsigned.gas = unsigned.gas.max(self.no_op_gas()),
            AttemptKind::Bump => unsigned.fees = self.bump_fees(slot)?,
            AttemptKind::Cancel => {
                let no_op = Payload::transfer(self.key.signer, U256::ZERO);
                let quoted = self.rules.fee.fees(&no_op, view.fee);
                // Should a node hold the payload after all, the no-op must be able to replace it.
                let limit = self.bump_limit()?;
                unsigned.fees = self.replacement_fees(slot, 0, limit).unwrap_or(quoted);
                unsigned.to = no_op.to;
                unsigned.value = no_op.value;
                unsigned.data = no_op.data.clone();
                unsigned.gas = slot.no_op_gas(self.no_op_gas());
            }
        }
        Some(unsigned)
    }

    /// The gas of a no-op.
    fn no_op_gas(&self) -> u64 {
        let view = self.chain.view.as_ref();
        view.map_or(TRANSFER_GAS, |view| view.fee.no_op_gas_limit())
    }
}

/// Names the tx, so that no request of a client can be taken for a filler.
fn filler_request_id(filler: TxId) -> RequestId {
    RequestId::parse(format!("lanekeeper-filler-{filler}"))
        .expect("a uuid with a short prefix keeps the rule")
}

/// The kind of the first attempt of a stored tx: a filler may have been stored before its signature came.
pub(super) fn first_kind(tx: &Tx) -> AttemptKind {
    match tx.request.request_id == filler_request_id(tx.id) {
        true => AttemptKind::Filler,
        false => AttemptKind::Original,
    }
}
