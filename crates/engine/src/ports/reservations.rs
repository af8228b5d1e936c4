//! Lends nonces to those who sign and send by themselves.

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The nonce component, as the door to customers sees it.
#[async_trait]
pub trait NonceReservations: Send + Sync + 'static {
    /// Lends the smallest nonce of a lane that is free.
    async fn allocate(&self, lane: LaneKey) -> Result<Reservation, ReservationError>;

    /// Takes what a holder says of his nonce.
    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError>;

    /// What is lent of a lane at present.
    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError>;
}

/// A lane whose nonces are lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReservations {
    /// The next nonce that was never lent.
    pub next_nonce: Nonce,
    /// Open ones in nonce order: reserved, free, and said to be used while the chain has not shown it; bounded.
    pub open: Vec<Reservation>,
    /// Whether there are more of them than are listed.
    pub has_more: bool,
}

/// Why nothing was lent or marked.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum ReservationError {
    /// The rules refuse it.
    #[error(transparent)]
    Refused(#[from] MarkRefusal),
    /// A submitted nonce is not free while its transaction may be mined.
    #[error("nonce {nonce} cannot be given back: {why}")]
    MayBeMined {
        /// Which.
        nonce: Nonce,
        /// What speaks for it.
        why: String,
    },
    /// The lane belongs to another scheme, or to managed txs.
    #[error("{0}")]
    NotReservable(String),
    /// A queue is full; nothing has happened. Worth repeating.
    #[error("too much is under way for this lane: try again")]
    Busy,
    /// Nothing has happened. Worth repeating.
    #[error("not available: {0}")]
    Unavailable(String),
    /// The answer was lost: it may have happened. A nonce that was lent to nobody comes back by itself.
    #[error("the answer was lost: {0}")]
    Unknown(String),
}

impl ReservationError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        match self {
            Self::Busy | Self::Unavailable(_) | Self::Unknown(_) | Self::MayBeMined { .. } => true,
            Self::Refused(_) | Self::NotReservable(_) => false,
        }
    }
}
