//! What nodes answered to our bytes, and when they are sent again.

use std::time::Duration;

use alloy_primitives::B256;

use crate::{AttemptKind, EventKind, Nonce, SendOutcome, SubState, Timestamp};

use super::journal::Journal;
use super::slots::Slot;
use super::{ChainQuery, Effect, Lane, ResubmitPolicy, StepContext};

/// The longest wait of a tx whose account is to be funded.
const RETRY_UNFUNDED_MAX: Duration = Duration::from_secs(5);

impl Lane {
    /// The outcome of one send. Outcomes of attempts that the slot does not have any more, or of a mined one, are
    /// too late to matter.
    pub(super) fn on_sent(
        &mut self,
        hash: B256,
        nonce: Nonce,
        outcome: SendOutcome,
        cx: &mut StepContext,
    ) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        if !slot.has_attempt(hash) || slot.is_mined() {
            return;
        }
        if !matches!(
            outcome,
            SendOutcome::Rejected(_) | SendOutcome::GasTooLow(_)
        ) {
            slot.history.rejections = 0;
        }
        slot.history.lacks_money_or_node =
            matches!(outcome, SendOutcome::Underfunded(_) | SendOutcome::Busy(_));
        slot.history.is_underpriced = matches!(outcome, SendOutcome::Underpriced(_));
        let newest = slot.attempts().last().map(|attempt| attempt.hash);
        let is_newest = newest == Some(hash);
        match outcome {
            SendOutcome::Accepted => self.on_accepted(hash, nonce, cx),
            SendOutcome::NonceTooLow => self.on_nonce_too_low(nonce, cx),
            SendOutcome::Underfunded(text) => {
                let reason = format!("the account cannot pay: {text}");
                slot.wait_for(SubState::Underfunded, reason, cx);
                slot.retry_send_within(RETRY_UNFUNDED_MAX, cx.now);
            }
            SendOutcome::Underpriced(text) => {
                // A foreign transaction is gone only when no pool counts anything there.
                slot.history.is_foreign_pending &= !self.chain.shows_nothing_pending_at(nonce);
                let reason = format!("the fee is too low: {text}");
                slot.wait_for(SubState::Underpriced, reason, cx);
                self.reprice(nonce, cx);
            }
            SendOutcome::ReplacementUnderpriced(_) => {
                // An older attempt of ours holds the place in the pool and goes on waiting there.
                slot.mark_older_submitted(cx.now);
            }
            SendOutcome::ForeignPending(text) => self.on_foreign_pending(nonce, &text, cx),
            SendOutcome::Refused(text) => {
                let reason = format!("nodes refuse it at present: {text}");
                slot.wait_for(SubState::Refused, reason, cx);
            }
            SendOutcome::Rejected(text) if is_newest => self.on_rejected(nonce, &text, cx),
            SendOutcome::GasTooLow(text) if is_newest => self.on_gas_too_low(nonce, &text, cx),
            SendOutcome::Rejected(_) | SendOutcome::GasTooLow(_) => {} // another took its place
            SendOutcome::Full { text, most } => {
                slot.block(
                    &format!("no node has room for it at present: {text}"),
                    cx.now,
                );
                self.mempool.narrow(most, cx.now);
            }
            SendOutcome::Busy(text) => {
                slot.block(&format!("no node accepts it at present: {text}"), cx.now);
            }
            SendOutcome::Unknown(text) => {
                slot.history.may_be_in_pool = true;
                slot.show_reason(&format!(
                    "it is unknown whether a node has it, because the answer was lost or not understood: {text}"
                ));
                slot.retry_send_later(cx.now);
            }
            SendOutcome::NotSent(_) => slot.retry_send_later(cx.now),
        }
    }

    fn on_accepted(&mut self, hash: B256, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let was_blocked = slot.history.is_blocked;
        slot.mark_submitted(cx.now);
        let keeps_bytes = self.rules.resubmit.policy == ResubmitPolicy::Rebroadcast;
        let is_raised = slot.signature_request() == Some(AttemptKind::Bump);
        if keeps_bytes && is_raised && !slot.is_no_op() {
            slot.drop_replacement(); // it was requested because no node had the payload
        }
        let is_new = record_first_sent(&mut self.journal, slot, hash, cx);
        slot.clear_reason_at_node(is_new, cx);
        if was_blocked {
            self.unblock_slots_behind(nonce, cx.now);
        }
        self.mempool.recover();
    }

    /// The nonce is used: by an attempt of ours that is mined already, or by a foreign transaction. Only the chain
    /// can tell; its answer makes the lane fetch the receipts of everything below.
    fn on_nonce_too_low(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        slot.show_reason("a node reports its nonce as used, and no receipt of it is known");
        slot.history.is_reported_used = true;
        let was_blocked = std::mem::take(&mut slot.history.is_blocked);
        slot.retry_send_later(cx.now);
        if was_blocked {
            self.unblock_slots_behind(nonce, cx.now); // they can be mined
        }
        self.query_chain_nonces(cx);
    }

    /// The slot that no node accepted is accepted now, or its nonce is used: those behind it need not wait for
    /// their own retry times.
    fn unblock_slots_behind(&mut self, nonce: Nonce, now: Timestamp) {
        for (_, slot) in self.slots.range_mut(nonce.next()..) {
            let is_sending = slot.is_sending();
            let Some(delivery) = slot.delivery_mut().filter(|_| is_sending) else {
                continue;
            };
            if delivery.retry_at.is_some() {
                delivery.retry_at = Some(now);
                slot.history.failures = 0;
                slot.history.is_blocked = false;
            }
        }
    }

    /// A foreign transaction is pending at our nonce. It is never outbid: it may be intended.
    fn on_foreign_pending(&mut self, nonce: Nonce, text: &str, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        if !std::mem::replace(&mut slot.history.is_foreign_pending, true) {
            let kind = EventKind::LaneForeignPending { nonce };
            self.journal.emit_event(None, kind, cx);
        }
        let reason = format!(
            "a foreign transaction is pending at nonce {nonce}; waiting until it is mined or gone: {text}"
        );
        slot.wait_for(SubState::ForeignPending, reason, cx);
        slot.history.is_blocked = false; // the slots behind it can be mined
        slot.drop_replacement(); // what a remote signer still works on would outbid it
        self.reconciliation.reopen();
        self.query_chain_nonces(cx);
    }

    /// Probes the node when more waits than may be in its pool, and half of that is there: does it hold what it
    /// accepted? One query for all of it, while the other half is still being sent, so that the node never idles.
    pub(super) fn probe_mempool(&mut self, cx: &mut StepContext) {
        let more_waits = self.paging.has_backlog() && self.mempool_room() == 0;
        let shows_pending = self.rules.nonce.chain_query == ChainQuery::Pending;
        // An answer that is on its way was requested before these were sent.
        let can_query = !self.chain.is_querying() && self.mempool.can_probe(cx.now);
        if !more_waits || !shows_pending || !can_query {
            return;
        }
        let unmined = self.slots.unmined(..);
        let accepted = unmined.take_while(|(_, slot)| slot.is_submitted());
        let (count, highest) = accepted.fold((0_u64, None), |(count, _), (nonce, _)| {
            (count.saturating_add(1), Some(nonce))
        });
        if let Some(highest) = highest
            && count.saturating_mul(2) >= self.mempool.limit()
        {
            self.mempool.start_probe(highest);
            self.query_chain_nonces(cx);
        }
    }

    /// Sends and signs again what is due, in nonce order. Nothing is tried behind a slot that no node accepts: it
    /// could not be mined before that slot, and would only add to the nodes' load.
    pub(super) fn retry_due_slots(&mut self, cx: &mut StepContext) {
        let mut unsigned = Vec::new();
        for (nonce, slot) in self.slots.range_mut(..) {
            if slot.take_due_send(cx.now) {
                cx.effects.extend(slot.newest().map(Effect::Send));
            }
            unsigned.extend(slot.take_due_signature(cx.now).map(|kind| (nonce, kind)));
            if slot.history.is_blocked && slot.is_sending() && nonce >= self.chain.latest() {
                break;
            }
        }
        for (nonce, kind) in unsigned {
            self.request_signature(nonce, kind, cx);
        }
    }
}

/// Records that a node has this attempt, once; returns whether that was new.
pub(super) fn record_first_sent(
    journal: &mut Journal,
    slot: &mut Slot,
    hash: B256,
    cx: &mut StepContext,
) -> bool {
    let Some(attempt) = slot.record_first_sent(hash, cx.now) else {
        return false;
    };
    let kind = EventKind::TxSubmitted {
        tx_hash: hash,
        nonce: attempt.nonce,
    };
    cx.writes.first_sent.push((hash, cx.now));
    journal.emit_event(Some(&mut slot.tx), kind, cx);
    true
}
