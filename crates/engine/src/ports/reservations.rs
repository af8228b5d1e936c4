//! Reservations of nonces, for holders that sign and send by themselves.

use async_trait::async_trait;
use domain::{Address, ChainId, Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation};
use thiserror::Error;

/// The nonce component, as the API sees it.
#[async_trait]
pub trait NonceReservations: Send + Sync + 'static {
    /// Reserves the smallest free nonce of a lane.
    async fn allocate(&self, lane: LaneKey) -> Result<Reservation, ReservationError>;

    /// Applies a holder's mark.
    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError>;

    /// The open reservations of a lane.
    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError>;
}

/// A lane whose nonces are reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReservations {
    /// The next nonce that was never reserved.
    pub next_nonce: Nonce,
    /// Open ones in nonce order: reserved, free, and reported as used while the chain has not shown it; bounded.
    pub open: Vec<Reservation>,
    /// Whether there are more of them than are listed.
    pub has_more: bool,
}

/// Why nothing was reserved or marked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReservationError {
    /// The rules refuse it.
    #[error(transparent)]
    Refused(#[from] MarkRefusal),
    /// A submitted nonce is not free while its transaction may be mined.
    #[error("nonce {nonce} cannot be recycled: {why}")]
    MayBeMined {
        /// The nonce.
        nonce: Nonce,
        /// The evidence.
        why: String,
    },
    /// The chain is not configured.
    #[error("chain {0} is not configured")]
    UnknownChain(ChainId),
    /// No signer has that account on that chain.
    #[error("no signer is configured for {1} on chain {0}: add a signer of kind external")]
    UnknownSigner(ChainId, Address),
    /// The lane belongs to another scheme, or to managed txs.
    #[error("{0}")]
    NotReservable(String),
    /// A queue is full; nothing has happened. Worth repeating.
    #[error("too many calls are in flight for this lane: try again")]
    Busy,
    /// Nothing has happened. Worth repeating.
    #[error("not available: {0}")]
    Unavailable(String),
    /// It may have happened. A nonce whose reservation reached no holder is recycled by itself.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

impl ReservationError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        match self {
            Self::Busy | Self::Unavailable(_) | Self::Unknown(_) | Self::MayBeMined { .. } => true,
            Self::Refused(_)
            | Self::UnknownChain(_)
            | Self::UnknownSigner(..)
            | Self::NotReservable(_) => false,
        }
    }
}
