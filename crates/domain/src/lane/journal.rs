//! What the keeper writes as: its grant, the numbering of the lane's events, the count of its batches, and the sums of
//! the lane row.
//!
//! Event numbers are gapless: every event of a lane is numbered here, and its number is added to its tx's
//! history in the same call, so that the two cannot disagree.

use super::{LaneImage, OpenCost, StepContext};
use crate::{
    Event, EventKind, LeaseGrant, NodeName, Nonce, SubState, Timestamp, Token, Tx, TxState,
};

/// The numbering of what a keeper writes for its lane.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) lease_grant: LeaseGrant,
    event_seq: u64,
    pub(super) batch_seq: u64,
    /// What the open txs can cost.
    pub(super) open_cost: OpenCost,
    /// The floor in the lane's row, as far as this keeper wrote it.
    pub(super) stored_floor: Option<Nonce>,
    /// Whether the lane's row shows a final result to watch, as far as this keeper wrote it.
    pub(super) has_stored_final: bool,
    /// The keeper before this one, until the takeover is recorded.
    previous_keeper: Option<NodeName>,
}

impl Journal {
    pub(super) fn load(image: &LaneImage, previous_keeper: Option<NodeName>) -> Self {
        Self {
            lease_grant: image.lease_grant,
            event_seq: image.event_seq,
            batch_seq: image.batch_seq,
            open_cost: image.open.cost,
            stored_floor: None,
            has_stored_final: false,
            previous_keeper,
        }
    }

    pub(super) fn token(&self) -> Token {
        self.lease_grant.token
    }

    pub(super) fn event_seq(&self) -> u64 {
        self.event_seq
    }

    /// Records the takeover that made this node the keeper, once.
    pub(super) fn emit_takeover(&mut self, cx: &mut StepContext) {
        if let Some(from) = self.previous_keeper.take() {
            let token = Token(self.token().0.saturating_sub(1));
            self.emit_event(None, EventKind::LaneFenced { from, token }, cx);
        }
    }

    /// Writes an event, and its number into the tx's history.
    pub(super) fn emit_event(
        &mut self,
        tx: Option<&mut Tx>,
        kind: EventKind,
        cx: &mut StepContext,
    ) {
        self.emit_event_at(tx, kind, cx.now, cx);
    }

    /// Writes an event that happened at another time.
    pub(super) fn emit_event_at(
        &mut self,
        tx: Option<&mut Tx>,
        kind: EventKind,
        at: Timestamp,
        cx: &mut StepContext,
    ) {
        self.event_seq = self.event_seq.saturating_add(1);
        let seq = self.event_seq;
        let tx_id = tx.map(|tx| {
            tx.history.event_seqs.push(seq);
            tx.id
        });
        cx.writes.events.push(Event {
            seq,
            at,
            tx_id,
            kind,
        });
    }

    /// Ends a tx without its effect.
    pub(super) fn end_failed(
        &mut self,
        mut tx: Tx,
        sub: SubState,
        reason: String,
        cx: &mut StepContext,
    ) {
        tx.reason = Some(reason.clone());
        tx.confirmed_at = Some(cx.now);
        tx.transition(TxState::FailedFinal, sub, cx.now);
        self.emit_event(Some(&mut tx), EventKind::TxFailed { reason }, cx);
        cx.writes.updates.push(tx);
    }

    /// A tx needs a decision. Its row is written by the caller.
    pub(super) fn mark_stuck(
        &mut self,
        tx: &mut Tx,
        sub: SubState,
        reason: String,
        cx: &mut StepContext,
    ) {
        tx.reason = Some(reason.clone());
        tx.transition(TxState::Stuck, sub, cx.now);
        self.emit_event(Some(tx), EventKind::TxStuck { reason }, cx);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{GrantId, LaneId, Nonce};

    #[test]
    fn events_are_numbered_without_holes_and_a_takeover_is_recorded_once() {
        let mut journal = Journal {
            lease_grant: LeaseGrant {
                lane: LaneId(1),
                token: Token(4),
                grant: GrantId(Uuid::nil()),
            },
            event_seq: 7,
            batch_seq: 0,
            open_cost: OpenCost::default(),
            stored_floor: None,
            has_stored_final: false,
            previous_keeper: Some(NodeName("old".into())),
        };
        let mut cx = StepContext::new(Timestamp(1));
        journal.emit_takeover(&mut cx);
        journal.emit_takeover(&mut cx);
        let kind = EventKind::LaneForeignPending { nonce: Nonce(0) };
        journal.emit_event(None, kind, &mut cx);
        let seqs: Vec<u64> = cx.writes.events.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, [8, 9]);
    }
}
