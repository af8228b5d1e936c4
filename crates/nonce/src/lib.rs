//! The nonce component: lends nonces to businesses that sign and send by themselves.
//!
//! [`NonceComponent`] is the one face, whatever the mode (`basic` or `worker-queue`) and whichever of the
//! five [`Scheme`]s keeps the books. No scheme ever lends a nonce to two holders; what a crash may cost is
//! time and a delayed reuse.
#![warn(missing_docs)]

mod clock;
pub mod component;
pub mod config;
mod queue;
pub mod sweep;

pub mod scheme;

pub mod postgres;
pub mod redis;

pub use clock::SystemClock;
pub use component::{Borrowed, NonceComponent, Outcome, WithNonceError};
pub use config::{BadSettings, LentChain, Mode, QueueSettings, RejectPolicy, Settings};
pub use scheme::{
    Borrow, RedisIssue, RedisReserve, RedisReserveConfig, RowLock, Scheme, SchemeKind, Segment,
    SegmentConfig, Settlement, Verdict, Watched,
};
