//! A nonce that is lent to somebody who signs and sends by himself, and what he may say of it.
//!
//! One table of rules for every scheme: what is written in SQL or in a script elsewhere must answer as
//! [`Reservation::mark`] does.

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::{LaneKey, Nonce, Timestamp};

/// Who borrowed a nonce. Whoever knows it may say what became of the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder(pub Uuid);

/// Where a lent nonce stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReservationState {
    /// Lent: its holder may use it. With a hash, a transaction may be mined at any time.
    Reserved,
    /// Used for good: its holder or the chain said so.
    Used,
    /// Free: the smallest of these is lent next.
    Recyclable,
}

impl ReservationState {
    /// As it is written in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::Used => "USED",
            Self::Recyclable => "RECYCLABLE",
        }
    }
}

/// A nonce of a lane and the one it is, or was last, lent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Whose account.
    pub lane: LaneKey,
    /// Which nonce.
    pub nonce: Nonce,
    /// To whom.
    pub holder: Holder,
    /// Where it stands.
    pub state: ReservationState,
    /// The transaction that its holder sent, as he last said, or that the chain shows.
    pub tx_hash: Option<B256>,
    /// Two different transactions were named for it: either may be mined, whatever becomes of the other.
    #[serde(default)] // a node of an older version does not say
    pub was_replaced: bool,
    /// When it is looked at because its holder said nothing for so long. It is not free by that alone.
    pub expires_at: Timestamp,
    /// Why it is free.
    pub reason: Option<String>,
}

/// What a holder says of his nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// A transaction is out; it may be mined at any time.
    Submitted(B256),
    /// The nonce is used, by this transaction.
    Used(B256),
    /// Nothing was sent, or nothing of it can be mined any more, for this reason.
    Recyclable {
        /// Why.
        reason: String,
        /// The transaction that the chain was asked about before; `None` when none had been named. One that is
        /// named after the question makes the answer void.
        asked: Option<B256>,
    },
}

/// Why a mark is refused. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum MarkRefusal {
    /// The nonce was never lent in this lane.
    #[error("nonce {0} is not lent here")]
    NotLent(Nonce),
    /// It is lent to somebody else by now, or was never lent to this one.
    #[error("nonce {0} is not lent to this holder (any more)")]
    NotHolder(Nonce),
    /// It was used by another transaction, or is used and cannot be free.
    #[error("nonce {nonce} is used, by {by}")]
    IsUsed {
        /// Which.
        nonce: Nonce,
        /// The transaction, or what is known of it.
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
    /// It is free already: whoever gave it back must borrow again.
    #[error("nonce {0} was given back and is free")]
    IsFree(Nonce),
    /// Not the transaction that the chain was asked about: it may be mined, so the nonce is not free.
    #[error("nonce {nonce} was submitted as {hash} meanwhile: ask again")]
    NamedSince {
        /// Which.
        nonce: Nonce,
        /// The transaction, or that none is named any more.
        hash: String,
    },
    /// A pool may keep the earlier one, queued behind a nonce that is missing, where no node shows it.
    #[error(
        "two transactions were named for nonce {0}, and either may be mined: it cannot be given back. Send one with \
         this nonce that does nothing; the chain closes it"
    )]
    TwoNamed(Nonce),
}

impl Reservation {
    /// Takes what its holder says. The same word twice is fine; a former holder's is refused.
    ///
    /// Whether a *submitted* nonce may be given back is not decided here: the chain must be asked first, and about
    /// the transaction that is named when the mark is taken.
    pub fn mark(&mut self, holder: Holder, mark: &Mark) -> Result<(), MarkRefusal> {
        let nonce = self.nonce;
        if self.holder != holder {
            return Err(MarkRefusal::NotHolder(nonce));
        }
        match (self.state, mark) {
            // A business may replace its own transaction: the last word counts, and the chain decides.
            (ReservationState::Reserved, Mark::Submitted(hash)) => self.name(*hash),
            (ReservationState::Reserved, Mark::Used(hash)) => {
                self.state = ReservationState::Used;
                self.name(*hash);
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

    fn name(&mut self, hash: B256) {
        self.was_replaced |= self.tx_hash.is_some_and(|named| named != hash);
        self.tx_hash = Some(hash);
    }
}
