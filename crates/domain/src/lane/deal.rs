//! Accepting, dealing nonces, and getting signatures.

use std::collections::BTreeSet;

use crate::mutation::{self, Mutation};
use crate::window::Release;
use crate::{
    Attempt, AttemptKind, EventKind, Nonce, Payload, RequestId, SubState, Timestamp, Tx, TxId,
    TxState,
};

use super::reserve::RESERVATIONS_MAX;
use super::{AdmittedRequest, CameSince, ChainQuery, Effect, LOAD_MAX, Lane, Slot, Stage, Step};

impl Lane {
    /// A new request: gets a nonce now, or waits in the store for one.
    pub(super) fn accept(&mut self, request: AdmittedRequest, now: Timestamp, step: &mut Step) {
        let mut tx = Tx::created(request, self.lease_grant.token, now);
        self.ask_before_lending(&tx, step);
        // Those that wait already come first.
        if self.queued > 0 || !self.may_deal() {
            self.emit_event(
                step,
                Some(&mut tx),
                EventKind::TxAccepted { nonce: None },
                now,
            );
            self.more_queued(Some(&tx));
            step.writes.queued_added.push(tx.id);
            step.writes.inserts.push(tx);
            return;
        }
        let nonce = self.deal(&mut tx, now);
        self.emit_event(
            step,
            Some(&mut tx),
            EventKind::TxAccepted { nonce: Some(nonce) },
            now,
        );
        step.writes.inserts.push(tx.clone());
        self.sign_or_wait(tx, nonce, AttemptKind::Original, now, step);
    }

    /// Txs that waited in the store for a nonce, oldest first.
    pub(super) fn adopt_queued(
        &mut self,
        txs: Vec<Tx>,
        more: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        // A page that nobody asked for could deal a second nonce to a tx that has one.
        let Some(came_since) = self.loading_queued.take() else {
            return;
        };
        let on_page: BTreeSet<TxId> = txs.iter().map(|tx| tx.id).collect();
        // Those that came meanwhile follow at once, if the page was the last one: otherwise, under a
        // steady load, the queue would never end.
        let CameSince { known, others } = came_since;
        let missed = known.into_iter().filter(|tx| !on_page.contains(&tx.id));
        let (next, later) = if more {
            (Vec::new(), missed.count() as u64)
        } else {
            (missed.collect(), 0)
        };
        self.queued = others.saturating_add(later).saturating_add(u64::from(more));
        for tx in txs.into_iter().chain(next) {
            self.adopt(tx, now, step);
        }
    }

    /// Deals a nonce to a tx that waited in the store, or leaves it there.
    fn adopt(&mut self, mut tx: Tx, now: Timestamp, step: &mut Step) {
        let is_untold = tx.event_seqs.is_empty() || mutation::is_on(Mutation::AcceptQueuedTwice);
        if is_untold {
            // It came through another node, which may not write events for this lane.
            let accepted = EventKind::TxAccepted { nonce: None };
            let at = tx.created_at;
            self.emit_event(step, Some(&mut tx), accepted, at);
        }
        if self.is_given_up(&tx, now) {
            self.end_unlent(tx, now, step);
            return;
        }
        if let Some(why) = self.is_misplaced(&tx) {
            self.misplaced = Some(why);
        }
        if !self.may_deal() {
            self.queued = self.queued.saturating_add(1);
            step.writes.updates.extend(is_untold.then_some(tx));
            return;
        }
        let nonce = self.deal(&mut tx, now);
        self.emit_event(step, Some(&mut tx), EventKind::TxAllocated { nonce }, now);
        step.writes.queued_removed.push(tx.id);
        step.writes.updates.push(tx.clone());
        self.sign_or_wait(tx, nonce, AttemptKind::Original, now, step);
    }

    /// One more tx waits in the store; which one, if it came through this lane.
    pub(super) fn more_queued(&mut self, tx: Option<&Tx>) {
        self.queued = self.queued.saturating_add(1);
        let Some(since) = &mut self.loading_queued else {
            return;
        };
        match tx {
            Some(tx) if (since.known.len() as u64) < LOAD_MAX => since.known.push(tx.clone()),
            Some(_) | None => since.others = since.others.saturating_add(1),
        }
    }

    /// Txs that have a nonce and waited in the store for room in the nodes' pools.
    pub(super) fn take_backlog(
        &mut self,
        txs: Vec<Tx>,
        more: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        let Some(dealt_since) = self.loading_backlog.take() else {
            return;
        };
        if self.lends() {
            self.loading_backlog = Some(dealt_since);
            self.take_lent(txs, more, now);
            return;
        }
        let last = txs.last().and_then(|tx| tx.nonce).filter(|_| more);
        let rest = last.map_or(dealt_since, |last| last.next().min(dealt_since));
        self.backlog = (rest < self.next_nonce).then_some(rest);
        // Those above are read again: only what lies below `backlog` may be at the signer, so that
        // a page that was read long ago never brings back what has left memory since.
        for tx in txs
            .into_iter()
            .filter(|tx| tx.nonce.is_some_and(|nonce| nonce < rest))
        {
            let Some(nonce) = tx.nonce else { continue };
            if self.slots.contains_key(&nonce) {
                continue;
            }
            if let Some(why) = self.is_misplaced(&tx) {
                self.misplaced = Some(why);
            }
            if !self.has_room_for(nonce) || !self.may_sign() {
                self.backlog = Some(nonce);
                return;
            }
            self.sign(tx, nonce, AttemptKind::Original, now, step);
        }
    }

    /// The signer's answer: from now on the bytes may be out, so the row says so first.
    pub(super) fn signed(&mut self, attempt: Attempt, now: Timestamp, step: &mut Step) {
        let (nonce, kind) = (attempt.nonce, attempt.kind);
        let is_wanted = |slot: &Slot| {
            slot.signing == Some(kind) && slot.tx.id == attempt.tx_id && slot.stage != Stage::Mined // a remote signer may be slower than the chain
        };
        if !self.slots.get(&nonce).is_some_and(|slot| is_wanted(slot)) {
            return;
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        slot.signing = None;
        slot.sign_at = None;
        slot.stage = Stage::Out;
        slot.claimed_at = now;
        slot.retry_at = None;
        slot.tries = 0;
        slot.is_blocked = false;
        slot.tx.tx_hash = Some(attempt.hash);
        slot.tx.token = self.lease_grant.token;
        if !slot.attempts.is_empty() {
            let told = EventKind::TxReplaced {
                tx_hash: attempt.hash,
                nonce,
                kind,
            };
            self.emit_event(step, Some(&mut slot.tx), told, now);
        }
        if kind == AttemptKind::Cancel {
            // It goes on being what it is, and why.
            slot.tx.updated_at = now;
        } else {
            slot.tx.reason = None;
            slot.tx.transition(TxState::Tracking, SubState::Signed, now);
        }
        self.by_hash.insert(attempt.hash, nonce);
        if !(mutation::is_on(Mutation::RegisterHashAfterSend) && kind == AttemptKind::Bump) {
            step.writes.attempts.push(attempt.clone());
        }
        step.writes.updates.push(slot.tx.clone());
        slot.attempts.reserve_exact(1); // most txs have one for ever
        slot.attempts.push(attempt);
        step.effects.extend(slot.newest().map(Effect::Send));
        self.slots.insert(nonce, slot);
    }

    /// The signer did not sign. Where nothing was ever out, giving up is safe.
    pub(super) fn signing_failed(
        &mut self,
        nonce: Nonce,
        reason: String,
        retryable: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.signing.is_none() {
            return;
        }
        if retryable || !slot.attempts.is_empty() {
            if !retryable {
                slot.signing = None; // what is out goes on
            }
            slot.tx.reason = Some(reason);
            if retryable {
                slot.sign_later(now);
            }
            return;
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        self.unmined = self.unmined.saturating_sub(1);
        self.fresh_gaps.insert(nonce);
        slot.tx.nonce = None;
        slot.tx.reason = Some(reason.clone());
        slot.tx.token = self.lease_grant.token;
        slot.tx
            .transition(TxState::FailedFinal, SubState::SigningFailed, now);
        slot.tx.confirmed_at = Some(now);
        self.emit_event(
            step,
            Some(&mut slot.tx),
            EventKind::TxFailed { reason },
            now,
        );
        step.writes.updates.push(slot.tx);
    }

    /// A no-op at a nonce that nobody holds, so that those behind it can be mined.
    pub(super) fn fill(&mut self, nonce: Nonce, fresh: TxId, now: Timestamp, step: &mut Step) {
        self.gaps.remove(&nonce);
        let payload = Payload::transfer(self.key.signer, alloy_primitives::U256::ZERO);
        let request_id = RequestId::parse(format!("lanekeeper-filler-{fresh}"))
            .expect("a uuid with a short prefix keeps the rule");
        let request = AdmittedRequest {
            id: fresh,
            request_id,
            fingerprint: payload.fingerprint(),
            gas: payload.intrinsic_gas(),
            payload,
        };
        let mut tx = Tx::created(request, self.lease_grant.token, now);
        tx.nonce = Some(nonce);
        tx.transition(TxState::Allocated, SubState::Waiting, now);
        self.emit_event(
            step,
            Some(&mut tx),
            EventKind::TxAccepted { nonce: Some(nonce) },
            now,
        );
        match mutation::is_on(Mutation::IgnoreRowCount) {
            true => step.writes.updates.push(tx.clone()), // a slip that only the count of rows sees
            false => step.writes.inserts.push(tx.clone()),
        }
        self.sign(tx, nonce, AttemptKind::Filler, now, step);
    }

    /// Whether a nonce may be dealt now.
    pub(super) fn may_deal(&self) -> bool {
        let chain_known = self.chain.is_some() || self.rules.chain_query == ChainQuery::Off;
        let lends_more =
            !self.lends() || (self.backlog.is_none() && self.unresolved() < RESERVATIONS_MAX);
        chain_known
            && self.halted.is_none()
            && self.misplaced.is_none()
            && !self.paused
            && self.answers_awaited == 0
            && lends_more
            && (self.rules.window.has_room(self.unresolved()) || self.lends_before_others())
    }

    /// How many dealt nonces are not resolved in the sense of the window.
    pub(super) fn unresolved(&self) -> u64 {
        let waiting = self.backlog.map_or(0, |from| from.until(self.next_nonce));
        let slots = match self.rules.window.releases {
            Release::Mined => self.unmined,
            Release::Final => u64::try_from(self.slots.len()).unwrap_or(u64::MAX),
        };
        slots.saturating_add(waiting)
    }

    /// Whether envelopes can be made now: the fee is known and nobody has stopped the lane.
    pub(super) fn may_sign(&self) -> bool {
        self.view.is_some() && !self.paused && self.halted.is_none() && self.misplaced.is_none()
    }

    /// Gives the tx the smallest gap, or the next nonce.
    fn deal(&mut self, tx: &mut Tx, now: Timestamp) -> Nonce {
        self.set_used_gaps_aside();
        let nonce = match self.gaps.pop_first() {
            Some((gap, _)) => gap,
            None => {
                let nonce = self.next_nonce;
                if !(mutation::is_on(Mutation::DealNonceTwice) && self.backlog.is_some()) {
                    self.next_nonce = nonce.next();
                }
                nonce
            }
        };
        tx.nonce = Some(nonce);
        tx.token = self.lease_grant.token;
        tx.transition(TxState::Allocated, SubState::Waiting, now);
        nonce
    }

    /// Signs at once when it is the tx's turn; otherwise the tx waits in the store.
    fn sign_or_wait(
        &mut self,
        tx: Tx,
        nonce: Nonce,
        kind: AttemptKind,
        now: Timestamp,
        step: &mut Step,
    ) {
        if self.lends() {
            self.lend(tx, nonce, now);
        } else if self.may_sign() && self.is_before_backlog(nonce) && self.has_room_for(nonce) {
            self.sign(tx, nonce, kind, now, step);
        } else {
            self.backlog = Some(self.backlog.map_or(nonce, |from| from.min(nonce)));
            self.loading_backlog = self.loading_backlog.map(|since| since.min(nonce));
        }
    }

    /// Whether no page of the backlog can bring this nonce.
    pub(super) fn is_before_backlog(&self, nonce: Nonce) -> bool {
        self.backlog.is_none_or(|from| nonce < from)
    }

    fn sign(&mut self, tx: Tx, nonce: Nonce, kind: AttemptKind, now: Timestamp, step: &mut Step) {
        self.unmined = self.unmined.saturating_add(1);
        let slot = Box::new(Slot::new(tx, kind, now));
        let before = self.slots.insert(nonce, slot);
        assert!(
            before.is_none(),
            "lane {}: nonce {nonce} is held twice",
            self.key
        );
        self.ask_signature(nonce, kind, now, step);
    }
}
