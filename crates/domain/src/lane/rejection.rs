//! Bytes that no node will ever accept: a no-op takes the nonce from their payload. What only lacked gas is signed again
//! with more.

use crate::{AttemptKind, Fees, Nonce, SubState, TxState};

use super::slots::Slot;
use super::{Lane, StepContext};

/// How often in a row every node must reject for good what one of them may have accepted before.
const REJECTIONS_FINAL: u32 = 5;
/// Each attempt for more gas asks for so many times as much.
const GAS_RAISE: u64 = 2;
/// The most gas of a no-op: far above what any chain demands.
const NO_OP_GAS_MAX: u64 = 5_000_000;
/// A payload never gets more than so many times the gas that was estimated for it.
const PAYLOAD_GAS_FACTOR_MAX: u64 = 4;

impl Lane {
    /// Every node says that it will never accept these bytes. The tx keeps its nonce, so that nothing else can
    /// stand there if they are wrong; a no-op takes it from the payload.
    pub(super) fn on_rejected(&mut self, nonce: Nonce, text: &str, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        slot.history.rejections = slot.history.rejections.saturating_add(1);
        if slot.is_cancelled() {
            let reason = format!("nodes refuse the no-op at nonce {nonce} as well: {text}");
            slot.wait_for(SubState::Rejected, reason, cx);
            if self.is_type_outdated(nonce) {
                self.request_signature(nonce, AttemptKind::Cancel, cx);
            }
            return; // sent again later: the lane waits
        }
        // Some node may have it, whatever these say now: it is given up only when they repeat it. So is one that is
        // STUCK: nothing else would ever use its nonce, and the slots behind it would wait.
        let may_be_accepted = slot.may_be_at_node() || slot.tx.state == TxState::Stuck;
        let is_early = may_be_accepted && slot.history.rejections < REJECTIONS_FINAL;
        if is_early || slot.history.is_foreign_pending {
            let reason = format!("nodes refuse it at present: {text}");
            slot.wait_for(SubState::Refused, reason, cx);
            return;
        }
        let reason = format!("nodes refuse it for good: {text}");
        slot.wait_for(SubState::Rejected, reason.clone(), cx);
        if slot.signature_request().is_some() || !self.can_sign() {
            return; // tried again later
        }
        if self.has_no_op_before(nonce) {
            return; // one at a time: if nodes refuse that one too, another would not help
        }
        self.give_up(nonce, reason, cx);
    }

    /// Whether another no-op takes precedence over one at this nonce. The head's has precedence over all others, because
    /// none of them can be mined before it.
    fn has_no_op_before(&self, nonce: Nonce) -> bool {
        let is_head = self.head().is_some_and(|(head, _)| head == nonce);
        let unmined = self.slots.unmined(self.chain.latest()..);
        let mut no_ops = unmined.filter(|(_, slot)| slot.is_being_cancelled());
        !is_head && no_ops.any(|(other, _)| other != nonce)
    }

    /// A no-op is to take the nonce of a tx, which keeps it until it is consumed at final depth; only then the tx ends,
    /// with the result of whatever attempt was mined.
    pub(super) fn give_up(&mut self, nonce: Nonce, reason: String, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let is_shown = slot.tx.state == TxState::Tracking
            && slot.tx.sub_state == Some(SubState::Rejected)
            && slot.tx.reason.as_ref() == Some(&reason);
        if !is_shown {
            slot.tx.reason = Some(reason);
            slot.tx
                .transition(TxState::Tracking, SubState::Rejected, cx.now);
            cx.writes.updates.push(slot.tx.clone());
        }
        self.request_signature(nonce, AttemptKind::Cancel, cx);
    }

    /// Whether the newest attempt has a type that the chain's rules do not allow any more: nodes will never accept it.
    fn is_type_outdated(&self, nonce: Nonce) -> bool {
        self.slots.get(nonce).is_some_and(|slot| {
            let newest = slot.attempts().last().map(|attempt| attempt.fees);
            let is_type_2 = matches!(newest, Some(Fees::Eip1559 { .. }));
            let is_free = slot.signature_request().is_none() && self.can_sign();
            self.rules.fee.legacy && is_type_2 && is_free
        })
    }

    /// Every node says that the newest attempt has less gas than the chain demands of its bytes. Nothing at its nonce is
    /// mined, so one with more gas may take its place: a no-op, or a payload whose gas the request left to an estimate.
    /// What the request itself limits is rejected like anything else that no node accepts.
    pub(super) fn on_gas_too_low(&mut self, nonce: Nonce, text: &str, cx: &mut StepContext) {
        let Some(kind) = self.kind_with_more_gas(nonce) else {
            self.on_rejected(nonce, text, cx);
            return;
        };
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let refused = slot.attempts().last().map_or(0, |attempt| attempt.gas);
        slot.history.gas_min = refused.saturating_mul(GAS_RAISE);
        if self.unsigned_envelope(nonce, kind).is_none() {
            // Its own fee limit leaves no room for an attempt that could replace what a node may hold.
            self.on_rejected(nonce, text, cx);
            return;
        }
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let reason = format!("nodes demand more gas than {refused}: {text}");
        slot.wait_for(SubState::Refused, reason, cx);
        self.request_signature(nonce, kind, cx);
    }

    /// The kind of an attempt with more gas, where one may be made.
    fn kind_with_more_gas(&self, nonce: Nonce) -> Option<AttemptKind> {
        let slot = self.slots.get(nonce)?;
        let newest = slot.attempts().last()?;
        let is_free = slot.signature_request().is_none() && self.can_sign();
        if !is_free || slot.history.is_foreign_pending {
            return None;
        }
        let wanted = newest.gas.saturating_mul(GAS_RAISE);
        let view = self.chain.view.as_ref()?;
        let block_limit = view.fee.block_gas_limit.unwrap_or(u64::MAX);
        let is_no_op = slot.is_no_op();
        let (most, kind) = match is_no_op {
            true => (NO_OP_GAS_MAX, AttemptKind::Cancel),
            false => {
                let estimated = slot.tx.request.gas;
                (
                    estimated.saturating_mul(PAYLOAD_GAS_FACTOR_MAX),
                    AttemptKind::Bump,
                )
            }
        };
        let is_ours_to_choose =
            is_no_op || (slot.tx.request.payload.gas.is_none() && slot.tx.state != TxState::Stuck);
        (is_ours_to_choose && wanted <= most.min(block_limit)).then_some(kind)
    }
}

impl Slot {
    /// The gas of its next attempt for the payload: what was raised once is not lowered again.
    pub(super) fn payload_gas(&self) -> u64 {
        let signed = self.attempts().iter();
        let signed = signed.filter(|attempt| attempt.kind != AttemptKind::Cancel);
        let most = signed.map(|attempt| attempt.gas).max().unwrap_or(0);
        let raised = match self.is_cancelled() {
            true => 0,
            false => self.history.gas_min,
        };
        self.tx.request.gas.max(most).max(raised)
    }

    /// The gas of its next no-op, which the chain demands to be at least this.
    pub(super) fn no_op_gas(&self, demanded: u64) -> u64 {
        let no_ops = self.attempts().iter();
        let no_ops = no_ops.filter(|attempt| attempt.kind == AttemptKind::Cancel);
        let most = no_ops.map(|attempt| attempt.gas).max().unwrap_or(0);
        let raised = match self.is_no_op() {
            true => self.history.gas_min,
            false => 0,
        };
        demanded.max(most).max(raised)
    }

    /// Whether its next attempt for the payload is made because nodes demand more gas.
    pub(super) fn wants_more_gas(&self) -> bool {
        let signed = self.attempts().iter().map(|attempt| attempt.gas).max();
        !self.is_cancelled() && signed.is_some_and(|gas| gas < self.history.gas_min)
    }
}
