//! What nodes said of our bytes, and sending again.

use std::time::Duration;

use alloy_primitives::B256;

use crate::attempt::Outgoing;
use crate::{Attempt, EventKind, Nonce, SendOutcome, SubState, Time, Token, TxId, TxState};

use super::{ChainQuery, Effect, Known, Lane, Slot, Stage, Step};

/// The first wait after a send that gave nothing.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A burst of refusals within this time narrows the depth once.
const NARROW_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);

impl Lane {
    pub(super) fn sent(
        &mut self,
        hash: B256,
        nonce: Nonce,
        outcome: SendOutcome,
        now: Time,
        step: &mut Step,
    ) {
        let token = self.right.token;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let is_known = slot.attempts.iter().any(|attempt| attempt.hash == hash);
        if !is_known || slot.stage == Stage::Mined {
            return;
        }
        match outcome {
            SendOutcome::Accepted => self.submitted(hash, nonce, now, step),
            SendOutcome::NonceTooLow => {
                // Ours, perhaps mined already; or foreign. Only the chain can tell: its answer asks
                // for the receipts of everything below it.
                let why = "a node says that its nonce is used, and no receipt of it is known";
                slot.tx.reason = Some(why.into());
                slot.try_later(now);
                self.ask_chain(step);
            }
            SendOutcome::Underfunded(text) => {
                let reason = format!("the account cannot pay: {text}");
                slot.waits(SubState::Underfunded, reason, token, now, step);
            }
            SendOutcome::Underpriced(text) | SendOutcome::ReplacementUnderpriced(text) => {
                let reason = format!("the fee is too low: {text}");
                slot.waits(SubState::Underpriced, reason, token, now, step);
            }
            SendOutcome::Rejected(text) => {
                let reason = format!("a node refused it: {text}");
                slot.waits(SubState::Rejected, reason, token, now, step);
            }
            SendOutcome::Busy(text) => {
                slot.tx.reason = Some(format!("no node takes it at present: {text}"));
                slot.try_later(now);
                self.narrow_depth(now);
            }
            SendOutcome::Unknown(text) => {
                slot.tx.reason = Some(format!("the node's answer was lost: {text}"));
                slot.try_later(now);
            }
            SendOutcome::NotSent(_) => slot.try_later(now),
        }
    }

    fn submitted(&mut self, hash: B256, nonce: Nonce, now: Time, step: &mut Step) {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        slot.retry_at = None;
        slot.tries = 0;
        slot.stage = Stage::Submitted;
        // Whatever was in the way is over; a later write must not tell it.
        slot.tx.reason = None;
        let is_new = self.first_sent(&mut slot, hash, nonce, now, step);
        // One that a node refused, or that a fork took back, is at a node again.
        if is_new || slot.tx.sub_state != Some(SubState::Submitted) {
            slot.tx.token = self.right.token;
            let state = slot.tx.state;
            slot.tx.go(state, SubState::Submitted, now);
            step.writes.updates.push(slot.tx.clone());
        }
        self.slots.insert(nonce, slot);
        self.depth.recover();
        self.ask_whether_the_node_holds_it(step);
    }

    /// Writes down that a node has this attempt, once; says whether that was new.
    pub(super) fn first_sent(
        &mut self,
        slot: &mut Slot,
        hash: B256,
        nonce: Nonce,
        now: Time,
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
        step.writes.first_sent.push((hash, now));
        self.tell(
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

    /// A burst of refusals narrows once, however many envelopes it had.
    fn narrow_depth(&mut self, now: Time) {
        if self
            .narrowed_at
            .is_none_or(|at| now.since(at) >= NARROW_PAUSE)
        {
            self.narrowed_at = Some(now);
            self.depth.narrow();
        }
    }

    /// When a burst is out and more waits: does the node really hold all of it? One question for all.
    fn ask_whether_the_node_holds_it(&mut self, step: &mut Step) {
        let more_waits = self.backlog.is_some() && self.room() == 0;
        let tells_pending = self.rules.chain_query == ChainQuery::Pending;
        if more_waits
            && tells_pending
            && self.depth.wants_to_know()
            && self
                .slots
                .values()
                .all(|slot| matches!(slot.stage, Stage::Submitted | Stage::Mined))
        {
            self.probing = true;
            self.ask_chain(step);
        }
    }

    pub(super) fn tick(&mut self, fresh: TxId, now: Time, step: &mut Step) {
        self.survive_clock_jumps(now);
        self.retry(now, step);
        self.resubmit_head(now, step);
        self.fill_a_gap(fresh, now, step);
        let is_old = |known: &Known| now.since(known.at) >= self.rules.chain_nonce_timeout;
        if self.chain.as_ref().is_some_and(is_old) && !self.is_idle() {
            self.ask_chain(step);
        }
    }

    /// A wall clock that was set back must not put everything off until it has caught up.
    fn survive_clock_jumps(&mut self, now: Time) {
        for slot in self.slots.values_mut() {
            slot.claimed_at = slot.claimed_at.min(now);
            slot.retry_at = slot.retry_at.map(|at| at.min(now.plus(RETRY_MAX)));
        }
        for since in self.gaps.values_mut() {
            *since = (*since).min(now);
        }
        if let Some(known) = &mut self.chain {
            known.at = known.at.min(now);
        }
        self.old_checked_at = self.old_checked_at.map(|at| at.min(now));
        self.narrowed_at = self.narrowed_at.map(|at| at.min(now));
    }

    /// Tries again what is due, in nonce order.
    fn retry(&mut self, now: Time, step: &mut Step) {
        let due: Vec<Nonce> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.retry_at.is_some_and(|at| at <= now))
            .map(|(nonce, _)| *nonce)
            .collect();
        for nonce in due {
            let Some(slot) = self.slots.get_mut(&nonce) else {
                continue;
            };
            slot.retry_at = None;
            match slot.stage {
                Stage::Signing => {
                    let (tx, kind) = (slot.tx.clone(), slot.kind);
                    let unsigned = self.envelope(&tx, nonce, kind);
                    step.effects.extend(unsigned.map(Effect::Sign));
                }
                Stage::Out | Stage::Submitted => {
                    step.effects.extend(slot.newest().map(Effect::Send));
                }
                Stage::Mined => {}
            }
        }
    }

    /// Only the lowest unmined nonce can unblock a lane, so only it is claimed and sent again.
    fn resubmit_head(&mut self, now: Time, step: &mut Step) {
        let rules = self.rules;
        let Some(slot) = self
            .slots
            .values_mut()
            .find(|slot| slot.stage != Stage::Mined)
        else {
            return;
        };
        let waited = now.since(slot.claimed_at);
        let is_due = rules
            .resubmit_interval
            .is_some_and(|interval| waited >= interval);
        if slot.stage == Stage::Submitted && is_due && slot.retry_at.is_none() {
            // The claim is durable before the bytes leave again: the next keeper sees it.
            slot.claimed_at = now;
            slot.tx.updated_at = now;
            slot.tx.token = self.right.token;
            step.writes.updates.push(slot.tx.clone());
            step.effects.extend(slot.newest().map(Effect::Send));
            self.ask_chain(step);
            return;
        }
        // Perhaps it is mined and its receipt got lost: the account's nonce tells.
        let stale = rules.stale_receipt_timeout;
        let is_old = self.chain.is_none_or(|known| now.since(known.at) >= stale);
        if slot.stage != Stage::Signing && waited >= stale && is_old {
            self.ask_chain(step);
        }
    }

    /// Fills the smallest gap when others wait behind it and no new request has taken it.
    fn fill_a_gap(&mut self, fresh: TxId, now: Time, step: &mut Step) {
        let Some((nonce, since)) = self.gaps.first_key_value().map(|(n, at)| (*n, *at)) else {
            return;
        };
        let others_wait = self.slots.range(nonce..).next().is_some() || self.backlog.is_some();
        let nothing_pending = self
            .chain
            .is_none_or(|known| known.nonces.pending <= nonce && known.at >= since);
        let is_due = now.since(since) >= self.rules.gap_fill_after;
        let is_its_turn = self.is_before_backlog(nonce) && self.has_room_for(nonce);
        if !others_wait || !is_due || !is_its_turn || !self.may_sign() {
            return;
        }
        if nothing_pending {
            self.fill(nonce, fresh, now, step);
        } else {
            self.ask_chain(step);
        }
    }
}

impl Slot {
    /// The newest attempt, ready to leave.
    pub(super) fn newest(&self) -> Option<Outgoing> {
        self.attempts.last().map(Attempt::outgoing)
    }

    /// Waits twice as long as the last time.
    pub(super) fn try_later(&mut self, now: Time) {
        let wait = RETRY_FIRST
            .saturating_mul(2_u32.saturating_pow(self.tries))
            .min(RETRY_MAX);
        self.tries = self.tries.saturating_add(1);
        self.retry_at = Some(now.plus(wait));
    }

    /// Waits for something that a person may have to do, so it is written down; once, not per try.
    fn waits(&mut self, sub: SubState, reason: String, token: Token, now: Time, step: &mut Step) {
        self.try_later(now);
        if self.tx.sub_state == Some(sub) {
            return;
        }
        self.tx.reason = Some(reason);
        self.tx.token = token;
        let state = if self.tx.state == TxState::Stuck {
            TxState::Stuck
        } else {
            TxState::Tracking
        };
        self.tx.go(state, sub, now);
        step.writes.updates.push(self.tx.clone());
    }
}

impl Attempt {
    /// The bytes, ready to leave.
    #[must_use]
    pub fn outgoing(&self) -> Outgoing {
        Outgoing {
            nonce: self.nonce,
            hash: self.hash,
            raw: self.raw.clone(),
        }
    }
}
