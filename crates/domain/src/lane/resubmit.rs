//! Sending again what waits too long, with the same bytes or with more money; and taking the nonce from
//! what no node will ever take.

use alloy_primitives::U256;

use crate::fee::BumpOutcome;
use crate::mutation::{self, Mutation};
use crate::{
    AttemptKind, EventKind, Fees, Nonce, Payload, SubState, Timestamp, TxState, UnsignedEnvelope,
};

use super::protocol::ResubmitPolicy;
use super::{Effect, Lane, Slot, Stage, Step};

/// How often in a row every node must refuse for good what one of them may have taken before.
const REJECTED_TIMES: u32 = 5;
/// A bump never offers more than so many times what a new transaction would offer at present: a fee that
/// high is not what keeps it waiting.
const BUMP_SANE_TIMES: u128 = 10;

impl Lane {
    /// Only the lowest unmined nonce can unblock a lane, so only it is claimed and sent again.
    pub(super) fn resubmit_head(&mut self, now: Timestamp, step: &mut Step) {
        // What lies below the account's nonce blocks nothing any more, whoever consumed it.
        let mut unmined = self
            .slots
            .range(self.latest()..)
            .filter(|(_, slot)| slot.stage != Stage::Mined);
        let Some((nonce, slot)) = unmined.next() else {
            return;
        };
        let nonce = *nonce;
        let waited = now.since(slot.claimed_at);
        let interval = self.rules.resubmit.interval;
        let is_due = interval.is_some_and(|interval| waited >= interval);
        let is_ours = !self.lends();
        if is_ours && is_due && slot.signing.is_none() && !slot.attempts.is_empty() {
            self.resubmit(nonce, now, step);
            self.ask_chain(step);
            return;
        }
        // Perhaps it is mined and its receipt got lost: the account's nonce tells.
        let stale = self.rules.stale_receipt_timeout;
        let is_old = self.chain.is_none_or(|known| now.since(known.at) >= stale);
        if !matches!(slot.stage, Stage::Signing | Stage::Lent) && waited >= stale && is_old {
            self.ask_chain(step);
        }
    }

    /// The claim is durable before the bytes leave again: the next keeper sees it.
    fn resubmit(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        slot.claimed_at = now;
        slot.resubmits = slot.resubmits.saturating_add(1);
        slot.tx.updated_at = now;
        slot.tx.token = self.lease_grant.token;
        let is_used_up = (self.rules.resubmit.max_attempts)
            .is_some_and(|most| slot.resubmits > most)
            || mutation::is_on(Mutation::StickWithoutRule);
        if is_used_up && slot.tx.state != TxState::Stuck {
            let times = slot.resubmits.saturating_sub(1);
            let reason = format!("sent again {times} times (resubmit.maxAttempts) and not mined");
            self.stuck(&mut slot, reason, now, step);
        }
        // STUCK stops new attempts only; the bytes go on.
        let bumps = slot.tx.state != TxState::Stuck && self.wants_more_money(&slot);
        // What is being cancelled is never offered again itself.
        let wanted = match slot.is_cancelled() {
            true => AttemptKind::Cancel,
            false => AttemptKind::Bump,
        };
        let kind = (bumps && self.raised_fees(&slot).is_some()).then_some(wanted);
        if kind.is_none()
            && let Some(newest) = slot.newest()
        {
            if bumps {
                self.cap_binds(&mut slot, now);
            }
            let kind = EventKind::TxResubmitted {
                tx_hash: newest.hash,
                nonce,
                kind: slot.attempts.last().map_or(slot.kind, |newest| newest.kind),
                count: slot.resubmits,
            };
            self.emit_event(step, Some(&mut slot.tx), kind, now);
            slot.retry_at = None;
            step.effects.push(Effect::Send(newest));
        }
        step.writes.updates.push(slot.tx.clone());
        self.slots.insert(nonce, slot);
        if let Some(kind) = kind {
            self.ask_signature(nonce, kind, now, step);
        }
    }

    /// The account's nonce as far as it is known.
    pub(super) fn latest(&self) -> Nonce {
        self.chain.map_or(Nonce(0), |known| known.nonces.latest)
    }

    fn stuck(&mut self, slot: &mut Slot, reason: String, now: Timestamp, step: &mut Step) {
        let sub = slot.tx.sub_state.unwrap_or(SubState::Submitted);
        slot.tx.reason = Some(reason.clone());
        slot.tx.transition(TxState::Stuck, sub, now);
        self.emit_event(step, Some(&mut slot.tx), EventKind::TxStuck { reason }, now);
    }

    /// Whether a new attempt is to be made. Never against somebody else's transaction.
    fn wants_more_money(&self, slot: &Slot) -> bool {
        let is_used = slot.tx.nonce.is_some_and(|nonce| nonce < self.latest());
        let is_foreign = (slot.is_foreign_pending && !mutation::is_on(Mutation::OutbidForeign))
            || slot.is_said_used
            || is_used;
        match self.rules.resubmit.policy {
            ResubmitPolicy::Rebroadcast => false,
            ResubmitPolicy::Bump { .. } => !is_foreign && self.may_sign(),
        }
    }

    /// It offers as much as it may: said, and no dead end, because its bytes go out again.
    fn cap_binds(&self, slot: &mut Slot, now: Timestamp) {
        if slot.tx.sub_state != Some(SubState::FeeCap) {
            let offered = slot.attempts.last().map_or(0, |a| a.fees.max_per_gas());
            slot.tx.reason = Some(format!(
                "it offers {offered} wei per gas, and a raise that nodes take would be above its limit \
                 (resubmit.maxFeePerGas, feeCap, its own maxFeePerGas, or {BUMP_SANE_TIMES} times what the \
                 chain asks for); its bytes are sent again"
            ));
            let state = slot.tx.state;
            slot.tx.transition(state, SubState::FeeCap, now);
        }
    }

    /// A node found the fee too low and nobody has it: with the policy to bump there is no need to wait.
    pub(super) fn reprice(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let Some(slot) = self.slots.get(&nonce) else {
            return;
        };
        let may_bump = slot.signing.is_none() && slot.tx.state != TxState::Stuck;
        let pays_too_little = slot.tries > 1; // once more as it is: base fees fall as well
        if may_bump
            && pays_too_little
            && self.wants_more_money(slot)
            && self.raised_fees(slot).is_some()
        {
            self.resubmit(nonce, now, step);
        }
    }

    /// Every node says that it will never take these bytes, and none may have them. The tx keeps its
    /// nonce, so that nothing else can stand there if they are wrong; a no-op takes it from the payload.
    pub(super) fn rejected(&mut self, nonce: Nonce, text: &str, now: Timestamp, step: &mut Step) {
        let token = self.lease_grant.token;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let was_taken = slot.attempts.iter().any(|a| a.first_sent_at.is_some());
        // Some node may have it, whatever these say now: only when they go on saying so is it given up.
        slot.rejections = slot.rejections.saturating_add(1);
        // One that is STUCK too: nothing else would ever use its nonce, and those behind it would wait.
        let is_doubtful = was_taken || slot.may_be_out || slot.tx.state == TxState::Stuck;
        let is_early = is_doubtful && slot.rejections < REJECTED_TIMES;
        if is_early || slot.is_foreign_pending {
            let reason = format!("nodes refuse it at present: {text}");
            slot.waits(SubState::Refused, reason, token, now, step);
            return;
        }
        let reason = format!("nodes refuse it for good: {text}");
        slot.waits(SubState::Rejected, reason, token, now, step);
        if slot.is_cancelled() || slot.signing.is_some() || !self.may_sign() {
            return; // tried again later
        }
        self.ask_signature(nonce, AttemptKind::Cancel, now, step);
    }

    /// Fees for a bump: what nodes take as a replacement of all attempts so far, within every limit.
    fn raised_fees(&self, slot: &Slot) -> Option<Fees> {
        let percent = match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { percent, .. } => percent,
            ResubmitPolicy::Rebroadcast => return None,
        };
        let payload = &slot.tx.payload;
        let own = payload.max_fee_per_gas.or(payload.gas_price);
        let own = own.filter(|_| !slot.is_cancelled()); // a no-op is not what it was named for
        let limit = self.bump_limit()?.min(own.unwrap_or(u128::MAX));
        self.replacing(slot, percent, limit)
    }

    /// The most that any replacement may offer per gas.
    fn bump_limit(&self) -> Option<u128> {
        let view = self.view.as_ref()?;
        let nothing_named = Payload::transfer(self.key.signer, U256::ZERO);
        let asked = self.rules.fee.fees(&nothing_named, view.fee).max_per_gas();
        let sane = asked.saturating_mul(BUMP_SANE_TIMES);
        let most = match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { max_fee, .. } => max_fee,
            ResubmitPolicy::Rebroadcast => u128::MAX,
        };
        Some(most.min(self.rules.fee.cap).min(sane))
    }

    fn replacing(&self, slot: &Slot, percent: u128, cap: u128) -> Option<Fees> {
        let view = self.view.as_ref()?;
        let offered = slot.attempts.iter().map(|attempt| attempt.fees);
        match offered
            .max_by_key(Fees::max_per_gas)?
            .bump(percent, view.fee, cap)
        {
            BumpOutcome::Raised(fees) => Some(fees),
            BumpOutcome::CapBinds => None,
        }
    }

    /// Has the next attempt of a tx signed. Where none can be made now, the tx goes on with what it has.
    pub(super) fn ask_signature(
        &mut self,
        nonce: Nonce,
        kind: AttemptKind,
        now: Timestamp,
        step: &mut Step,
    ) {
        let unsigned = self.envelope(nonce, kind);
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.signing = Some(kind).filter(|_| unsigned.is_some() || slot.attempts.is_empty());
        match unsigned {
            Some(unsigned) => step.effects.push(Effect::Sign(unsigned)),
            None => slot.sign_later(now),
        }
    }

    /// The envelope of the tx at a nonce, at today's fees; `None` while the chain's head is not known, or
    /// where a limit forbids the raise.
    fn envelope(&self, nonce: Nonce, kind: AttemptKind) -> Option<UnsignedEnvelope> {
        let view = self.view.as_ref()?;
        let slot = self.slots.get(&nonce)?;
        let tx = &slot.tx;
        let mut unsigned = UnsignedEnvelope {
            tx_id: tx.id,
            kind,
            chain_id: self.key.chain_id,
            signer: self.key.signer,
            nonce,
            to: tx.payload.to,
            value: tx.payload.value,
            data: tx.payload.data.clone(),
            gas: tx.gas,
            fees: self.rules.fee.fees(&tx.payload, view.fee),
        };
        match kind {
            AttemptKind::Original | AttemptKind::Filler | AttemptKind::Replace => {}
            AttemptKind::Bump => unsigned.fees = self.raised_fees(slot)?,
            AttemptKind::Cancel => {
                let nothing = Payload::transfer(self.key.signer, U256::ZERO);
                let quoted = self.rules.fee.fees(&nothing, view.fee);
                // Should a node hold the payload after all, the no-op must be able to replace it.
                let limit = self.bump_limit()?;
                unsigned.fees = self.replacing(slot, 0, limit).unwrap_or(quoted);
                unsigned.to = nothing.to;
                unsigned.value = nothing.value;
                unsigned.data = nothing.data.clone();
                unsigned.gas = nothing.intrinsic_gas();
            }
        }
        Some(unsigned)
    }
}
