//! The statements that this store sends, word for word: for the harness that runs them against a real
//! server in every interleaving, and for nothing else.
//!
//! Each is sent alone, in autocommit, with typed parameters in the order that its comment gives.

pub use super::arguments::Arguments;
pub use super::feed::FEED;
pub use super::gate::{GATE, REGRANT, STILL_OURS};
pub use super::lanes::{CURSOR, IN_FLIGHT, NONCES, WITH_WORK};
pub use super::lease::{ACQUIRE, HALT, MAKE_LANES, RELEASE, RELEASE_WAITING, RENEW, SETTLE};
pub use super::pool::Param;
pub use super::queue::QUEUE;
