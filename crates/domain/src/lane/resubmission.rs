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
        if is_used_up && slot.tx.state != TxState::Stuck {
            let times = slot.tx.history.resubmits.saturating_sub(1);
            let mut reason =
                format!("sent again {times} times (resubmit.maxAttempts) and not mined");
            // It ends when its no-op is mined: the reason for that must be found then.
            if let Some(before) = slot.tx.reason.take().filter(|_| slot.is_being_cancelled()) {
                reason = format!("{reason}; {before}");
            }
            let sub = slot.tx.sub_state.unwrap_or(SubState::Submitted);
            self.journal.mark_stuck(&mut slot.tx, sub, reason, cx);
        }
        let Some(slot) = self.slots.get(nonce) else {
            return;
        };
        // STUCK stops new attempts only: its bytes are still sent.
        let wants_raise = slot.tx.state != TxState::Stuck && self.should_raise_fees(slot);
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

    /// Whether the policy wants a new attempt. Never against a foreign transaction.
    fn should_raise_fees(&self, slot: &Slot) -> bool {
        let latest = self.chain.latest();
        let is_used = slot.tx.nonce.is_some_and(|nonce| nonce < latest);
        let history = &slot.history;
        let is_foreign = history.is_foreign_pending || history.is_reported_used || is_used;
        match self.rules.resubmit.policy {
            ResubmitPolicy::Rebroadcast => false,
            ResubmitPolicy::Bump { .. } => {
                !is_foreign && self.can_sign() && self.can_raise_help(slot)
            }
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

    /// A node found the fee too low and none has it: with the policy to bump there is no need to wait.
    pub(super) fn reprice(&mut self, nonce: Nonce, cx: &mut StepContext) {
        let Some(slot) = self.slots.get(nonce) else {
            return;
        };
        let can_bump = slot.signature_request().is_none() && slot.tx.state != TxState::Stuck;
        let pays_too_little = slot.history.failures > 1; // once more as it is: base fees fall as well
        if can_bump
            && pays_too_little
            && self.should_raise_fees(slot)
            && self.raised_fees(slot).is_some()
        {
            self.resubmit(nonce, cx);
        }
    }

    /// Fees for a bump: what nodes accept as a replacement of all attempts so far, within every limit.
    pub(super) fn raised_fees(&self, slot: &Slot) -> Option<Fees> {
        let percent = match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { percent, .. } => percent,
            // An attempt with more gas must be able to replace what a node may hold after all.
            ResubmitPolicy::Rebroadcast if slot.wants_more_gas() => 0,
            ResubmitPolicy::Rebroadcast => return None,
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

impl Slot {
    /// It offers as much as it may. That is shown, and no dead end: its bytes are sent again.
    fn show_fee_cap(&mut self, now: Timestamp) {
        if self.tx.sub_state != Some(SubState::FeeCap) {
            let offered = self.attempts().last().map_or(0, |a| a.fees.max_per_gas());
            self.tx.reason = Some(format!(
                "it offers {offered} wei per gas, and a raise that nodes accept would exceed its limit \
                 (resubmit.maxFeePerGas, feeCap, its own maxFeePerGas, or {BUMP_QUOTE_FACTOR_MAX} times the chain's \
                 present price); its bytes are sent again"
            ));
            let state = self.tx.state;
            self.tx.transition(state, SubState::FeeCap, now);
        }
    }
}
