//! The ports: everything outside of the engine is reached through one of these traits.
//!
//! No generic parameter crosses a crate border, so ports are used as `Arc<dyn …>`.
#![warn(missing_docs)]

mod chain;
mod clock;
mod peers;
mod records;
mod reservations;
mod signer;
mod store;
mod witness;

pub use chain::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, SEND_SHARE_MIN,
    SendTrust, send_share,
};
pub use clock::Clock;
pub use peers::{PeerError, Peers};
pub use records::{
    ChangedTxs, EventFilter, EventPage, EventRecord, LanePlace, LaneRecord, TxCursor, TxFilter,
    TxPage, TxRecord,
};
pub use reservations::{LaneReservations, NonceReservations, ReservationError};
pub use signer::{SignError, Signer};
pub use store::{
    ACCEPTED_LOSS_GAP, AcquireOutcome, CommitOutcome, Conflict, HeartbeatOutcome, LaneBatch,
    LaneWork, LeaseRequest, Member, QueuedRequest, RegrantOutcome, RenewOutcome, Store, StoreError,
    UnwatchedLane, UnwatchedLanes,
};
pub use witness::{Witness, WitnessError, WitnessedLanes};
