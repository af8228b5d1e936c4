//! Why a slot waits: the reason in its row, which is written only when an operator may have to act.

use super::Slot;
use crate::lane::StepContext;
use crate::{SubState, Timestamp, TxState};

impl Slot {
    /// Whether its reason says more than what nodes answer at present.
    fn has_lasting_reason(&self) -> bool {
        let is_capped = self.tx.sub_state == Some(SubState::FeeCap);
        self.is_being_cancelled() || is_capped || self.tx.state == TxState::Stuck
    }

    /// Forgets a reason that lay in the nodes; a later write must not store it.
    pub(super) fn clear_passing_reason(&mut self) {
        if !self.has_lasting_reason() {
            self.tx.reason = None;
        }
    }

    /// Shows why an attempt of it is not signed.
    pub(in crate::lane) fn show_signer_reason(&mut self, reason: String) {
        match self.is_being_cancelled() {
            true => self.no_op_wait = Some(reason),
            false => self.tx.reason = Some(reason),
        }
    }

    /// Shows a reason that will pass by itself; it is not written for its own sake.
    pub(in crate::lane) fn show_reason(&mut self, reason: &str) {
        if !self.has_lasting_reason() {
            self.tx.reason = Some(reason.to_owned());
        }
    }

    /// No node accepts it at present, for a reason that will pass by itself.
    pub(in crate::lane) fn block(&mut self, reason: &str, now: Timestamp) {
        self.show_reason(reason);
        self.history.is_blocked = true;
        self.retry_send_later(now);
    }

    /// A node has it: a reason that lay in the nodes is over. A tx that needs more than a node keeps its state.
    pub(in crate::lane) fn clear_reason_at_node(&mut self, is_new: bool, cx: &mut StepContext) {
        let keeps_reason = self.has_lasting_reason();
        self.clear_passing_reason();
        if is_new || (!keeps_reason && self.tx.sub_state != Some(SubState::Submitted)) {
            let sub = match self.tx.sub_state {
                Some(SubState::ForeignPending) if self.is_cancelled() => SubState::Rejected,
                Some(sub) if keeps_reason => sub,
                Some(_) | None => SubState::Submitted,
            };
            let state = self.tx.state;
            self.tx.transition(state, sub, cx.now);
            cx.writes.updates.push(self.tx.clone());
        }
    }

    /// Waits for something that an operator may have to do, so it is written; once, not at every try.
    pub(in crate::lane) fn wait_for(
        &mut self,
        sub: SubState,
        reason: String,
        cx: &mut StepContext,
    ) {
        self.retry_send_later(cx.now);
        self.history.is_blocked = true;
        if self.is_being_cancelled() {
            // Its row says why a no-op takes its nonce; what that one waits for is in the lane's row.
            self.no_op_wait = Some(reason);
            let is_foreign_known = self.tx.sub_state == Some(SubState::ForeignPending);
            if self.history.is_foreign_pending && !is_foreign_known {
                let state = self.tx.state;
                self.tx.transition(state, SubState::ForeignPending, cx.now);
                cx.writes.updates.push(self.tx.clone());
            }
            return;
        }
        // The next keeper must not outbid a foreign transaction either: no other sub-state takes its place.
        let sub = match self.history.is_foreign_pending {
            true => SubState::ForeignPending,
            false => sub,
        };
        if self.tx.sub_state == Some(sub) || self.tx.state == TxState::Stuck {
            self.tx.reason.get_or_insert(reason);
            return;
        }
        self.tx.reason = Some(reason);
        self.tx.transition(TxState::Tracking, sub, cx.now);
        cx.writes.updates.push(self.tx.clone());
    }
}
