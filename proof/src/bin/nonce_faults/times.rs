//! Times of the proof, shorter than in life so that they can be waited for. What is bounded by them is bounded in
//! life by what is set there.

use std::time::Duration;

/// By when a holder must have sent.
pub(crate) const RESERVATION: Duration = Duration::from_secs(4);
/// The lease of a segment, and of a generation of Redis.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// How often the sweep looks.
pub(crate) const SWEEP: Duration = Duration::from_millis(500);
/// How long the chain must show nothing of an overdue nonce.
pub(crate) const FREE_GRACE: Duration = Duration::from_secs(1);
/// The same at nodes, where nobody sets it.
pub(crate) const FREE_GRACE_OF_NODES: Duration = Duration::from_secs(5);
/// How long an issued nonce may be on its way to its reservation.
pub(crate) const ISSUE_GRACE: Duration = Duration::from_secs(2);
/// How often a Redis that is left out is looked for.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
/// Time between blocks.
pub(crate) const BLOCK: Duration = Duration::from_secs(1);

/// How long what breaks stays broken.
pub(crate) const BROKEN: Duration = Duration::from_secs(3);
/// How long a frozen holder sleeps: everything that it held is somebody else's by then.
pub(crate) const ASLEEP: Duration = Duration::from_secs(11);

/// What a hole may take beyond its time-out and the lease of whoever kept it: passes of the sweep, blocks, and a
/// busy machine.
pub(crate) const CLOSING_MARGIN: Duration = Duration::from_secs(6);
/// All holes are closed by then, once nothing is broken any more.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(
    RESERVATION.as_secs()
        + LEASE.as_secs()
        + FREE_GRACE_OF_NODES.as_secs()
        + CLOSING_MARGIN.as_secs(),
);
/// Everything is as before by then, once nothing is broken any more.
pub(crate) const NORMAL_WITHIN: Duration = Duration::from_secs(30);
/// Whatever takes longer to start does not start.
pub(crate) const STARTED_WITHIN: Duration = Duration::from_secs(40);
