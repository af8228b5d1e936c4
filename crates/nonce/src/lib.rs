//! The nonce component: reserves nonces for applications that sign and send by themselves.
//!
//! [`NonceComponent`] is the single entry point for both modes (`basic` and `worker-queue`) and all five
//! [`Scheme`]s. No scheme ever reserves a nonce for two holders at the same time; a crash costs time and delays
//! the reuse of a nonce.
#![warn(missing_docs)]

mod clock;
pub mod component;
pub mod config;
mod queue;
pub mod sweep;

pub mod scheme;

pub mod postgres;
pub mod redis;

use engine::ports::ReservationError;

pub use clock::SystemClock;
pub use component::{HeldNonce, NonceComponent, Outcome, WithNonceError};
pub use config::{Mode, QueueSettings, RejectPolicy, ReservationChain, Settings, SettingsError};
pub use scheme::{
    ConditionalVerdict, RedisIssue, RedisReserve, RedisReserveConfig, ReservationKey,
    ReserveRequest, RowLock, Scheme, SchemeKind, Segment, SegmentConfig, Verdict,
    WatchedReservation,
};

/// The answer of a scheme or of the component.
pub type Result<T, E = ReservationError> = std::result::Result<T, E>;
