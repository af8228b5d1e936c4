//! Sending the lane's head again when it is not mined in time, with the same bytes or with higher fees.

use alloy_primitives::U256;

use crate::{Attempt, AttemptKind, EventKind, Fees, Nonce, Payload, SubState, Timestamp, TxState};

use super::slots::Slot;
use super::{Effect, Lane, ResubmitPolicy, StepContext};

/// A bump never offers more than this many times what a new transaction would offer at present: a fee that high is
/// not what keeps it waiting.
const BUMP_QUOTE_FACTOR_MAX: u128 = 10;

impl Lane {
    /// Only the lowest unmined nonce can unblock a lane, so only it is claimed and sent again.
    pub(super) fn resubmit_head(&mut self, cx: &mut StepContext) {
        // A slot below the account's nonce blocks nothing any more, whatever consumed it.
        let Some((nonce, slot)) = self.slots.unmined(self.chain.latest()..).next() else {
            return;
        };
        let Some(delivery) = slot.delivery() else {
            return;
        };
        let waited = cx.now.since(delivery.claimed_at);
        let interval = self.rules.resubmit.interval;
        let is_due = interval.is_some_and(|interval| waited >= interval);
        let is_signed_here = !self.is_reserving() && !slot.attempts().is_empty();
        if is_signed_here && is_due && slot.signature_request().is_none() {
            self.resubmit(nonce, cx);
            self.query_chain_nonces(cx);
            return;
        }
        // Perhaps it is mined and its receipt got lost: the account's nonce shows that.
        let stale = self.rules.confirmations.stale_receipt_timeout;
        if waited >= stale && self.chain.is_older_than(stale, cx.now) {
            self.query_chain_nonces(cx);
        }
    }

    /// The claim is durable before the bytes are sent again, so that the next keeper sees it.
    fn resubmit(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        slot.claim_again(cx.now);
        let most = self.rules.resubmit.max_attempts;
        let is_used_up = most.is_some_and(|most| slot.tx.history.resubmits > most);
        // There is nothing to decide about a no-op: it must be mined, or the lane waits for ever.
        if is_used_up && slot.tx.state != TxState::Stuck && !slot.is_no_op() {
            let times = slot.tx.history.resubmits.saturating_sub(1);
            let reason = format!("sent again {times} times (resubmit.maxAttempts) and not mined");
            let sub = slot.tx.sub_state.unwrap_or(SubState::Submitted);
            self.journal.mark_stuck(&mut slot.tx, sub, reason, cx);
        }
        let Some(slot) = self.slots.get(nonce) else {
            return;
        };
        let wants_raise = self.should_raise_fees(slot);
        if wants_raise && self.raised_fees(slot).is_some() {
            // A payload that is being cancelled is never offered again.
            let kind = match slot.is_cancelled() {
                true => AttemptKind::Cancel,
                false => AttemptKind::Bump,
            };
            cx.writes.updates.push(slot.tx.clone());
            self.request_signature(nonce, kind, cx);
        } else {
            self.rebroadcast(nonce, wants_raise, cx);
        }
    }

    /// Sends the newest attempt of the head again; `is_capped` when a limit forbids the raise.
    fn rebroadcast(&mut self, nonce: Nonce, is_capped: bool, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        if let Some(newest) = slot.newest() {
            if is_capped {
                slot.show_fee_cap(cx.now);
            }
            let kind = EventKind::TxResubmitted {
                tx_hash: newest.hash,
                nonce,
                kind: slot.attempt_kind(newest.hash),
                count: slot.tx.history.resubmits,
            };
            self.journal.emit_event(Some(&mut slot.tx), kind, cx);
            if let Some(delivery) = slot.delivery_mut() {
                delivery.retry_at = None;
            }
            cx.effects.push(Effect::Send(newest));
        }
        cx.writes.updates.push(slot.tx.clone());
    }

    /// Whether a new attempt is wanted. Never against a foreign transaction.
    fn should_raise_fees(&self, slot: &Slot) -> bool {
        let latest = self.chain.latest();
        let is_used = slot.tx.nonce.is_some_and(|nonce| nonce < latest);
        let history = &slot.history;
        let is_foreign = history.is_foreign_pending || history.is_reported_used || is_used;
        // STUCK stops new attempts for the payload only: its bytes are still sent.
        let is_stopped = slot.tx.state == TxState::Stuck && !slot.is_no_op();
        let wants_raise = match self.rules.resubmit.policy {
            ResubmitPolicy::Rebroadcast => {
                self.is_priced_wrong(slot) && self.raised_fees(slot).is_some()
            }
            ResubmitPolicy::Bump { .. } => true,
        };
        let can_raise = !is_foreign && !is_stopped && self.can_sign();
        can_raise && wants_raise && self.can_raise_help(slot)
    }

    /// Whether an attempt is replaced even where the policy is to send the same bytes, because it was signed at fees that
    /// are too low: a payload that no node has, and a no-op, which has no client who chose its fees. A payload is replaced
    /// only by what is offered at present: a raise of fees that are wrong still might be accepted, and then stays.
    fn is_priced_wrong(&self, slot: &Slot) -> bool {
        let (Some(view), Some(newest)) = (&self.chain.view, slot.attempts().last()) else {
            return false;
        };
        let payload = match slot.is_no_op() {
            true => &Payload::transfer(self.key.signer, U256::ZERO),
            false => &slot.tx.request.payload,
        };
        let is_below = offers_less(newest.fees, self.rules.fee.fees(payload, view.fee));
        let history = &slot.history;
        // An answer that was lost leaves a doubt, which a clear one ends.
        let is_nowhere = !slot.may_be_at_node() || history.is_underpriced && !slot.was_submitted();
        match slot.is_no_op() {
            true => is_below || history.is_underpriced,
            false => is_below && is_nowhere,
        }
    }

    /// Whether a low fee can be what keeps a tx from being mined. An account that cannot pay, endpoints that take
    /// nothing, and a nonce below that is not the lane's to fill are not healed by a higher offer, which would be paid in
    /// full once they are over.
    fn can_raise_help(&self, slot: &Slot) -> bool {
        let is_next = slot.tx.nonce.is_none_or(|nonce| {
            let latest = self.chain.latest();
            let below = self.slots.nonces_from(latest);
            let held = below.take_while(|held| *held < nonce).count() as u64;
            self.chain.nonces().is_none() || latest.0.saturating_add(held) >= nonce.0
        });
        is_next && !slot.history.lacks_money_or_node
    }

    /// A node found the fee too low and none has it: where a raise is wanted there is no need to wait.
    pub(super) fn reprice(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get(nonce) else {
            return;
        };
        let pays_too_little = slot.history.failures > 1; // once more as it is: base fees fall as well
        if slot.signature_request().is_none()
            && pays_too_little
            && self.should_raise_fees(slot)
            && self.raised_fees(slot).is_some()
        {
            self.resubmit(nonce, cx);
        }
    }

    /// Fees of the next attempt for a payload, or of a filler. What lacked gas so that no node can have it needs no raise.
    pub(super) fn bump_fees(&self, slot: &Slot) -> Option<Fees> {
        let same = slot.attempts().last().map(|newest| newest.fees);
        let same = same.filter(|_| slot.wants_more_gas() && !slot.may_be_at_node());
        self.raised_fees(slot).or(same)
    }

    /// Fees for a raise: what nodes accept as a replacement of all attempts so far, within every limit. One of them may
    /// hold what none is known to have.
    fn raised_fees(&self, slot: &Slot) -> Option<Fees> {
        let percent = match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { percent, .. } => percent,
            ResubmitPolicy::Rebroadcast => 0,
        };
        let own = slot.tx.request.payload.fee_limit();
        let own = own.filter(|_| !slot.is_cancelled()); // the limit was meant for the payload, not for a no-op
        let limit = self.bump_limit()?.min(own.unwrap_or(u128::MAX));
        self.replacement_fees(slot, percent, limit)
    }

    /// The most that any replacement may offer per gas.
    pub(super) fn bump_limit(&self) -> Option<u128> {
        let view = self.chain.view.as_ref()?;
        let no_op = Payload::transfer(self.key.signer, U256::ZERO);
        let quoted = self.rules.fee.fees(&no_op, view.fee).max_per_gas();
        let sane = quoted.saturating_mul(BUMP_QUOTE_FACTOR_MAX);
        let most = match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { max_fee, .. } => max_fee,
            ResubmitPolicy::Rebroadcast => u128::MAX,
        };
        Some(most.min(self.rules.fee.cap_at(view.fee)).min(sane))
    }

    /// Fees that nodes accept as a replacement of all attempts so far. Where no limit allows that much, a no-op replaces
    /// the no-ops before it alone: nodes refuse the payload for good, so that it holds no place.
    pub(super) fn replacement_fees(&self, slot: &Slot, percent: u128, cap: u128) -> Option<Fees> {
        let view = self.chain.view.as_ref()?;
        let above = |replaces: fn(&Attempt) -> bool| {
            let attempts = slot.attempts().iter().filter(|one| replaces(one));
            let mut highest = attempts.map(|one| one.fees).max_by_key(Fees::max_per_gas)?;
            if self.rules.fee.legacy {
                // The chain refuses what an attempt of before the rule offered, and would refuse its like for ever.
                highest = highest.into_legacy();
            }
            highest.bump(percent, view.fee, cap)
        };
        above(|_| true).or_else(|| above(|one| one.kind == AttemptKind::Cancel))
    }
}

/// Whether one of the fee fields offers less than the other fees do. A tip counts where both have one.
fn offers_less(fees: Fees, than: Fees) -> bool {
    let tip = |fees: Fees| match fees {
        Fees::Eip1559 {
            max_priority_fee, ..
        } => Some(max_priority_fee),
        Fees::Legacy { .. } => None,
    };
    let has_lower_tip = tip(fees)
        .zip(tip(than))
        .is_some_and(|(tip, than)| tip < than);
    has_lower_tip || fees.max_per_gas() < than.max_per_gas()
}

impl Slot {
    /// It offers as much as it may. That is shown, and no dead end: its bytes are sent again.
    fn show_fee_cap(&mut self, now: Timestamp) {
        if self.tx.sub_state == Some(SubState::FeeCap) {
            return;
        }
        let offered = self.attempts().last().map_or(0, |a| a.fees.max_per_gas());
        let reason = format!(
            "it offers {offered} wei per gas, and a raise that nodes accept would exceed its limit \
             (resubmit.maxFeePerGas, feeCap, its own maxFeePerGas, or {BUMP_QUOTE_FACTOR_MAX} times the chain's \
             present price); its bytes are sent again"
        );
        if self.is_cancelled() {
            self.no_op_wait = Some(reason); // its row says why a no-op takes its nonce
            return;
        }
        self.tx.reason = Some(reason);
        let state = self.tx.state;
        self.tx.transition(state, SubState::FeeCap, now);
    }
}
