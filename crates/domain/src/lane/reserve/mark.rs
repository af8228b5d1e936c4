//! What holders say of their nonces.

use alloy_primitives::{B256, Bytes};

use crate::mutation::{self, Mutation};
use crate::reservation::{Holder, Mark, MarkRefusal, Reservation};
use crate::{Attempt, AttemptKind, EventKind, Fees, Nonce, SubState, Timestamp, TxState};

use super::{MarkOutcome, lent_to};
use crate::lane::{Effect, Lane, Slot, Stage, Step};

impl Lane {
    /// Takes what a holder says of his nonce.
    pub fn mark(
        &mut self,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
        now: Timestamp,
    ) -> (Step, MarkOutcome) {
        let mut step = Step::default();
        let marked = self.take_mark(nonce, holder, mark, now, &mut step);
        self.pump(now, &mut step);
        (step, marked)
    }

    fn take_mark(
        &mut self,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
        now: Timestamp,
        step: &mut Step,
    ) -> MarkOutcome {
        let Some(mut told) = self.reservation(nonce) else {
            return match nonce < self.next_nonce {
                true => MarkOutcome::NotOpen {
                    is_free: self.is_free(nonce),
                },
                false => MarkOutcome::Refused(MarkRefusal::NotLent(nonce)),
            };
        };
        if mutation::is_on(Mutation::HearFormerHolder) {
            told.holder = holder;
        }
        if let Err(refused) = told.mark(holder, mark) {
            return MarkOutcome::Refused(refused);
        }
        let taken = match mark {
            Mark::Submitted(hash) => self.sent_elsewhere(nonce, *hash, now, step),
            Mark::Used(hash) => self
                .sent_elsewhere(nonce, *hash, now, step)
                .inspect(|()| self.said_used(nonce, now, step)),
            Mark::Recyclable { reason, .. } => self.give_back(nonce, reason, now, step),
        };
        match taken {
            // What the chain shows weighs more than what was said.
            Ok(()) => MarkOutcome::Taken(self.reservation(nonce).unwrap_or(told)),
            Err(refused) => MarkOutcome::Refused(refused),
        }
    }

    /// Whether a nonce below the cursor that nobody holds is not consumed, as far as is known.
    fn is_free(&self, nonce: Nonce) -> bool {
        self.gaps.contains_key(&nonce)
            || self.fresh_gaps.contains(&nonce)
            || self.maybe_gaps.contains_key(&nonce)
            || self.doubtful.contains(&nonce)
            // The chain was not asked yet since the lane was read, or never is.
            || self.unsettled.as_ref().is_some_and(|read| {
                let is_held = read.held.iter().any(|run| run.contains(&nonce.0));
                (read.consumed_below..read.next_nonce).contains(&nonce) && !is_held
            })
    }

    /// What is lent at a nonce, as far as memory has it.
    fn reservation(&self, nonce: Nonce) -> Option<Reservation> {
        let lending = self.rules.lent?;
        let slot = self.slots.get(&nonce)?;
        let lent = lent_to(self.key, &slot.tx, None, lending)?;
        Some(lent.with_attempts(&slot.attempts))
    }

    /// A transaction that was made elsewhere stands at a lent nonce: it is watched like any other.
    pub(super) fn sent_elsewhere(
        &mut self,
        nonce: Nonce,
        hash: B256,
        now: Timestamp,
        step: &mut Step,
    ) -> Result<(), MarkRefusal> {
        match self.by_hash.get(&hash) {
            Some(at) if *at == nonce => {
                self.said_again(nonce, hash, now, step);
                return Ok(());
            }
            Some(at) => return Err(MarkRefusal::HashElsewhere { hash, nonce: *at }),
            None => {}
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return Err(MarkRefusal::NotLent(nonce));
        };
        let is_first = slot.attempts.is_empty();
        let attempt = Attempt {
            hash,
            tx_id: slot.tx.id,
            kind: match is_first {
                true => AttemptKind::Original,
                false => AttemptKind::Replace,
            },
            nonce,
            gas: 0,
            fees: Fees::Legacy { gas_price: 0 },
            raw: Bytes::new(),
            signed_at: now,
            first_sent_at: Some(now),
        };
        let told = match is_first {
            true => EventKind::TxSubmitted {
                tx_hash: hash,
                nonce,
            },
            false => EventKind::TxReplaced {
                tx_hash: hash,
                nonce,
                kind: AttemptKind::Replace,
            },
        };
        if slot.stage != Stage::Mined {
            slot.stage = Stage::Submitted;
            slot.tx.tx_hash = Some(hash);
            slot.tx
                .transition(TxState::Tracking, SubState::Submitted, now);
        }
        slot.claimed_at = now;
        slot.tx.token = self.lease_grant.token;
        self.emit_event(step, Some(&mut slot.tx), told, now);
        self.by_hash.insert(hash, nonce);
        step.writes.attempts.push(attempt.clone());
        step.writes.updates.push(slot.tx.clone());
        step.effects.push(Effect::Watch(hash));
        slot.attempts.push(attempt);
        self.slots.insert(nonce, slot);
        Ok(())
    }

    /// A transaction that was named before is named again, perhaps after another one: the last word counts.
    fn said_again(&mut self, nonce: Nonce, hash: B256, now: Timestamp, step: &mut Step) {
        let token = self.lease_grant.token;
        let slot = self.slots.get_mut(&nonce);
        let Some(slot) = slot.filter(|slot| slot.stage != Stage::Mined) else {
            return;
        };
        if slot.tx.tx_hash != Some(hash) {
            slot.tx.tx_hash = Some(hash);
            slot.tx.updated_at = now;
            slot.tx.token = token;
            step.writes.updates.push(slot.tx.clone());
        }
    }

    /// Its holder says that it is used: written down, and not given back any more. The chain closes it.
    fn said_used(&mut self, nonce: Nonce, now: Timestamp, step: &mut Step) {
        let token = self.lease_grant.token;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.tx.confirmed_at.is_none() {
            slot.tx.confirmed_at = Some(now);
            slot.tx.updated_at = now;
            slot.tx.token = token;
            step.writes.updates.push(slot.tx.clone());
        }
    }

    /// Nobody uses a lent nonce: the next who borrows gets it.
    pub(super) fn give_back(
        &mut self,
        nonce: Nonce,
        reason: &str,
        now: Timestamp,
        step: &mut Step,
    ) -> Result<(), MarkRefusal> {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return Err(MarkRefusal::NotLent(nonce));
        };
        if let Some(mined) = &slot.tx.inclusion {
            let by = mined.tx_hash.to_string();
            self.slots.insert(nonce, slot);
            return Err(MarkRefusal::IsUsed { nonce, by });
        }
        self.unmined = self.unmined.saturating_sub(1);
        self.fresh_gaps.insert(nonce);
        self.unwatch(&slot, step);
        slot.tx.nonce = None;
        slot.tx.reason = Some(reason.to_owned());
        self.end_loan(slot, SubState::Cancelled, now, step);
        Ok(())
    }

    pub(super) fn unwatch(&mut self, slot: &Slot, step: &mut Step) {
        for attempt in &slot.attempts {
            self.by_hash.remove(&attempt.hash);
            step.effects.push(Effect::Unwatch(attempt.hash));
        }
    }

    pub(super) fn end_loan(
        &mut self,
        mut slot: Box<Slot>,
        sub: SubState,
        now: Timestamp,
        step: &mut Step,
    ) {
        let reason = slot.tx.reason.clone().unwrap_or_default();
        slot.tx.token = self.lease_grant.token;
        slot.tx.confirmed_at = Some(now);
        slot.tx.transition(TxState::FailedFinal, sub, now);
        let kind = EventKind::TxFailed { reason };
        self.emit_event(step, Some(&mut slot.tx), kind, now);
        step.writes.updates.push(slot.tx);
    }
}
