//! The times of the proof, shorter than in production. Bounds that depend on them depend in production on the
//! configured values.

use std::time::Duration;

/// The time for sending.
pub(crate) const RESERVATION: Duration = Duration::from_secs(4);
/// The lease of a segment, and of a generation of Redis.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const SWEEP: Duration = Duration::from_millis(500);
/// How long the chain must not show an overdue nonce.
pub(crate) const FREE_GRACE: Duration = Duration::from_secs(1);
/// The same for nodes, where it is not configurable.
pub(crate) const FREE_GRACE_OF_NODES: Duration = Duration::from_secs(5);
/// How long an issued nonce may have no reservation.
pub(crate) const ISSUE_GRACE: Duration = Duration::from_secs(2);
/// How often a bypassed Redis is probed.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
/// Time between blocks.
pub(crate) const BLOCK: Duration = Duration::from_secs(1);

/// The duration of a fault.
pub(crate) const BROKEN: Duration = Duration::from_secs(3);
/// How long a holder is frozen: its nonces have new holders by then.
pub(crate) const ASLEEP: Duration = Duration::from_secs(11);

/// The time to close a gap beyond timeout and lease: passes of the sweep, blocks, and a busy machine.
pub(crate) const CLOSING_MARGIN: Duration = Duration::from_secs(6);
/// All gaps are closed within this time after a fault.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(
    RESERVATION.as_secs()
        + LEASE.as_secs()
        + FREE_GRACE_OF_NODES.as_secs()
        + CLOSING_MARGIN.as_secs(),
);
/// The normal state is restored within this time after a fault.
pub(crate) const NORMAL_WITHIN: Duration = Duration::from_secs(30);
/// A longer start is a failure.
pub(crate) const STARTED_WITHIN: Duration = Duration::from_secs(40);
