//! One in-flight tx: its row, its attempts, how far it is, and what nodes answered to its sends.
//!
//! [`Progress`] holds what makes sense at one stage only: a mined slot has no retry time and no signature
//! request, and a reservation has neither. [`SendHistory`] outlives the stages, because a reorg brings a mined slot
//! back to the pools with all that nodes answered before.

use alloy_primitives::B256;

use super::progress::{Delivery, Progress, ReservedTime};
use crate::attempt::OutgoingEnvelope;
use crate::{Attempt, AttemptKind, SubState, Timestamp, Tx};

/// A tx in memory.
#[derive(Clone, Debug)]
pub(in crate::lane) struct Slot {
    /// Its row, as of the last step.
    pub(in crate::lane) tx: Tx,
    /// Why it exists: a request, or a filler of Lanekeeper's own.
    pub(in crate::lane) kind: AttemptKind,
    /// The newest last.
    pub(super) attempts: Vec<Attempt>,
    pub(super) progress: Progress,
    pub(in crate::lane) history: SendHistory,
    /// What its no-op waits for; the reason in its row says why there is one.
    pub(in crate::lane) no_op_wait: Option<String>,
}

/// What came of a slot's sends so far. Any combination is possible: nodes differ, and answers arrive late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lane) struct SendHistory {
    /// When a node last got it, as far as that is known.
    pub(in crate::lane) last_sent_at: Timestamp,
    /// Failures in a row, of sends and of the signer.
    pub(in crate::lane) failures: u32,
    /// How often in a row every node rejected it for good.
    pub(in crate::lane) rejections: u32,
    /// No node accepts it: no slot behind it is tried before it.
    pub(in crate::lane) is_blocked: bool,
    /// A foreign transaction was in a node's pool at its nonce when it was last sent.
    pub(in crate::lane) is_foreign_pending: bool,
    /// A node called its nonce used, and none has accepted it since: higher fees would not help.
    pub(in crate::lane) is_reported_used: bool,
    /// The last answer was that the account cannot pay, or that no node takes anything.
    pub(in crate::lane) lacks_money_or_node: bool,
    /// The last answer was that its fee is too low.
    pub(in crate::lane) is_underpriced: bool,
    /// A send had no clear answer: some node may have it.
    pub(in crate::lane) may_be_in_pool: bool,
    /// The least gas of its next attempt, after nodes refused one with less.
    pub(in crate::lane) gas_min: u64,
}

impl Slot {
    fn new(tx: Tx, kind: AttemptKind, progress: Progress, now: Timestamp) -> Self {
        Self {
            tx,
            kind,
            attempts: Vec::new(),
            progress,
            history: SendHistory {
                last_sent_at: now,
                ..SendHistory::default()
            },
            no_op_wait: None,
        }
    }

    fn with_attempts(tx: Tx, attempts: Vec<Attempt>, progress: Progress, now: Timestamp) -> Self {
        let kind = attempts.first().map_or(AttemptKind::Original, |a| a.kind);
        Self {
            attempts,
            ..Self::new(tx, kind, progress, now)
        }
    }

    /// A tx whose first attempt is about to be signed.
    pub(in crate::lane) fn signing(tx: Tx, kind: AttemptKind, now: Timestamp) -> Self {
        Self::new(tx, kind, Progress::Signing { retry_at: None }, now)
    }

    /// A reservation whose holder has the nonce from the commit on.
    pub(in crate::lane) fn reserved(tx: Tx, now: Timestamp) -> Self {
        let progress = Progress::Reserved(ReservedTime::default());
        Self::new(tx, AttemptKind::Original, progress, now)
    }

    /// A tx with attempts as it was loaded, at the stage that its row shows. `attempts` are in their order.
    pub(in crate::lane) fn loaded(tx: Tx, attempts: Vec<Attempt>) -> Self {
        let claimed_at = tx.written.at;
        // The newest one: a node that has an older attempt does not show that this one left its keeper.
        let newest = attempts.last();
        let was_sent = newest.is_some_and(|newest| newest.first_sent_at.is_some());
        let mut delivery = Delivery::new(claimed_at);
        let progress = match &tx.inclusion {
            Some(_) => Progress::Mined,
            None if was_sent => Progress::Submitted(delivery),
            None => {
                // Claimed, and perhaps never sent: it is sent at the next tick, if not before.
                delivery.retry_at = Some(claimed_at);
                Progress::Sending(delivery)
            }
        };
        let is_foreign_pending = tx.sub_state == Some(SubState::ForeignPending);
        let mut slot = Self::with_attempts(tx, attempts, progress, claimed_at);
        slot.history.is_foreign_pending = is_foreign_pending;
        slot
    }

    /// A finished tx whose block was reorged out.
    pub(in crate::lane) fn reopened(tx: Tx, attempts: Vec<Attempt>, now: Timestamp) -> Self {
        let progress = Progress::Submitted(Delivery::new(now));
        Self::with_attempts(tx, attempts, progress, now)
    }

    pub(in crate::lane) fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    pub(in crate::lane) fn hashes(&self) -> impl Iterator<Item = B256> {
        self.attempts.iter().map(|attempt| attempt.hash)
    }

    pub(in crate::lane) fn has_attempt(&self, hash: B256) -> bool {
        self.hashes().any(|known| known == hash)
    }

    /// Whether a node ever confirmed that it has one of its attempts.
    pub(in crate::lane) fn was_submitted(&self) -> bool {
        self.attempts.iter().any(|a| a.first_sent_at.is_some())
    }

    /// Why one of its attempts exists.
    pub(in crate::lane) fn attempt_kind(&self, hash: B256) -> AttemptKind {
        let attempt = self.attempts.iter().find(|attempt| attempt.hash == hash);
        attempt.map_or(self.kind, |attempt| attempt.kind)
    }

    /// Whether a no-op is to take its nonce.
    pub(in crate::lane) fn is_cancelled(&self) -> bool {
        self.attempts.iter().any(|a| a.kind == AttemptKind::Cancel)
    }

    /// Whether there is a no-op, or one is being signed.
    pub(in crate::lane) fn is_being_cancelled(&self) -> bool {
        self.is_cancelled() || self.signature_request() == Some(AttemptKind::Cancel)
    }

    /// Whether what is to be mined is a no-op: it is a filler, or there is one that is to take its nonce.
    pub(in crate::lane) fn is_no_op(&self) -> bool {
        self.kind == AttemptKind::Filler || self.is_cancelled()
    }

    /// Whether a node has one of its attempts, as far as that is known.
    pub(in crate::lane) fn may_be_at_node(&self) -> bool {
        self.was_submitted() || self.history.may_be_in_pool
    }

    /// Notes that a node has this attempt; returns it the first time.
    pub(in crate::lane) fn record_first_sent(
        &mut self,
        hash: B256,
        now: Timestamp,
    ) -> Option<&Attempt> {
        let mut attempts = self.attempts.iter_mut();
        let attempt = attempts.find(|attempt| attempt.hash == hash)?;
        if attempt.first_sent_at.is_some() {
            return None;
        }
        attempt.first_sent_at = Some(now);
        Some(attempt)
    }

    /// The newest attempt, ready to be sent; `None` when there is none, or it was made and sent elsewhere.
    pub(in crate::lane) fn newest(&self) -> Option<OutgoingEnvelope> {
        let (newest, older) = self.attempts.split_last()?;
        (!newest.raw.is_empty()).then(|| OutgoingEnvelope {
            nonce: newest.nonce,
            hash: newest.hash,
            raw: newest.raw.clone(),
            others: older.iter().map(|attempt| attempt.hash).collect(),
            to_all: newest.kind == AttemptKind::Cancel,
        })
    }
}
