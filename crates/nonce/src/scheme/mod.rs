//! Who keeps the books: five schemes behind one trait, held to the same contract by one suite.
//!
//! The rules that every scheme keeps, whatever crashes:
//! - a nonce has at most one holder: it is lent again only after its holder gave it back, or after its time is
//!   over *and* the chain shows that nothing was sent ([`Verdict::Free`]);
//! - the smallest free nonce is lent first;
//! - what was acknowledged is durable (a mark), or cannot be lent to anybody else (a nonce);
//! - a lane belongs to one scheme for ever, and says so when another one asks.

mod kept;
mod lane;
mod redis_issue;
mod redis_reserve;
mod row_lock;
mod segment;

use std::time::Duration;

use async_trait::async_trait;
use domain::{Header, Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};

pub use lane::LaneScheme;
pub use redis_issue::RedisIssue;
pub use redis_reserve::{RedisReserve, RedisReserveConfig};
pub use row_lock::RowLock;
pub use segment::{Segment, SegmentConfig};

/// The five of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchemeKind {
    /// PostgreSQL issues and reserves under a row lock; a Redis lock in front of it, if there is one.
    RowLock,
    /// Redis issues, PostgreSQL reserves under a unique index.
    RedisIssue,
    /// Redis issues and reserves, PostgreSQL is told in batches.
    RedisReserve,
    /// The lane's keeper issues and reserves, under its lease and fence.
    Lane,
    /// Segments are reserved in PostgreSQL and handed out from memory.
    Segment,
}

impl SchemeKind {
    /// All of them, in the order of the design.
    pub const ALL: [Self; 5] = [
        Self::RowLock,
        Self::RedisIssue,
        Self::RedisReserve,
        Self::Lane,
        Self::Segment,
    ];

    /// As it is written in settings and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RowLock => "row-lock",
            Self::RedisIssue => "redis-issue",
            Self::RedisReserve => "redis-reserve",
            Self::Lane => "lane",
            Self::Segment => "segment",
        }
    }
}

/// What somebody wants to borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrow {
    /// In whose name: fresh for every borrowing.
    pub holder: Holder,
    /// The chain consumed everything below, or has it in a pool: nothing below is lent, neither as new nor
    /// as free. A lane that never lent starts here. In any other one, what is skipped for it is written down
    /// as free: the sweep finds out who used it, and what turns out to be unused is lent after all.
    pub at_least: Nonce,
    /// After how long it is looked at, if its holder says nothing.
    pub timeout: Duration,
}

/// A reservation that the sweep looks at: overdue, submitted, used by its holder's word, or closed by the chain a
/// short while ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// As it stands.
    pub reservation: Reservation,
    /// The block that closed it, when the chain did.
    pub closed_in: Option<Header>,
}

/// What the chain shows of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its time is over and the chain shows nothing of it, neither mined nor pending: it is free.
    Free,
    /// It is consumed at final depth, by this transaction (`None`: no node can show by which).
    Used {
        /// The transaction.
        tx_hash: Option<domain::B256>,
        /// The final block in which it was found.
        block: Header,
    },
    /// A fork took the block back that closed it: it is reserved and submitted again.
    Reopened,
    /// It is closed so deep that no fork is looked for any more: it need not be watched again.
    Buried,
}

/// A verdict on what was seen. It counts only while the reservation is still just that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// As it was when the chain was asked.
    pub seen: Watched,
    /// What the chain shows.
    pub verdict: Verdict,
}

/// Keeps the books of lent nonces.
#[async_trait]
pub trait Scheme: Send + Sync + 'static {
    /// Which of the five it is.
    fn kind(&self) -> SchemeKind;

    /// Lends the smallest free nonce.
    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError>;

    /// Writes down what a holder says, by the rules of [`Reservation::mark`]. Durable when it answers.
    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError>;

    /// What was lent to this holder; `None` when this nonce never was, or is somebody else's by now.
    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError>;

    /// What is lent of a lane at present: all that the chain has not closed.
    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError>;

    /// What the chain should be asked about, at most `limit`, never the same ones for ever: reservations whose
    /// time is over, submitted ones, used ones that the chain has not shown yet, free ones below what an allocation
    /// said of the chain ([`Borrow::at_least`]), and those that the chain closed, until they are
    /// [`Verdict::Buried`].
    /// Also brings back what was issued and never reserved (holes), in the way of the scheme.
    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError>;

    /// Takes verdicts, each only if the reservation is still as it was seen.
    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError>;

    /// Writes down everything that is still in memory, and gives back what was not lent. After this it
    /// lends nothing any more.
    async fn close(&self) -> Result<(), ReservationError>;
}

/// What a scheme says that lends nothing any more.
fn closed() -> ReservationError {
    ReservationError::Unavailable("this process is closing".into())
}
