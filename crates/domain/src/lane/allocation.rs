//! Accepting requests and allocating nonces to them, and reading those that wait in the store.

use crate::window::Release;
use crate::{AttemptKind, EventKind, Nonce, SubState, Timestamp, Tx, TxState};

use super::reservations::RESERVATIONS_MAX;
use super::signing::first_kind;
use super::{AdmittedRequest, ChainQuery, Effect, LOAD_MAX, Lane, OpenCost, StepContext};

impl Lane {
    /// A new request: gets a nonce now, or waits in the store for one.
    pub(super) fn accept(&mut self, request: AdmittedRequest, cx: &mut StepContext) {
        let mut tx = Tx::created(request, self.journal.token(), cx.now);
        self.check_chain_before_reserving(&tx, cx);
        self.commit_funds(OpenCost::of_tx(&tx, &[]));
        // Txs that wait already come first. One that may be executed already is held when it is taken from the queue.
        if self.paging.has_queued()
            || !self.can_allocate()
            || self.reconciliation.unrecorded.matches(&tx.request.payload)
        {
            let kind = EventKind::TxAccepted { nonce: None };
            self.journal.emit_event(Some(&mut tx), kind, cx);
            self.paging.enqueue(Some(&tx));
            cx.writes.queued_added.push(tx.id);
            cx.writes.inserts.push(tx);
            return;
        }
        let nonce = self.allocate_nonce(&mut tx, cx.now);
        let kind = EventKind::TxAccepted { nonce: Some(nonce) };
        self.journal.emit_event(Some(&mut tx), kind, cx);
        cx.writes.inserts.push(tx.clone());
        self.sign_or_defer(tx, nonce, AttemptKind::Original, cx);
    }

    /// A page of the txs that wait in the store for a nonce, oldest first.
    pub(super) fn receive_queue_page(
        &mut self,
        txs: Vec<Tx>,
        has_more: bool,
        cx: &mut StepContext,
    ) {
        for tx in self.paging.receive_queue_page(txs, has_more) {
            self.adopt_queued(tx, cx);
        }
    }

    /// Allocates a nonce to a tx that waited in the store, or leaves it there.
    fn adopt_queued(&mut self, mut tx: Tx, cx: &mut StepContext) {
        let is_unreported = tx.history.event_seqs.is_empty();
        if is_unreported {
            // It came through another node, which may not write events for this lane.
            let accepted = EventKind::TxAccepted { nonce: None };
            let at = tx.request.created_at;
            self.journal.emit_event_at(Some(&mut tx), accepted, at, cx);
            // It is not refused any more: what the account cannot pay for keeps its place and waits there.
            self.commit_funds(OpenCost::of_tx(&tx, &[]));
        }
        if self.is_reserve_timed_out(&tx, cx.now) {
            self.end_unreserved(tx, cx);
            return;
        }
        self.holds.note_misplaced(self.misplaced_reason(&tx));
        if !self.can_allocate() {
            self.paging.enqueue(None);
            cx.writes.updates.extend(is_unreported.then_some(tx));
            return;
        }
        if self.hold_if_executed(&mut tx, cx) {
            cx.writes.queued_removed.push(tx.id);
            cx.writes.updates.push(tx);
            return;
        }
        let nonce = self.allocate_nonce(&mut tx, cx.now);
        let kind = EventKind::TxAllocated { nonce };
        self.journal.emit_event(Some(&mut tx), kind, cx);
        cx.writes.queued_removed.push(tx.id);
        cx.writes.updates.push(tx.clone());
        self.sign_or_defer(tx, nonce, AttemptKind::Original, cx);
    }

    /// A page of the txs that have a nonce and waited in the store for room in nodes' pools.
    pub(super) fn receive_backlog_page(
        &mut self,
        txs: Vec<Tx>,
        has_more: bool,
        cx: &mut StepContext,
    ) {
        if self.is_reserving() {
            self.receive_reserved_page(txs, has_more, cx.now);
            return;
        }
        let cursor = self.ledger.cursor();
        for tx in self.paging.receive_backlog_page(txs, has_more, cursor) {
            let Some(nonce) = tx.nonce.filter(|nonce| self.slots.get(*nonce).is_none()) else {
                continue;
            };
            self.holds.note_misplaced(self.misplaced_reason(&tx));
            if !self.has_room_for(nonce) || !self.can_sign() {
                self.paging.restart_backlog_at(nonce);
                return;
            }
            let kind = first_kind(&tx);
            self.start_signing(tx, nonce, kind, cx);
        }
    }

    /// Requests the pages for which there is room.
    pub(super) fn request_pages(&mut self, cx: &mut StepContext) {
        if let Some(from) = self.paging.next_backlog_page()
            && (self.is_reserving() || (self.can_sign() && self.has_room_for(from)))
        {
            self.paging.await_backlog_page(self.ledger.cursor());
            let limit = match self.is_reserving() {
                true => LOAD_MAX,
                false => self.mempool_room().clamp(1, LOAD_MAX),
            };
            cx.effects.push(Effect::LoadBacklog { from, limit });
        }
        if self.paging.needs_queue_page() && self.can_allocate() {
            self.paging.await_queue_page();
            let room = self.rules.capacity.window.room(self.unresolved());
            let limit = room.clamp(1, LOAD_MAX); // a gap is reserved without room
            cx.effects.push(Effect::LoadQueued { limit });
        }
    }

    /// Whether a nonce may be allocated now.
    fn can_allocate(&self) -> bool {
        let chain_known =
            self.chain.nonces().is_some() || self.rules.nonce.chain_query == ChainQuery::Off;
        let can_reserve = !self.is_reserving()
            || (!self.paging.has_backlog() && self.unresolved() < RESERVATIONS_MAX);
        chain_known
            && self.holds.is_free()
            && !self.reconciliation.is_searching()
            && !self.reservations.awaits_answers()
            && can_reserve
            && (self.rules.capacity.window.has_room(self.unresolved()) || self.reserves_a_blocker())
    }

    /// How many allocated nonces are not resolved in the sense of the window.
    fn unresolved(&self) -> u64 {
        let slots = match self.rules.capacity.window.releases {
            Release::Mined => self.slots.unmined_len(),
            Release::Final => self.slots.len(),
        };
        slots.saturating_add(self.paging.backlog_len(self.ledger.cursor()))
    }

    /// How many more attempts may be in nodes' pools.
    pub(super) fn mempool_room(&self) -> u64 {
        let limit = self.mempool.limit();
        limit.saturating_sub(self.slots.unmined_len())
    }

    /// Whether an attempt at this nonce may be sent. One below the highest slot does not wait for room, because
    /// that slot waits for it.
    pub(super) fn has_room_for(&self, nonce: Nonce) -> bool {
        self.mempool_room() > 0 || self.slots.highest().is_some_and(|highest| highest > nonce)
    }

    /// Gives the tx the smallest gap, or the next nonce.
    fn allocate_nonce(&mut self, tx: &mut Tx, now: Timestamp) -> Nonce {
        self.contest_used_gaps();
        let nonce = match self.ledger.take_smallest_gap() {
            Some(gap) => {
                self.reconciliation.hold_unknown(gap);
                gap
            }
            None => {
                let nonce = self.ledger.cursor();
                self.ledger.advance_cursor();
                nonce
            }
        };
        tx.nonce = Some(nonce);
        tx.transition(TxState::Allocated, SubState::Waiting, now);
        nonce
    }

    /// Signs at once when it is the tx's turn; otherwise the tx waits in the store.
    fn sign_or_defer(&mut self, tx: Tx, nonce: Nonce, kind: AttemptKind, cx: &mut StepContext) {
        if self.is_reserving() {
            self.hold_reservation(tx, nonce, cx.now);
        } else if self.can_sign()
            && self.paging.is_before_backlog(nonce)
            && self.has_room_for(nonce)
        {
            self.start_signing(tx, nonce, kind, cx);
        } else {
            self.paging.defer(nonce);
        }
    }
}
