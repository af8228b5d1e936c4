//! Which node keeps which lane: acquiring, renewing, adopting, and proving what became of an unknown commit.

mod adopt;
mod leases;
mod open;
mod reconcile;
mod renew;
mod unknown_commit;

pub(crate) use adopt::run_adoption;
pub(crate) use leases::Leases;
pub(crate) use open::run_opener;
pub(crate) use reconcile::LastKnownLane;
pub(crate) use renew::{IncarnationStatus, process_heartbeat, run_renewals, send_heartbeat};
pub(crate) use unknown_commit::resolve_unknown_commit;
