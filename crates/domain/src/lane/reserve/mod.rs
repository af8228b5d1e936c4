//! Nonces that are lent: the lane of an account whose key is elsewhere.
//!
//! A lent nonce is a tx whose bytes somebody else makes. It has no payload here; its holder says what became
//! of it, and the chain closes it. Everything else (the fence, the cursor, receipts, finality, forks) is as for
//! any other tx. A lane lends, or sends; never both.

mod expiry;
mod mark;

use std::time::Duration;

use alloy_primitives::U256;

use crate::reservation::{Holder, MarkRefusal, Reservation, ReservationState};
use crate::{Attempt, AttemptKind, LaneKey, Nonce, Payload, RequestId, Timestamp, Tx};

use super::{Lane, Slot, Stage};

/// The most nonces of one lane that are lent at once.
pub const RESERVATIONS_MAX: u64 = 10_000;
/// How long somebody who borrows waits for his nonce, where the lane is not ready to lend.
pub const RESERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How a loan's key begins. Requests of businesses may not.
pub const RESERVATION_PREFIX: &str = "lanekeeper-lent-";

/// How nonces of a lane are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRules {
    /// The time-out of loans whose row does not name one.
    pub timeout: Duration,
    /// What was sent at the last moment may need so long to be seen: only after it the chain is asked.
    pub grace: Duration,
}

/// What somebody borrows. It stands in the row, so that whoever keeps the lane next, with whatever settings, does
/// what its holder was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    /// After how long a nonce whose holder said nothing is looked at. Counted by whoever keeps the lane: a
    /// change of hands starts it anew.
    pub timeout: Duration,
    /// Everything below is consumed or waits in a pool, as whoever borrows saw the chain. A lane that knows less
    /// asks before it lends.
    pub at_least: Nonce,
}

/// What came of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkOutcome {
    /// Taken.
    Taken(Reservation),
    /// Refused by the rules.
    Refused(MarkRefusal),
    /// The nonce was lent and nobody holds it in memory: what the row of this holder says decides, see
    /// [`lent_to`].
    NotOpen {
        /// Whether it is free; otherwise it is consumed, or the lane is being read.
        is_free: bool,
    },
}

/// The key of a loan: whoever borrows twice under one name gets one nonce.
#[must_use]
pub fn reservation_request_id(holder: Holder) -> RequestId {
    RequestId::parse(format!("{RESERVATION_PREFIX}{}", holder.0))
        .expect("a uuid with a short prefix keeps the rule")
}

impl ReservationTerms {
    /// What stands in the row of a loan instead of a payload.
    #[must_use]
    pub fn payload(self, lane: LaneKey) -> Payload {
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let note = [millis.to_be_bytes(), self.at_least.0.to_be_bytes()];
        Payload {
            gas: Some(0),
            data: note.concat().into(),
            ..Payload::transfer(lane.signer, U256::ZERO)
        }
    }

    /// The loan that a payload stands for; `None` when it stands for none.
    #[must_use]
    pub fn of(lane: LaneKey, payload: &Payload) -> Option<Self> {
        let loan = Self::noted(payload)?;
        (loan.payload(lane) == *payload).then_some(loan)
    }

    fn noted(payload: &Payload) -> Option<Self> {
        let (millis, rest) = payload.data.split_first_chunk()?;
        let (at_least, _) = rest.split_first_chunk()?;
        Some(Self {
            timeout: Duration::from_millis(u64::from_be_bytes(*millis)),
            at_least: Nonce(u64::from_be_bytes(*at_least)),
        })
    }
}

impl ReservationRules {
    /// After how long a loan is looked at.
    fn timeout_of(self, tx: &Tx) -> Duration {
        ReservationTerms::noted(&tx.payload).map_or(self.timeout, |loan| loan.timeout)
    }
}

/// The reservation that a row stands for; `None` when it is no loan, or has no nonce yet. A nonce that was given
/// back is not in its row any more: it is the one that was `dealt`.
#[must_use]
pub fn lent_to(
    lane: LaneKey,
    tx: &Tx,
    dealt: Option<Nonce>,
    lending: ReservationRules,
) -> Option<Reservation> {
    let holder = tx.request_id.as_str().strip_prefix(RESERVATION_PREFIX)?;
    let state = match (tx.nonce, tx.state.is_terminal()) {
        (None, true) => ReservationState::Recyclable,
        (Some(_), true) => ReservationState::Used,
        // Its holder said that it is used; the chain has not closed it yet.
        (Some(_), false) if tx.confirmed_at.is_some() => ReservationState::Used,
        (_, false) => ReservationState::Reserved,
    };
    Some(Reservation {
        lane,
        nonce: tx.nonce.or(dealt)?,
        holder: Holder(holder.parse().ok()?),
        state,
        tx_hash: tx.tx_hash,
        was_replaced: false, // its attempts tell, see [`Reservation::with_attempts`]
        expires_at: tx.created_at.plus(lending.timeout_of(tx)),
        reason: tx.reason.clone(),
    })
}

impl Reservation {
    /// As it stands with the attempts of its row: each is a transaction that was named for it.
    #[must_use]
    pub fn with_attempts(self, attempts: &[Attempt]) -> Self {
        Self {
            was_replaced: attempts.len() > 1,
            ..self
        }
    }
}

impl Lane {
    /// Whether its nonces are lent.
    pub(in crate::lane) fn lends(&self) -> bool {
        self.rules.lent.is_some()
    }

    /// Why a tx of the store does not belong in this lane.
    pub(in crate::lane) fn is_misplaced(&self, tx: &Tx) -> Option<String> {
        let is_lent = tx.request_id.as_str().starts_with(RESERVATION_PREFIX);
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
    pub(in crate::lane) fn lend(&mut self, tx: Tx, nonce: Nonce, now: Timestamp) {
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
    pub(in crate::lane) fn take_lent(&mut self, txs: Vec<Tx>, more: bool, now: Timestamp) {
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
}
