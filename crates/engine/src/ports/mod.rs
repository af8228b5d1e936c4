//! The seams of the application: everything that touches the world stands behind one of these.
//!
//! No generic parameter crosses a crate border, so ports are used as `Arc<dyn …>`.
#![warn(missing_docs)]

mod chain;
mod clock;
mod lender;
mod peers;
mod signer;
mod store;

pub use chain::{BlockTag, Call, CallFailed, Chain, ChainError, IsOurs, Witnesses};
pub use clock::Clock;
pub use lender::{LendError, Lender, Lent};
pub use peers::{PeerError, Peers};
pub use signer::{SignError, Signer};
pub use store::{
    Acquired, Ask, Beat, CommitOutcome, Conflict, EventFilter, EventPage, EventRecord, LaneBatch,
    LaneRecord, Member, NewQueued, Regranted, Renewal, Store, StoreError, TxFilter, TxPage,
    TxRecord, Work,
};
