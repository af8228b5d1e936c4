//! A nonce that is reserved for a holder who signs and sends elsewhere, and what the holder may report of it.
//!
//! One table of rules for every scheme: what is written in SQL or in a script elsewhere must answer as
//! [`Reservation::mark`] does.

use alloy_primitives::B256;
use strum::IntoStaticStr;
use thiserror::Error;
use uuid::Uuid;

use crate::{LaneKey, Nonce, Timestamp};

/// The holder of a reserved nonce. Knowing this id is what allows a client to mark the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub Uuid);

/// The state of a reserved nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum ReservationState {
    /// Its holder may use it. With a hash, a transaction may be mined at any time.
    Reserved,
    /// Used for good, as its holder reported or the chain shows.
    Used,
    /// Free: the smallest of these is reserved next.
    Recyclable,
}

impl ReservationState {
    /// Its name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A nonce of a lane and its holder, or its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The account, on its chain.
    pub lane: LaneKey,
    /// The reserved nonce.
    pub nonce: Nonce,
    /// Its holder, or its last one.
    pub holder: Holder,
    /// Whether it is reserved, used or free.
    pub state: ReservationState,
    /// The transaction that its holder last named, or that the chain shows.
    pub tx_hash: Option<B256>,
    /// Two different transactions were named for it: either may be mined, whatever becomes of the other.
    pub was_replaced: bool,
    /// When it is checked because its holder reported nothing. It is not free by that alone.
    pub expires_at: Timestamp,
    /// Why it is free.
    pub reason: Option<String>,
}

/// What a holder reports of its nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A transaction was sent; it may be mined at any time.
    Submitted(B256),
    /// The nonce is used, by this transaction.
    Used(B256),
    /// Nothing was sent, or nothing of it can be mined any more, for this reason.
    Recyclable {
        /// The reason, for people.
        reason: String,
        /// The transaction about which the chain was queried before; `None` when none had been named. One that is
        /// named after the query makes its answer void.
        asked: Option<B256>,
    },
}

/// Why a mark is refused. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MarkRefusal {
    /// The nonce was never reserved in this lane.
    #[error("nonce {0} is not reserved in this lane")]
    NotReserved(Nonce),
    /// It is reserved for another holder by now, or was never reserved for this one.
    #[error("nonce {0} is not reserved for this holder (any more)")]
    NotHolder(Nonce),
    /// It was used by another transaction, or is used and cannot be free.
    #[error("nonce {nonce} is used, by {by}")]
    IsUsed {
        /// The nonce.
        nonce: Nonce,
        /// The transaction, as far as it is known.
        by: String,
    },
    /// The transaction was named for another nonce.
    #[error("transaction {hash} was named for nonce {nonce}")]
    HashElsewhere {
        /// The transaction.
        hash: B256,
        /// For which nonce.
        nonce: Nonce,
    },
    /// It is free already: its former holder must reserve again.
    #[error("nonce {0} was released and is free: reserve again")]
    IsFree(Nonce),
    /// Not the transaction about which the chain was queried: it may be mined, so the nonce is not free.
    #[error("nonce {nonce} was submitted as {hash} meanwhile: query the chain again")]
    NamedSince {
        /// The nonce.
        nonce: Nonce,
        /// The transaction, or `nothing` when none is named any more.
        hash: String,
    },
    /// A pool may keep the earlier one, queued behind a nonce that is missing, where no node shows it.
    #[error(
        "two transactions were named for nonce {0}, and either may be mined: it cannot be released. Send a no-op with \
         this nonce; the chain closes it"
    )]
    TwoNamed(Nonce),
}

impl Reservation {
    /// Applies what its holder reports. The same mark twice is fine; a former holder's is refused.
    ///
    /// Whether a *submitted* nonce may be released is not decided here: the chain must be queried first, and about
    /// the transaction that is named when the mark is applied.
    pub fn mark(&mut self, holder: Holder, mark: &Mark) -> Result<(), MarkRefusal> {
        let nonce = self.nonce;
        if self.holder != holder {
            return Err(MarkRefusal::NotHolder(nonce));
        }
        match (self.state, mark) {
            // A holder may replace its own transaction: the last report counts, and the chain decides.
            (ReservationState::Reserved, Mark::Submitted(hash)) => self.set_named(*hash),
            (ReservationState::Reserved, Mark::Used(hash)) => {
                self.state = ReservationState::Used;
                self.set_named(*hash);
            }
            (ReservationState::Reserved, Mark::Recyclable { .. }) if self.was_replaced => {
                return Err(MarkRefusal::TwoNamed(nonce));
            }
            (ReservationState::Reserved, Mark::Recyclable { asked, .. })
                if self.tx_hash != *asked =>
            {
                let hash = self
                    .tx_hash
                    .map_or_else(|| "nothing".to_owned(), |hash| hash.to_string());
                return Err(MarkRefusal::NamedSince { nonce, hash });
            }
            (ReservationState::Reserved, Mark::Recyclable { reason, .. }) => {
                self.state = ReservationState::Recyclable;
                self.reason = Some(reason.clone());
            }
            (ReservationState::Used, Mark::Submitted(hash) | Mark::Used(hash))
                if self.tx_hash.is_none_or(|known| known == *hash) =>
            {
                self.tx_hash = Some(*hash);
            }
            (
                ReservationState::Used,
                Mark::Submitted(_) | Mark::Used(_) | Mark::Recyclable { .. },
            ) => {
                let by = self.tx_hash.map_or_else(
                    || "a transaction that no node shows".to_owned(),
                    |hash| hash.to_string(),
                );
                return Err(MarkRefusal::IsUsed { nonce, by });
            }
            (ReservationState::Recyclable, Mark::Recyclable { .. }) => {}
            (ReservationState::Recyclable, Mark::Submitted(_) | Mark::Used(_)) => {
                return Err(MarkRefusal::IsFree(nonce));
            }
        }
        Ok(())
    }

    fn set_named(&mut self, hash: B256) {
        self.was_replaced |= self.tx_hash.is_some_and(|named| named != hash);
        self.tx_hash = Some(hash);
    }
}
