//! The statements of this store: for the tests that run them against a real server in every
//! interleaving, and for nothing else.
//!
//! Each is sent alone, in autocommit, with typed parameters in the order that its comment gives.

pub use super::arguments::Arguments;
pub use super::feed::FEED;
pub use super::gate::{FENCE_HOLDS, GATE, REGRANT};
pub use super::lanes::{CURSOR, IN_FLIGHT, NONCES, WITH_WORK};
pub use super::lease::{
    ACQUIRE, CREATE_LANES, HALT, MARK_RECONCILED, RELEASE, RELEASE_WAITING, RENEW,
};
pub use super::queue::QUEUE;
pub use postgres_client::Param;
