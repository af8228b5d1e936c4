//! The seams of the application: everything that touches the world stands behind one of these.
//!
//! No generic parameter crosses a crate border, so ports are used as `Arc<dyn …>`.
#![warn(missing_docs)]

mod chain;
mod clock;
mod peers;
mod reservations;
mod signer;
mod store;

pub use chain::{BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum};
pub use clock::Clock;
pub use peers::{PeerError, Peers};
pub use reservations::{LaneReservations, NonceReservations, ReservationError};
pub use signer::{SignError, Signer};
pub use store::{
    AcquireOutcome, CommitOutcome, Conflict, EventFilter, EventPage, EventRecord, HeartbeatOutcome,
    LaneBatch, LaneRecord, LeaseRequest, Member, QueuedRequest, RegrantOutcome, RenewOutcome,
    Store, StoreError, TxFilter, TxPage, TxRecord, Work,
};
