//! Reserved nonces: the lane of an account whose key is held elsewhere.
//!
//! A reserved nonce is a tx whose bytes are made by its holder. It has no payload here; the holder reports what
//! became of it, and the chain closes it. Everything else (the fence, the cursor, receipts, finality, reorgs) is as
//! for any other tx. A lane reserves, or it sends; never both.

mod expiry;
mod mark;
mod tracker;

use std::time::Duration;

use alloy_primitives::U256;

use crate::reservation::{Holder, MarkRefusal, Reservation, ReservationState};
use crate::{Attempt, LaneKey, Nonce, Payload, RequestId, Timestamp, Tx};

use super::Lane;
use super::slots::Slot;
pub(super) use tracker::ReservationTracker;

/// The most nonces of one lane that are reserved at once.
pub const RESERVATIONS_MAX: u64 = 10_000;
/// How long a reserve request waits for its nonce where the lane is not ready.
pub const RESERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How a reservation's request id begins. Request ids of clients may not.
pub const RESERVATION_PREFIX: &str = "lanekeeper-lent-";

/// How nonces of a lane are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRules {
    /// The time-out of reservations whose row does not name one.
    pub timeout: Duration,
    /// How long a transaction that was sent at the last moment may need to be seen: the chain is queried only
    /// after it.
    pub grace: Duration,
}

/// The terms of a reservation. They stand in its row, so that the next keeper, whatever its settings, keeps what
/// the holder was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    /// After how long without a report of its holder the nonce is checked. Each keeper counts for itself: a
    /// takeover starts it anew.
    pub timeout: Duration,
    /// Everything below is consumed or in a pool, as the holder saw the chain. A lane that knows less queries the
    /// chain before it reserves.
    pub at_least: Nonce,
}

/// What came of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkOutcome {
    /// Recorded.
    Taken(Reservation),
    /// Refused by the rules.
    Refused(MarkRefusal),
    /// The nonce was reserved before and no slot holds it: the row of this holder decides, see
    /// [`reservation_from_row`].
    NotOpen {
        /// Whether it is free; otherwise it is consumed, or the lane is being loaded.
        is_free: bool,
    },
}

/// The request id of a reservation: a holder that reserves twice gets one nonce.
#[must_use]
pub fn reservation_request_id(holder: Holder) -> RequestId {
    RequestId::parse(format!("{RESERVATION_PREFIX}{}", holder.0))
        .expect("a uuid with a short prefix keeps the rule")
}

impl ReservationTerms {
    /// The payload that stands in a reservation's row and encodes these terms.
    #[must_use]
    pub fn payload(self, lane: LaneKey) -> Payload {
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let terms = [millis.to_be_bytes(), self.at_least.0.to_be_bytes()];
        Payload {
            gas: Some(0),
            data: terms.concat().into(),
            ..Payload::transfer(lane.signer, U256::ZERO)
        }
    }

    /// The terms that a payload encodes; `None` when it is no reservation's.
    #[must_use]
    pub fn from_payload(lane: LaneKey, payload: &Payload) -> Option<Self> {
        let terms = Self::decode(payload)?;
        (terms.payload(lane) == *payload).then_some(terms)
    }

    fn decode(payload: &Payload) -> Option<Self> {
        let (millis, rest) = payload.data.split_first_chunk()?;
        let (at_least, _) = rest.split_first_chunk()?;
        Some(Self {
            timeout: Duration::from_millis(u64::from_be_bytes(*millis)),
            at_least: Nonce(u64::from_be_bytes(*at_least)),
        })
    }
}

impl ReservationRules {
    fn timeout_of(self, tx: &Tx) -> Duration {
        ReservationTerms::decode(&tx.request.payload).map_or(self.timeout, |terms| terms.timeout)
    }
}

/// The reservation that a row stands for; `None` when it is none, or has no nonce yet. A nonce that was released is
/// not in its row any more: it is the one that was `allocated`.
#[must_use]
pub fn reservation_from_row(
    lane: LaneKey,
    tx: &Tx,
    allocated: Option<Nonce>,
    rules: ReservationRules,
) -> Option<Reservation> {
    let holder = tx
        .request
        .request_id
        .as_str()
        .strip_prefix(RESERVATION_PREFIX)?;
    let state = match (tx.nonce, tx.state.is_terminal()) {
        (None, true) => ReservationState::Recyclable,
        (Some(_), true) => ReservationState::Used,
        // Its holder reported it as used; the chain has not closed it yet.
        (Some(_), false) if tx.confirmed_at.is_some() => ReservationState::Used,
        (_, false) => ReservationState::Reserved,
    };
    Some(Reservation {
        lane,
        nonce: tx.nonce.or(allocated)?,
        holder: Holder(holder.parse().ok()?),
        state,
        tx_hash: tx.tx_hash,
        was_replaced: false, // its attempts show that, see [`Reservation::with_attempts`]
        expires_at: tx.request.created_at.plus(rules.timeout_of(tx)),
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
    /// Whether its nonces are reserved for holders elsewhere.
    pub(in crate::lane) fn is_reserving(&self) -> bool {
        self.rules.reservations.is_some()
    }

    /// Why a tx of the store does not belong in this lane.
    pub(in crate::lane) fn misplaced_reason(&self, tx: &Tx) -> Option<String> {
        let is_reservation = tx
            .request
            .request_id
            .as_str()
            .starts_with(RESERVATION_PREFIX);
        match (self.is_reserving(), is_reservation) {
            (true, true) | (false, false) => None,
            (true, false) => Some(
                "this account is configured to reserve its nonces (signer kind external), and has txs that Lanekeeper \
                 was to sign and send: configure its key again until they have ended"
                    .to_owned(),
            ),
            (false, true) => Some(
                "nonces of this account are reserved (signer kind external), and it is configured to sign and send by \
                 itself now: configure it as external again until they are used or released"
                    .to_owned(),
            ),
        }
    }

    /// A nonce was allocated to a reservation: its holder has it from the commit on.
    pub(in crate::lane) fn hold_reservation(&mut self, tx: Tx, nonce: Nonce, now: Timestamp) {
        self.slots.insert(self.key, nonce, Slot::reserved(tx, now));
    }

    /// Reservations for which no transaction was named yet, as they were loaded. Nothing is reserved or marked
    /// before all of them are in memory.
    pub(in crate::lane) fn receive_reserved_page(
        &mut self,
        txs: Vec<Tx>,
        has_more: bool,
        now: Timestamp,
    ) {
        for tx in self.paging.receive_reserved_page(txs, has_more) {
            self.holds.note_misplaced(self.misplaced_reason(&tx));
            if let Some(nonce) = tx.nonce.filter(|nonce| self.slots.get(*nonce).is_none()) {
                self.hold_reservation(tx, nonce, now);
            }
        }
    }
}
