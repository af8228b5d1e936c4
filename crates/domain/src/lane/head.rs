//! The lane's head: the lowest nonce that the chain waits for. While it cannot be mined, nothing behind it can be either.
//!
//! Its reason goes into the lane's row, where every node finds it for the head and for all txs behind it. With
//! `lane.blockedTimeout` its time as head is counted, and a no-op takes its nonce when that is over.
//!
//! Invariants: time counts from block to block, and no block counts for more than [`BLOCK_TIME_MAX`], so that neither a
//! chain that stands still nor one that is out of reach ends a tx. The count begins anew with every head. A no-op that the
//! account cannot pay for is not signed.

use std::time::Duration;

use crate::{AttemptKind, Nonce, SubState, Timestamp};

use super::slots::Slot;
use super::{AccountBalance, Effect, HeadWait, Lane, StepContext, cost};

/// The most that one block adds to the time of a head: the rest of a longer pause is no time in which it could have been
/// mined.
const BLOCK_TIME_MAX: Duration = Duration::from_secs(60);
/// The time is stored each time it has grown by one part in so many of `lane.blockedTimeout`: that much is lost with a
/// keeper at most.
const STORED_STEPS: u32 = 8;
/// What the row lacks is stored after this time: most reasons pass sooner.
const STORE_AFTER: Duration = Duration::from_secs(2);
/// After the account could not pay for a no-op, or no endpoint showed its balance, it is queried again so late.
const BALANCE_RETRY: Duration = Duration::from_secs(30);
/// The longest reason that is stored, in bytes.
const REASON_MAX: usize = 500;

/// What is known of the lane's head.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadTracker {
    /// The head, and how long it has been one without being mined.
    blocked: Option<(Nonce, Duration)>,
    /// The newest block that was counted, and when it came.
    last_block: Option<(u64, Timestamp)>,
    /// As the lane's row has it.
    stored: Option<HeadWait>,
    /// Since when the row lacks something that is to be stored.
    unstored_since: Option<Timestamp>,
    /// Whether the balance is being queried, for the no-op that is to take the head's nonce.
    awaits_balance: bool,
    /// Until then the balance is not queried again.
    balance_not_before: Timestamp,
}

impl HeadTracker {
    pub(super) fn load(stored: Option<HeadWait>) -> Self {
        Self {
            blocked: stored.as_ref().map(|wait| (wait.nonce, wait.blocked_for)),
            stored,
            ..Self::default()
        }
    }

    /// How long this nonce has been the head.
    fn blocked_for(&self, nonce: Nonce) -> Duration {
        let blocked = self.blocked.filter(|(head, _)| *head == nonce);
        blocked.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// The time that a new block counts for; none at the first one, which may have come long after the last.
    fn pass_block(&mut self, number: u64, now: Timestamp) -> Duration {
        let Some((last, at)) = self.last_block else {
            self.last_block = Some((number, now));
            return Duration::ZERO;
        };
        if number <= last {
            return Duration::ZERO; // a reorg, or a fee that changed: the chain has not advanced
        }
        self.last_block = Some((number, now));
        now.since(at).min(BLOCK_TIME_MAX)
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        if let Some((_, at)) = &mut self.last_block {
            *at = (*at).min(now);
        }
        self.unstored_since = self.unstored_since.map(|at| at.min(now));
        let latest = now.plus(BALANCE_RETRY);
        self.balance_not_before = self.balance_not_before.min(latest);
    }
}

impl Lane {
    /// The slot that the chain waits for; where all are consumed below the account's nonce, the lowest of those whose
    /// receipt is missing.
    pub(super) fn head(&self) -> Option<(Nonce, &Slot)> {
        if self.slots.unmined_len() == 0 {
            return None; // without a walk over all that is mined
        }
        let latest = self.chain.latest();
        let waited_for = self.slots.unmined(latest..).next();
        waited_for.or_else(|| self.slots.unmined(..latest).next())
    }

    /// What the lane's row is to say of its head.
    #[must_use]
    pub fn head_wait(&self) -> Option<HeadWait> {
        let nonce = self.head().map(|(nonce, _)| nonce);
        let nonce = nonce.into_iter().chain(self.paging.backlog_from()).min();
        let nonce = nonce.unwrap_or(self.ledger.cursor());
        let reason = self.waiting_for().map(shortened);
        let blocked_for = match self.rules.blocked_timeout {
            Some(_) => self.holds.head.blocked_for(nonce),
            None => Duration::ZERO,
        };
        let is_worth_it = reason.is_some() || !blocked_for.is_zero();
        is_worth_it.then_some(HeadWait {
            nonce,
            blocked_for,
            reason,
        })
    }

    /// Whether the row has lacked something about the head for a while, so that it is written for its own sake.
    #[must_use]
    pub fn has_unstored_head(&self, now: Timestamp) -> bool {
        let since = self.holds.head.unstored_since;
        since.is_some_and(|since| now.since(since) >= STORE_AFTER)
    }

    /// The row has this now.
    pub(super) fn mark_head_stored(&mut self) {
        self.holds.head.stored = self.head_wait();
        self.holds.head.unstored_since = None;
    }

    /// Notes whether the row differs from what it is to say.
    pub(super) fn compare_stored_head(&mut self, now: Timestamp) {
        let wait = self.head_wait();
        let shown = |wait: &Option<HeadWait>| {
            let wait = wait.as_ref();
            wait.map(|wait| (wait.nonce, wait.reason.as_deref().map(without_figures)))
        };
        let time =
            |wait: &Option<HeadWait>| wait.as_ref().map_or(Duration::ZERO, |w| w.blocked_for);
        let timeout = self.rules.blocked_timeout.unwrap_or(Duration::MAX);
        let unstored_time = time(&wait).saturating_sub(time(&self.holds.head.stored));
        let differs = shown(&wait) != shown(&self.holds.head.stored)
            || unstored_time.saturating_mul(STORED_STEPS) >= timeout;
        self.holds.head.unstored_since = match differs {
            true => self.holds.head.unstored_since.or(Some(now)),
            false => None,
        };
    }

    /// A block has come: counts the time of the head, and ends its tx when that is over.
    pub(super) fn count_blocked_head(&mut self, cx: &mut StepContext) {
        let Some(timeout) = self.rules.blocked_timeout else {
            return;
        };
        let tip = self.chain.view.as_ref().and_then(|view| view.headers.tip());
        let Some(number) = tip.map(|tip| tip.number) else {
            return;
        };
        let passed = self.holds.head.pass_block(number, cx.now);
        let latest = self.chain.latest();
        let head = self.slots.unmined(latest..).next();
        let Some((nonce, slot)) = head else {
            self.holds.head.blocked = None;
            return;
        };
        let counts = self.can_be_given_up(nonce, slot);
        let time = match self.holds.head.blocked {
            Some((head, time)) if head == nonce && counts => time.saturating_add(passed),
            Some((head, time)) if head == nonce => time,
            Some(_) | None => Duration::ZERO,
        };
        self.holds.head.blocked = Some((nonce, time));
        let is_due = counts && time >= timeout && !slot.is_being_cancelled();
        if is_due && !self.holds.head.awaits_balance && cx.now >= self.holds.head.balance_not_before
        {
            self.holds.head.awaits_balance = true;
            cx.effects.push(Effect::QueryBalance);
        }
    }

    /// Whether a no-op may take the nonce of the head. What the chain does not wait for is not the lane's blocker; a
    /// foreign transaction is never outbid; and where the signer is what is missing, it would not sign a no-op either.
    fn can_be_given_up(&self, nonce: Nonce, slot: &Slot) -> bool {
        let is_waited_for = self.chain.nonces().is_some() && nonce == self.chain.latest();
        let has_attempt = slot.delivery().is_some() && slot.newest().is_some();
        let is_used = slot.history.is_foreign_pending || slot.history.is_reported_used;
        is_waited_for && has_attempt && !is_used && self.can_sign() && !self.is_reserving()
    }

    /// The account's balance, queried for the no-op that is to take the nonce of the head.
    pub(super) fn end_blocked_head(
        &mut self,
        answer: Option<AccountBalance>,
        cx: &mut StepContext,
    ) {
        let Some(timeout) = self.rules.blocked_timeout else {
            return;
        };
        if !std::mem::take(&mut self.holds.head.awaits_balance) {
            return;
        }
        self.holds.head.balance_not_before = cx.now.plus(BALANCE_RETRY);
        let Some((nonce, slot)) = self.slots.unmined(self.chain.latest()..).next() else {
            return;
        };
        let is_due = self.holds.head.blocked_for(nonce) >= timeout
            && self.can_be_given_up(nonce, slot)
            && slot.signature_request().is_none()
            && !slot.is_being_cancelled();
        let Some(account) = answer.filter(|account| is_due && account.nonce <= nonce) else {
            return;
        };
        let Some(no_op) = self.unsigned_envelope(nonce, AttemptKind::Cancel) else {
            return;
        };
        let needed = cost::total(no_op.value, no_op.gas, no_op.fees.max_per_gas());
        if needed > account.balance {
            let (needed, balance) = (needed, account.balance);
            self.set_no_op_wait(
                nonce,
                format!(
                    "lane.blockedTimeout is over, and the account cannot pay for a no-op at nonce {nonce}: it needs \
                     {needed} wei and has {balance}"
                ),
            );
            return;
        }
        self.end_head(nonce, timeout, cx);
    }

    fn set_no_op_wait(&mut self, nonce: Nonce, reason: String) {
        if let Some(slot) = self.slots.get_mut(nonce) {
            slot.no_op_wait = Some(reason);
        }
    }

    /// The head waits for no other no-op of its lane: none of those can be mined before its own.
    fn end_head(&mut self, nonce: Nonce, timeout: Duration, cx: &mut StepContext) {
        let Some(slot) = self.slots.get_mut(nonce) else {
            return;
        };
        let was_given_up = slot.tx.sub_state == Some(SubState::Rejected);
        let before = slot.tx.reason.take().filter(|_| !was_given_up);
        let before = before.map_or_else(String::new, |before| format!("; at last: {before}"));
        slot.no_op_wait = None;
        let reason = format!(
            "it was the lane's head for {} s and was not mined (lane.blockedTimeout){before}",
            timeout.as_secs()
        );
        self.give_up(nonce, reason, cx);
    }
}

/// A reason without its figures: one that changes with every block is not written for its own sake.
fn without_figures(reason: &str) -> String {
    reason.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// A reason of bounded length: it may contain a node's text.
fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        reason.push('…');
    }
    reason
}
