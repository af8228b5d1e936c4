//! What becomes of loans without a word of their holders: time passes, and the chain shows things.

use std::time::Duration;

use alloy_primitives::B256;

use super::{RESERVE_TIMEOUT, ReservationTerms};
use crate::lane::{ChainQuery, Effect, Lane, Stage, Step};
use crate::mutation::{self, Mutation};
use crate::{EventKind, Nonce, SubState, Timestamp, Tx, TxState};

/// What one tick counts at most for the time that a nonce is lent: a clock that is set forward ends none.
const TICK_COUNTS_MAX: Duration = Duration::from_secs(2);

impl Lane {
    /// A lent nonce is consumed at final depth, by a transaction that its holder did not name.
    /// `is_named`: a tx of the store has it as its attempt already, as when a former holder gave the nonce back
    /// and his transaction was mined after all.
    pub(in crate::lane) fn lent_was_consumed(
        &mut self,
        nonce: Nonce,
        by: Option<B256>,
        is_named: bool,
        now: Timestamp,
        step: &mut Step,
    ) {
        // It belongs to the account, so it is what was borrowed for: watched, and closed by its receipt.
        if let Some(hash) = by.filter(|_| !is_named) {
            if self.sent_elsewhere(nonce, hash, now, step).is_ok() {
                step.effects.push(Effect::FetchReceipts(vec![hash]));
            }
            return;
        }
        let Some(mut slot) = self.slots.remove(&nonce) else {
            return;
        };
        self.unmined = self.unmined.saturating_sub(1);
        self.consumed_below = self.consumed_below.max(nonce.next());
        self.unwatch(&slot, step);
        // A hash is one attempt's for ever, so this loan ends without one.
        slot.tx.tx_hash = by.or(slot.tx.tx_hash);
        slot.tx.reason = Some(match by {
            Some(hash) => format!("nonce {nonce} was consumed by a former holder's {hash}"),
            None => {
                format!("nonce {nonce} is consumed, and no endpoint shows by which transaction")
            }
        });
        self.end_loan(slot, SubState::ForeignNonce, now, step);
    }

    /// Somebody wants to borrow who may know more of the chain than the lane does: it asks before it lends.
    pub(in crate::lane) fn ask_before_lending(&mut self, tx: &Tx, step: &mut Step) {
        let Some(loan) = ReservationTerms::noted(&tx.payload).filter(|_| self.lends()) else {
            return;
        };
        if self.chain.is_none() || self.rules.chain_query == ChainQuery::Off {
            return; // nothing is dealt before the chain is known, if it is to be known
        }
        let knows_more = loan.at_least > self.used_below();
        // What somebody else had pending there seems to be gone.
        let shows_less = self.doubtful.range(loan.at_least..).next().is_some();
        if knows_more || shows_less {
            // A question that is under way may have been asked before he looked.
            let to_come = 1_u8.saturating_add(u8::from(self.asking_chain));
            self.answers_awaited = self.answers_awaited.max(to_come);
            self.ask_in_doubt(step);
        }
    }

    /// An answer of the chain is there; whether those who borrow need another one.
    pub(in crate::lane) fn count_awaited_answer(&mut self, step: &mut Step) {
        self.answers_awaited = self.answers_awaited.saturating_sub(1);
        if self.answers_awaited > 0 {
            self.ask_in_doubt(step);
        }
    }

    /// Whether a receipt of what was named for a nonce must wait: as far as is known the nonce is not consumed, so the
    /// transaction may be another account's, or have another nonce. The chain is asked.
    pub(in crate::lane) fn is_unproven(&mut self, nonce: Nonce, step: &mut Step) -> bool {
        let is_known = self.rules.chain_query != ChainQuery::Off;
        let waits = self.lends() && is_known && self.latest() <= nonce;
        if waits {
            self.unproven.insert(nonce);
            self.ask_in_doubt(step);
        }
        waits
    }

    /// The chain's nonce is told anew: receipts that waited for it are read.
    pub(in crate::lane) fn read_unproven(&mut self, latest: Nonce, step: &mut Step) {
        let waiting = self.unproven.split_off(&latest);
        let proven = std::mem::replace(&mut self.unproven, waiting);
        if !proven.is_empty() {
            self.check_what_may_be_mined(latest, step);
        }
    }

    /// At every block, while receipts wait: whoever was asked before may have been behind.
    pub(in crate::lane) fn ask_for_unproven(&mut self, step: &mut Step) {
        let slots = &self.slots;
        let is_open = |nonce: &Nonce| slots.get(nonce).is_some_and(|s| s.stage != Stage::Mined);
        self.unproven.retain(is_open);
        if !self.unproven.is_empty() {
            self.ask_in_doubt(step);
        }
    }

    /// Whether a free nonce stands before others that are out, which wait for it: it does not wait for room. (A
    /// fork may have opened more than the window allows.)
    pub(in crate::lane) fn lends_before_others(&self) -> bool {
        let last = self.slots.last_key_value().map(|(nonce, _)| *nonce);
        let mut free = self.gaps.range(self.used_below()..);
        self.lends() && free.next().is_some_and(|(gap, _)| Some(*gap) < last)
    }

    /// Below this everything is consumed or pending, as far as is known.
    fn used_below(&self) -> Nonce {
        self.chain.map_or(Nonce(0), |known| {
            known.nonces.latest.max(known.nonces.pending)
        })
    }

    /// A free nonce that is consumed or pending, as far as is known by now, is not lent.
    pub(in crate::lane) fn set_used_gaps_aside(&mut self) {
        if !self.lends() {
            return;
        }
        let free = self.gaps.split_off(&self.used_below());
        let used = std::mem::replace(&mut self.gaps, free);
        self.doubtful.extend(used.into_keys());
    }

    /// Whether whoever wanted to borrow has given up: his nonce would be lent to nobody until its time is over.
    pub(in crate::lane) fn is_given_up(&self, tx: &Tx, now: Timestamp) -> bool {
        let waits_for = self
            .rules
            .lent
            .map(|lending| lending.timeout_of(tx).max(RESERVE_TIMEOUT));
        waits_for.is_some_and(|time| now.since(tx.created_at) > time)
    }

    /// Ends a loan that was never dealt a nonce.
    pub(in crate::lane) fn end_unlent(&mut self, mut tx: Tx, now: Timestamp, step: &mut Step) {
        let reason = "whoever wanted to borrow has given up".to_owned();
        tx.reason = Some(reason.clone());
        tx.token = self.lease_grant.token;
        tx.confirmed_at = Some(now);
        tx.transition(TxState::FailedFinal, SubState::Cancelled, now);
        self.emit_event(step, Some(&mut tx), EventKind::TxFailed { reason }, now);
        step.writes.queued_removed.push(tx.id);
        step.writes.updates.push(tx);
    }

    /// Counts how long nonces are lent, and frees those whose holder said nothing for too long, if the chain
    /// shows nothing of them: asked after their time was over, and of every endpoint that must be asked.
    pub(in crate::lane) fn look_at_loans(&mut self, now: Timestamp, step: &mut Step) {
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
        // What is mined above a nonce shows that it is consumed, whatever a node behind says.
        let mined = self.slots.iter().rfind(|(_, s)| s.stage == Stage::Mined);
        let consumed_below = mined.map_or(self.consumed_below, |(nonce, _)| nonce.next());
        for (nonce, slot) in &mut self.slots {
            if slot.stage != Stage::Lent {
                continue;
            }
            // The tick before its first one may have been long before it was lent.
            let lent_for = slot
                .lent_for
                .map_or(Duration::ZERO, |lent| lent.saturating_add(passed));
            slot.lent_for = Some(lent_for);
            if lent_for < lending.timeout_of(&slot.tx).saturating_add(lending.grace) {
                continue;
            }
            let asked_from = *slot.overdue_since.get_or_insert(comes);
            is_overdue = true;
            let shows_nothing = self.chain.is_some_and(|known| {
                known.saw_pools && known.nonces.latest <= *nonce && known.nonces.pending <= *nonce
            }) && consumed_below <= *nonce;
            let was_asked = heard > asked_from && shows_nothing;
            if was_asked || mutation::is_on(Mutation::FreeOverdueUnasked) {
                free.push(*nonce);
            }
        }
        for nonce in free {
            let reason = "its holder said nothing for too long, and the chain shows nothing of it";
            self.give_back(nonce, reason, now, step).ok(); // one that is mined stays
        }
        if is_overdue {
            self.stay_in_doubt(now, step);
        }
    }
}
