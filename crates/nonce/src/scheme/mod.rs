//! The schemes: five ways to allocate nonces behind one trait, with one contract suite.
//!
//! Rules that hold in every scheme, whatever crashes:
//! - a nonce has at most one holder: it is reserved again only after its holder recycled it, or after its expiry
//!   *and* a chain check that shows nothing ([`Verdict::Free`]);
//! - the smallest free nonce is reserved first;
//! - an acknowledged mark is durable, and an acknowledged nonce is reserved for no other holder;
//! - a lane is bound to one scheme for ever, and a call by another scheme is refused with the reason.

mod lane;
mod redis_issue;
mod redis_reserve;
mod row_lock;
mod segment;
mod write_behind;

use std::time::Duration;

use async_trait::async_trait;
use domain::{Header, Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};

use crate::Result;
pub use lane::LaneScheme;
pub use redis_issue::RedisIssue;
pub use redis_reserve::{RedisReserve, RedisReserveConfig};
pub use row_lock::RowLock;
pub use segment::{Segment, SegmentConfig};

/// Which scheme.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum SchemeKind {
    /// PostgreSQL allocates and reserves under a row lock, optionally with a Redis lock in front of it.
    RowLock,
    /// Redis allocates, PostgreSQL reserves under a unique index.
    RedisIssue,
    /// Redis allocates and reserves, PostgreSQL records it in batches.
    RedisReserve,
    /// The lane's keeper allocates and reserves, under its lease and fencing token.
    Lane,
    /// Segments are taken from PostgreSQL and issued from memory.
    Segment,
}

impl SchemeKind {
    /// All schemes, in the order of their numbers.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name in the configuration and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Identifies one reservation: the next one of the same nonce has another holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservationKey {
    /// The account, on its chain.
    pub lane: LaneKey,
    /// The reserved nonce.
    pub nonce: Nonce,
    /// Its holder.
    pub holder: Holder,
}

impl From<&Reservation> for ReservationKey {
    fn from(reservation: &Reservation) -> Self {
        Self {
            lane: reservation.lane,
            nonce: reservation.nonce,
            holder: reservation.holder,
        }
    }
}

/// Request for one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// The new holder: fresh for every reservation.
    pub holder: Holder,
    /// The chain consumed everything below this nonce, or has it pending: nothing below is reserved, neither new nor
    /// recyclable. A new lane starts here. In any other lane the skipped nonces are recorded as recyclable: the sweep
    /// finds their consumer, and an unused one is reserved later.
    pub at_least: Nonce,
    /// When the reservation expires.
    pub timeout: Duration,
}

/// A reservation for the sweep: expired, submitted, marked used by its holder, or recently closed by the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedReservation {
    /// Its present state.
    pub reservation: Reservation,
    /// The block that closed it, if the chain did.
    pub closed_in: Option<Header>,
}

/// What the chain shows of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is expired and the chain shows no transaction with it, neither mined nor pending: it is free.
    Free,
    /// It is consumed at final depth by this transaction (`None`: no node can show which).
    Used {
        /// Hash of the consumer.
        tx_hash: Option<domain::B256>,
        /// The final block in which the consumer was found.
        block: Header,
    },
    /// The block that closed it was reorged out: it is reserved and submitted again.
    Reopened,
    /// It is closed so deep that reorgs are no longer checked: it is not watched any more.
    Buried,
}

/// A verdict with its precondition: it is applied only if the reservation still equals `seen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionalVerdict {
    /// The reservation when the chain was queried.
    pub seen: WatchedReservation,
    /// What the chain shows.
    pub verdict: Verdict,
}

/// Allocates nonces and keeps the ledger of reservations.
#[async_trait]
pub trait Scheme: Send + Sync + 'static {
    /// Which scheme this is.
    fn kind(&self) -> SchemeKind;

    /// Reserves the smallest free nonce.
    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation>;

    /// Records a holder's mark by the rules of [`Reservation::mark`]. Durable when it returns.
    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation>;

    /// The reservation of this nonce; `None` when the nonce was never reserved or has another holder.
    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>>;

    /// Lists a lane's reservations that the chain has not closed.
    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations>;

    /// Lists at most `limit` reservations to check on the chain; repeated calls page through all of them: expired and
    /// submitted ones, used ones that the chain has not shown yet, recyclable ones below the chain's nonce
    /// ([`ReserveRequest::at_least`]), and closed ones until they are [`Verdict::Buried`]. Also frees nonces that were
    /// allocated and never reserved (holes), where a scheme can have them.
    async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>>;

    /// Lists at most `limit` reservations that expired and were never submitted, and pages through all of them,
    /// however many others are watched. They are among [`Scheme::list_watched`] too.
    async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>>;

    /// Applies verdicts, each only if its reservation is unchanged.
    async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()>;

    /// Records everything that is still in memory, returns unused nonces and stops reserving.
    async fn close(&self) -> Result<()>;
}

/// The error of a closed scheme.
fn closed_error() -> ReservationError {
    ReservationError::Unavailable("the scheme is closed: this process is shutting down".into())
}
