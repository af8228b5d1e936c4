//! Nonces that are lent: the lane of an account whose key is elsewhere.
//!
//! A lent nonce is a tx whose bytes somebody else makes. It has no payload here; its holder says what became
//! of it, and the chain closes it. Everything else (the fence, the cursor, receipts, finality, forks) is as for
//! any other tx. A lane lends, or sends; never both.

use std::time::Duration;

use alloy_primitives::{B256, Bytes, U256};

use crate::reservation::{Holder, Mark, MarkRefused, Reservation, ReservationState};
use crate::{
    Attempt, AttemptKind, EventKind, Fees, LaneKey, Nonce, Payload, RequestId, SubState, Time, Tx,
    TxState,
};

use super::{Effect, Lane, Slot, Stage, Step};

/// The most nonces of one lane that are lent at once.
pub const LENT_MAX: u64 = 10_000;
/// What one tick counts at most for the time that a nonce is lent: a clock that is set forward ends none.
const TICK_COUNTS_MAX: Duration = Duration::from_secs(2);
/// How a loan's key begins. Requests of businesses may not.
pub const LENT_PREFIX: &str = "lanekeeper-lent-";

/// How nonces of a lane are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lending {
    /// After how long a nonce whose holder said nothing is looked at. Counted by whoever keeps the lane: a
    /// change of hands starts it anew.
    pub timeout: Duration,
}

/// What came of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Taken.
    Taken(Reservation),
    /// Refused by the rules.
    Refused(MarkRefused),
    /// The nonce is not open in memory: what its row says decides, see [`lent_to`].
    NotOpen,
}

/// The key of a loan: whoever borrows twice under one name gets one nonce.
#[must_use]
pub fn lent_request_id(holder: Holder) -> RequestId {
    RequestId::parse(format!("{LENT_PREFIX}{}", holder.0))
        .expect("a uuid with a short prefix keeps the rule")
}

/// What stands in the row of a loan instead of a payload.
#[must_use]
pub fn lent_payload(lane: LaneKey) -> Payload {
    Payload {
        gas: Some(0),
        ..Payload::transfer(lane.signer, U256::ZERO)
    }
}

/// The reservation that a row stands for; `None` when it is no loan, or has no nonce yet. A nonce that was given
/// back is not in its row any more: it is the one that was `asked` about.
#[must_use]
pub fn lent_to(
    lane: LaneKey,
    tx: &Tx,
    asked: Option<Nonce>,
    timeout: Duration,
) -> Option<Reservation> {
    let holder = tx.request_id.as_str().strip_prefix(LENT_PREFIX)?;
    let state = match (tx.nonce, tx.state.is_terminal()) {
        (None, true) => ReservationState::Recyclable,
        (Some(_), true) => ReservationState::Used,
        // Its holder said that it is used; the chain has not closed it yet.
        (Some(_), false) if tx.confirmed_at.is_some() => ReservationState::Used,
        (_, false) => ReservationState::Reserved,
    };
    Some(Reservation {
        lane,
        nonce: tx.nonce.or(asked)?,
        holder: Holder(holder.parse().ok()?),
        state,
        tx_hash: tx.tx_hash,
        expires_at: tx.created_at.plus(timeout),
        reason: tx.reason.clone(),
    })
}

impl Lane {
    /// Whether its nonces are lent.
    pub(super) fn lends(&self) -> bool {
        self.rules.lent.is_some()
    }

    /// Why a tx of the store does not belong in this lane.
    pub(super) fn is_misplaced(&self, tx: &Tx) -> Option<String> {
        let is_lent = tx.request_id.as_str().starts_with(LENT_PREFIX);
        match (self.lends(), is_lent) {
            (true, true) | (false, false) => None,
            (true, false) => Some(
                "this account is set to lend its nonces (signer kind external), and has txs that were to be \
                 sent from here: give it its key back until they have ended"
                    .to_owned(),
            ),
            (false, true) => Some(
                "nonces of this account are lent (signer kind external), and it is set to send by itself now: \
                 set it back until they are used or given back"
                    .to_owned(),
            ),
        }
    }

    /// A nonce was dealt to a loan: its holder has it from the commit on.
    pub(super) fn lend(&mut self, tx: Tx, nonce: Nonce, now: Time) {
        self.unmined = self.unmined.saturating_add(1);
        let slot = Slot {
            stage: Stage::Lent,
            signing: None,
            ..Slot::new(tx, AttemptKind::Original, now)
        };
        let before = self.slots.insert(nonce, Box::new(slot));
        assert!(
            before.is_none(),
            "lane {}: nonce {nonce} is lent twice",
            self.key
        );
    }

    /// Loans that nothing was said of yet, as they were read. Nothing is lent or marked before all are here.
    pub(super) fn take_lent(&mut self, txs: Vec<Tx>, more: bool, now: Time) {
        if self.loading_backlog.take().is_none() {
            return;
        }
        let last = txs.last().and_then(|tx| tx.nonce).filter(|_| more);
        self.backlog = last.map(Nonce::next);
        for tx in txs {
            if let Some(why) = self.is_misplaced(&tx) {
                self.misplaced = Some(why);
            }
            if let Some(nonce) = tx.nonce.filter(|nonce| !self.slots.contains_key(nonce)) {
                self.lend(tx, nonce, now);
            }
        }
    }

    /// Takes what a holder says of his nonce.
    pub fn mark(&mut self, nonce: Nonce, holder: Holder, mark: &Mark, now: Time) -> (Step, Marked) {
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
        now: Time,
        step: &mut Step,
    ) -> Marked {
        let Some(mut told) = self.reservation(nonce) else {
            return Marked::NotOpen;
        };
        if told.holder != holder {
            // Perhaps the nonce was his before: his row tells what became of that.
            return Marked::NotOpen;
        }
        if let Err(refused) = told.mark(holder, mark) {
            return Marked::Refused(refused);
        }
        let refused = match mark {
            Mark::Submitted(hash) => self.sent_elsewhere(nonce, *hash, now, step).err(),
            Mark::Used(hash) => {
                let sent = self.sent_elsewhere(nonce, *hash, now, step);
                if sent.is_ok() {
                    self.said_used(nonce, now, step);
                }
                sent.err()
            }
            Mark::Recyclable(reason) => self.give_back(nonce, reason, now, step).err(),
        };
        match refused {
            Some(refused) => Marked::Refused(refused),
            None => Marked::Taken(told),
        }
    }

    /// What is lent at a nonce, as far as memory has it.
    fn reservation(&self, nonce: Nonce) -> Option<Reservation> {
        let timeout = self.rules.lent?.timeout;
        let slot = self.slots.get(&nonce)?;
        lent_to(self.key, &slot.tx, None, timeout)
    }

    /// A transaction that was made elsewhere stands at a lent nonce: it is watched like any other.
    fn sent_elsewhere(
        &mut self,
        nonce: Nonce,
        hash: B256,
        now: Time,
        step: &mut Step,
    ) -> Result<(), MarkRefused> {
        match self.by_hash.get(&hash) {
            Some(at) if *at == nonce => return Ok(()), // said before
            Some(at) => return Err(MarkRefused::HashElsewhere { hash, nonce: *at }),
            None => {}
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return Err(MarkRefused::NotLent(nonce));
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
            slot.tx.go(TxState::Tracking, SubState::Submitted, now);
        }
        slot.claimed_at = now;
        slot.tx.token = self.right.token;
        self.tell(step, Some(&mut slot.tx), told, now);
        self.by_hash.insert(hash, nonce);
        step.writes.attempts.push(attempt.clone());
        step.writes.updates.push(slot.tx.clone());
        step.effects.push(Effect::Watch(hash));
        slot.attempts.push(attempt);
        self.slots.insert(nonce, slot);
        Ok(())
    }

    /// Its holder says that it is used: written down, and not given back any more. The chain closes it.
    fn said_used(&mut self, nonce: Nonce, now: Time, step: &mut Step) {
        let token = self.right.token;
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
    fn give_back(
        &mut self,
        nonce: Nonce,
        reason: &str,
        now: Time,
        step: &mut Step,
    ) -> Result<(), MarkRefused> {
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return Err(MarkRefused::NotLent(nonce));
        };
        if let Some(mined) = &slot.tx.inclusion {
            let by = mined.tx_hash.to_string();
            self.slots.insert(nonce, slot);
            return Err(MarkRefused::IsUsed { nonce, by });
        }
        self.unmined = self.unmined.saturating_sub(1);
        self.fresh_gaps.insert(nonce);
        self.unwatch(&slot, step);
        slot.tx.nonce = None;
        slot.tx.tx_hash = None;
        slot.tx.reason = Some(reason.to_owned());
        self.end_loan(slot, SubState::Cancelled, now, step);
        Ok(())
    }

    fn unwatch(&mut self, slot: &Slot, step: &mut Step) {
        for attempt in &slot.attempts {
            self.by_hash.remove(&attempt.hash);
            step.effects.push(Effect::Unwatch(attempt.hash));
        }
    }

    fn end_loan(&mut self, mut slot: Box<Slot>, sub: SubState, now: Time, step: &mut Step) {
        let reason = slot.tx.reason.clone().unwrap_or_default();
        slot.tx.token = self.right.token;
        slot.tx.confirmed_at = Some(now);
        slot.tx.go(TxState::FailedFinal, sub, now);
        let kind = EventKind::TxFailed { reason };
        self.tell(step, Some(&mut slot.tx), kind, now);
        step.writes.updates.push(slot.tx);
    }

    /// A lent nonce is consumed at final depth, by a transaction that its holder did not name.
    pub(super) fn lent_was_consumed(
        &mut self,
        nonce: Nonce,
        by: Option<B256>,
        now: Time,
        step: &mut Step,
    ) {
        let Some(hash) = by else {
            let Some(mut slot) = self.slots.remove(&nonce) else {
                return;
            };
            self.unmined = self.unmined.saturating_sub(1);
            self.consumed_below = self.consumed_below.max(nonce.next());
            self.unwatch(&slot, step);
            slot.tx.reason = Some(format!(
                "nonce {nonce} is consumed, and no endpoint shows by which transaction"
            ));
            self.end_loan(slot, SubState::ForeignNonce, now, step);
            return;
        };
        // It belongs to the account, so it is what was borrowed for: watched, and closed by its receipt.
        if self.sent_elsewhere(nonce, hash, now, step).is_ok() {
            step.effects.push(Effect::FetchReceipts(vec![hash]));
        }
    }

    /// Counts how long nonces are lent, and frees those whose holder said nothing for too long, if the chain
    /// shows nothing of them: asked after their time was over, and of every endpoint that must be asked.
    pub(super) fn look_at_loans(&mut self, now: Time, step: &mut Step) {
        let Some(lending) = self.rules.lent else {
            return;
        };
        let since = self.ticked_at.replace(now);
        let passed = since.map_or(Duration::ZERO, |since| {
            now.since(since).min(TICK_COUNTS_MAX)
        });
        let heard = self.answers;
        let comes = heard.saturating_add(u64::from(self.asking_chain));
        let mut is_overdue = false;
        let mut free = Vec::new();
        for (nonce, slot) in &mut self.slots {
            if slot.stage != Stage::Lent {
                continue;
            }
            slot.lent_for = slot.lent_for.saturating_add(passed);
            if slot.lent_for < lending.timeout {
                continue;
            }
            let asked_from = *slot.overdue_since.get_or_insert(comes);
            is_overdue = true;
            let shows_nothing = self.chain.is_some_and(|known| {
                known.is_complete && known.nonces.latest <= *nonce && known.nonces.pending <= *nonce
            });
            if heard > asked_from && shows_nothing {
                free.push(*nonce);
            }
        }
        for nonce in free {
            let reason = "its holder said nothing for too long, and the chain shows nothing of it";
            self.give_back(nonce, reason, now, step).ok(); // one that is mined stays
        }
        if is_overdue && self.may_ask_again(now) {
            self.ask_in_doubt(step);
        }
    }
}
