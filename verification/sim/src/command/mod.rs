//! What the command does: replays one seed for a reader, or searches many for one that fails, and makes
//! what it finds as small as it can.

mod pace;
mod regressions;
mod report;
mod search;
mod shrink;
mod story;

#[cfg(feature = "mutations")]
pub(crate) use regressions::kind_of;
pub use regressions::{Regression, regressions};
pub use report::{failure, replay};
pub use search::{Amount, Search, Tally};
pub use shrink::{Shrunk, shrink};
pub use story::story;

/// The promise that a violation names: what stands before its first colon.
#[must_use]
pub fn promise(violation: &str) -> &str {
    violation
        .split_once(": ")
        .map_or(violation, |(name, _)| name)
}
