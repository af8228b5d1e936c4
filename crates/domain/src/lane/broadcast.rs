//! What nodes said of our bytes, and trying again.

use std::time::Duration;

use alloy_primitives::B256;

use crate::attempt::OutgoingEnvelope;
use crate::mutation::{self, Mutation};
use crate::{
    AttemptKind, EventKind, Nonce, SendOutcome, SubState, Timestamp, Token, TxId, TxState,
};

use super::{ChainQuery, Effect, Known, Lane, Slot, Stage, Step};

/// The first wait after a send that gave nothing.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A burst of refusals within this time narrows the depth once.
const NARROW_PAUSE: Duration = Duration::from_secs(1);
/// For so long after an answer that did not widen the depth it is not asked for again; twice as long after
/// each further one.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The longest wait of an account that is to be funded.
const RETRY_UNFUNDED_MAX: Duration = Duration::from_secs(5);

impl Lane {
    pub(super) fn sent(
        &mut self,
        hash: B256,
        nonce: Nonce,
        outcome: SendOutcome,
        now: Timestamp,
        step: &mut Step,
    ) {
        let token = self.lease_grant.token;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let is_known = slot.attempts.iter().any(|attempt| attempt.hash == hash);
        if !is_known || slot.stage == Stage::Mined {
            return;
        }
        if wrongly_frees(&outcome) {
            self.let_nonce_go(nonce, now, step);
            return;
        }
        if !matches!(outcome, SendOutcome::Rejected(_)) {
            slot.rejections = 0;
        }
        match outcome {
            SendOutcome::Accepted => self.submitted(hash, nonce, now, step),
            SendOutcome::NonceTooLow => {
                // Ours, perhaps mined already; or foreign. Only the chain can tell: its answer asks
                // for the receipts of everything below it.
                slot.hindered("a node says that its nonce is used, and no receipt of it is known");
                slot.is_said_used = true;
                let was_blocked = std::mem::take(&mut slot.is_blocked);
                slot.try_later(now);
                if was_blocked {
                    self.release_blocked(nonce, now); // they can be mined
                }
                self.ask_chain(step);
            }
            SendOutcome::Underfunded(text) => {
                let reason = format!("the account cannot pay: {text}");
                slot.waits(SubState::Underfunded, reason, token, now, step);
                slot.try_within(RETRY_UNFUNDED_MAX, now);
            }
            SendOutcome::Underpriced(text) => {
                // Somebody else's is gone only when no pool counts anything there.
                let is_gone = self
                    .chain
                    .is_some_and(|known| known.is_complete && known.nonces.pending <= nonce);
                slot.is_foreign_pending &= !is_gone;
                let reason = format!("the fee is too low: {text}");
                slot.waits(SubState::Underpriced, reason, token, now, step);
                self.reprice(nonce, now, step);
            }
            SendOutcome::ReplacementUnderpriced(_) => self.older_is_out(nonce, now),
            SendOutcome::ForeignPending(text) => self.foreign_pending(nonce, &text, now, step),
            SendOutcome::Refused(text) => {
                let reason = format!("nodes refuse it at present: {text}");
                slot.waits(SubState::Refused, reason, token, now, step);
            }
            SendOutcome::Rejected(text) => self.rejected(nonce, &text, now, step),
            SendOutcome::Full { text, most } => {
                slot.hindered(&format!("no node has room for it at present: {text}"));
                slot.is_blocked = true;
                slot.try_later(now);
                self.narrow_depth(most, now);
            }
            SendOutcome::Busy(text) => {
                slot.hindered(&format!("no node takes it at present: {text}"));
                slot.is_blocked = true;
                slot.try_later(now);
            }
            SendOutcome::Unknown(text) => {
                slot.may_be_out = true;
                slot.hindered(&format!("the node's answer was lost: {text}"));
                slot.try_later(now);
            }
            SendOutcome::NotSent(_) => slot.try_later(now),
        }
    }

    fn submitted(&mut self, hash: B256, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        let was_blocked = std::mem::take(&mut slot.is_blocked);
        slot.is_foreign_pending = false;
        slot.is_said_used = false;
        slot.retry_at = None;
        slot.tries = 0;
        slot.left_at = now;
        slot.stage = Stage::Submitted;
        let is_new = self.first_sent(&mut slot, hash, nonce, now, step);
        slot.at_node(self.lease_grant.token, is_new, now, step);
        self.slots.insert(nonce, slot);
        if was_blocked {
            self.release_blocked(nonce, now);
        }
        self.depth.recover();
    }

    /// The lowest that no node took is taken now, or gone: those behind it need not wait for their own time.
    fn release_blocked(&mut self, at: Nonce, now: Timestamp) {
        for (_, slot) in self.slots.range_mut(at.next()..) {
            if slot.stage == Stage::Out && slot.retry_at.is_some() {
                slot.retry_at = Some(now);
                slot.tries = 0;
                slot.is_blocked = false;
            }
        }
    }

    /// Writes down that a node has this attempt, once; says whether that was new.
    pub(super) fn first_sent(
        &mut self,
        slot: &mut Slot,
        hash: B256,
        nonce: Nonce,
        now: Timestamp,
        step: &mut Step,
    ) -> bool {
        let attempt = slot
            .attempts
            .iter_mut()
            .find(|attempt| attempt.hash == hash);
        let Some(attempt) = attempt.filter(|attempt| attempt.first_sent_at.is_none()) else {
            return false;
        };
        attempt.first_sent_at = Some(now);
        if mutation::is_on(Mutation::RegisterHashAfterSend) && attempt.kind == AttemptKind::Bump {
            step.writes.attempts.push(attempt.clone());
        }
        step.writes.first_sent.push((hash, now));
        self.emit_event(
            step,
            Some(&mut slot.tx),
            EventKind::TxSubmitted {
                tx_hash: hash,
                nonce,
            },
            now,
        );
        true
    }

    /// Another attempt of ours holds the place at the node: it goes on waiting there.
    fn older_is_out(&mut self, nonce: Nonce, now: Timestamp) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.stage = Stage::Submitted;
        slot.is_blocked = false;
        slot.is_foreign_pending = false;
        slot.retry_at = None;
        slot.claimed_at = now;
        slot.tx.reason = None;
    }

    /// Somebody else's transaction waits at our nonce. It is never outbid: it may be meant.
    fn foreign_pending(&mut self, nonce: Nonce, text: &str, now: Timestamp, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        if !std::mem::replace(&mut slot.is_foreign_pending, true) {
            self.emit_event(step, None, EventKind::LaneForeignPending { nonce }, now);
        }
        let reason = format!(
            "a transaction of somebody else is pending at nonce {nonce}; waiting until it is mined or \
             gone: {text}"
        );
        slot.waits(
            SubState::ForeignPending,
            reason,
            self.lease_grant.token,
            now,
            step,
        );
        slot.is_blocked = false; // those behind it can be mined
        // What a remote signer still works on would outbid it.
        slot.signing = None;
        slot.sign_at = None;
        self.slots.insert(nonce, slot);
        self.ask_chain(step);
        if mutation::is_on(Mutation::OutbidForeign) {
            self.reprice(nonce, now, step);
        }
    }

    /// A burst of refusals narrows once, however many envelopes it had.
    fn narrow_depth(&mut self, most: Option<u64>, now: Timestamp) {
        if self
            .narrowed_at
            .is_none_or(|at| now.since(at) >= NARROW_PAUSE)
        {
            self.narrowed_at = Some(now);
            self.depth.narrow(most);
        }
    }

    /// When more waits than may be out, and half of what may is at the node: does it really hold that? One
    /// question for all of it, while the other half is still on its way, so that the node never idles.
    pub(super) fn ask_whether_the_node_holds_it(&mut self, now: Timestamp, step: &mut Step) {
        let pause = PROBE_PAUSE
            .saturating_mul(2_u32.saturating_pow(self.full_times))
            .min(PROBE_PAUSE_MAX);
        let is_recent = |at: Timestamp| now.since(at) < pause;
        let more_waits = self.backlog.is_some() && self.room() == 0;
        let tells_pending = self.rules.chain_query == ChainQuery::Pending;
        if !more_waits || !tells_pending || self.probing.is_some() || !self.depth.wants_to_know() {
            return;
        }
        // An answer that is on its way was asked for before this was out.
        if self.asking_chain || self.full_at.is_some_and(is_recent) {
            return;
        }
        let unmined = self.slots.iter().filter(|(_, s)| s.stage != Stage::Mined);
        let taken = unmined.take_while(|(_, slot)| slot.stage == Stage::Submitted);
        let (count, highest) = taken.fold((0_u64, None), |(count, _), (nonce, _)| {
            (count.saturating_add(1), Some(*nonce))
        });
        if count.saturating_mul(2) >= self.depth.limit() && highest.is_some() {
            self.probing = highest;
            self.ask_chain(step);
        }
    }

    pub(super) fn tick(&mut self, fresh: TxId, now: Timestamp, step: &mut Step) {
        self.survive_clock_jumps(now);
        self.retry(now, step);
        self.read_late_receipts(now, step);
        self.look_at_loans(now, step);
        self.resubmit_head(now, step);
        self.fill_a_gap(fresh, now, step);
        if !self.maybe_gaps.is_empty() {
            self.stay_in_doubt(now, step);
        }
        let is_old = |known: &Known| now.since(known.at) >= self.rules.chain_nonce_timeout;
        if self.chain.as_ref().is_some_and(is_old) && !self.is_idle() {
            self.ask_chain(step);
        }
    }

    /// A wall clock that was set back must not put everything off until it has caught up.
    fn survive_clock_jumps(&mut self, now: Timestamp) {
        for slot in self.slots.values_mut() {
            slot.claimed_at = slot.claimed_at.min(now);
            slot.left_at = slot.left_at.min(now);
            let soon = |at: Timestamp| at.min(now.plus(RETRY_MAX));
            slot.retry_at = slot.retry_at.map(soon);
            slot.sign_at = slot.sign_at.map(soon);
        }
        for since in self.gaps.values_mut().chain(self.maybe_gaps.values_mut()) {
            *since = (*since).min(now);
        }
        if let Some(known) = &mut self.chain {
            known.at = known.at.min(now);
        }
        self.late = self.late.map(|(latest, since)| (latest, since.min(now)));
        self.old_checked_at = self.old_checked_at.map(|at| at.min(now));
        self.narrowed_at = self.narrowed_at.map(|at| at.min(now));
        self.full_at = self.full_at.map(|at| at.min(now));
    }

    /// Tries again what is due, in nonce order. Behind one that nodes do not take nothing is tried: they
    /// could not be mined before it, and whoever is in trouble is not helped by more of them.
    fn retry(&mut self, now: Timestamp, step: &mut Step) {
        let is_due = |slot: &Slot| {
            let at = [slot.retry_at, slot.sign_at].into_iter().flatten().min();
            at.is_some_and(|at| at <= now)
        };
        let mut due = Vec::new();
        for (nonce, slot) in &self.slots {
            if is_due(slot) {
                due.push(*nonce);
            }
            if slot.is_blocked && slot.stage == Stage::Out && *nonce >= self.latest() {
                break;
            }
        }
        for nonce in due {
            self.try_again(nonce, now, step);
        }
    }

    fn try_again(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.retry_at.take_if(|at| *at <= now).is_some()
            && matches!(slot.stage, Stage::Out | Stage::Submitted)
        {
            step.effects.extend(slot.newest().map(Effect::Send));
        }
        if slot.sign_at.take_if(|at| *at <= now).is_some()
            && let Some(kind) = slot.signing
        {
            self.ask_signature(nonce, kind, now, step);
        }
    }

    /// Fills the smallest gap when others wait behind it and no new request has taken it.
    fn fill_a_gap(&mut self, fresh: TxId, now: Timestamp, step: &mut Step) {
        let Some((nonce, since)) = self.gaps.first_key_value().map(|(n, at)| (*n, *at)) else {
            return;
        };
        if self.lends() {
            return; // the next who borrows gets it
        }
        let others_wait = self.slots.range(nonce..).next().is_some() || self.backlog.is_some();
        let nothing_pending = self.chain.is_none_or(|known| {
            known.is_complete && known.nonces.pending <= nonce && known.at >= since
        });
        let is_due = now.since(since) >= self.rules.gap_fill_after;
        let is_its_turn = self.is_before_backlog(nonce) && self.has_room_for(nonce);
        if !others_wait || !is_due || !is_its_turn || !self.may_sign() {
            return;
        }
        if mutation::is_on(Mutation::DropGap) {
            return;
        }
        if nothing_pending {
            self.fill(nonce, fresh, now, step);
        } else {
            self.stay_in_doubt(now, step);
        }
    }
}

/// Two deliberate bugs: an answer that settles nothing is taken for one that frees the nonce.
fn wrongly_frees(outcome: &SendOutcome) -> bool {
    match outcome {
        SendOutcome::Refused(_) | SendOutcome::Rejected(_) => {
            mutation::is_on(Mutation::FreeNonceAfterOneNo)
        }
        SendOutcome::Unknown(_) => mutation::is_on(Mutation::RedealNonceAfterLostAnswer),
        SendOutcome::Accepted
        | SendOutcome::NonceTooLow
        | SendOutcome::Underpriced(_)
        | SendOutcome::ReplacementUnderpriced(_)
        | SendOutcome::Underfunded(_)
        | SendOutcome::ForeignPending(_)
        | SendOutcome::Full { .. }
        | SendOutcome::Busy(_)
        | SendOutcome::NotSent(_) => false,
    }
}

impl Slot {
    /// The newest attempt, ready to leave.
    pub(super) fn newest(&self) -> Option<OutgoingEnvelope> {
        if mutation::is_on(Mutation::StopRebroadcastingStuck) && self.tx.state == TxState::Stuck {
            return None;
        }
        let (newest, older) = self.attempts.split_last()?;
        if newest.raw.is_empty() {
            return None; // made and sent elsewhere
        }
        Some(OutgoingEnvelope {
            nonce: newest.nonce,
            hash: newest.hash,
            raw: newest.raw.clone(),
            others: older.iter().map(|attempt| attempt.hash).collect(),
        })
    }

    /// Whether there is more to say of it than what nodes answer at present.
    fn has_a_reason(&self) -> bool {
        let is_capped = self.tx.sub_state == Some(SubState::FeeCap);
        self.is_cancelled() || is_capped || self.tx.state == TxState::Stuck
    }

    /// Whether a no-op is to take its nonce.
    pub(super) fn is_cancelled(&self) -> bool {
        self.attempts.iter().any(|a| a.kind == AttemptKind::Cancel)
    }

    /// Something is in the way that will pass by itself: shown, not written.
    fn hindered(&mut self, why: &str) {
        if !self.has_a_reason() {
            self.tx.reason = Some(why.to_owned());
        }
    }

    /// A node has it: whatever was in the way is over. One that needs more than a node stays what it is.
    fn at_node(&mut self, token: Token, is_new: bool, now: Timestamp, step: &mut Step) {
        let stays = self.has_a_reason();
        if !stays {
            // A later write must not tell it.
            self.tx.reason = None;
        }
        if is_new || (!stays && self.tx.sub_state != Some(SubState::Submitted)) {
            self.tx.token = token;
            let sub = match self.tx.sub_state {
                Some(sub) if stays => sub,
                Some(_) | None => SubState::Submitted,
            };
            let state = self.tx.state;
            self.tx.transition(state, sub, now);
            step.writes.updates.push(self.tx.clone());
        }
    }

    /// Its bytes are tried again, each time after twice as long.
    pub(super) fn try_later(&mut self, now: Timestamp) {
        self.retry_at = Some(now.plus(self.next_wait()));
    }

    /// The signer is asked again, each time after twice as long.
    pub(super) fn sign_later(&mut self, now: Timestamp) {
        self.sign_at = Some(now.plus(self.next_wait()));
    }

    fn next_wait(&mut self) -> Duration {
        let wait = RETRY_FIRST
            .saturating_mul(2_u32.saturating_pow(self.tries))
            .min(RETRY_MAX);
        self.tries = self.tries.saturating_add(1);
        wait
    }

    /// Not later than this.
    fn try_within(&mut self, most: Duration, now: Timestamp) {
        self.retry_at = self.retry_at.map(|at| at.min(now.plus(most)));
    }

    /// Waits for something that a person may have to do, so it is written down; once, not per try.
    pub(super) fn waits(
        &mut self,
        sub: SubState,
        reason: String,
        token: Token,
        now: Timestamp,
        step: &mut Step,
    ) {
        self.try_later(now);
        self.is_blocked = true;
        // Whoever reads the lane again must not outbid somebody else's: no other word takes its place.
        let sub = match self.is_foreign_pending {
            true => SubState::ForeignPending,
            false => sub,
        };
        if self.tx.sub_state == Some(sub) || self.tx.state == TxState::Stuck {
            self.tx.reason.get_or_insert(reason);
            return;
        }
        self.tx.reason = Some(reason);
        self.tx.token = token;
        self.tx.transition(TxState::Tracking, sub, now);
        step.writes.updates.push(self.tx.clone());
    }
}
