//! The commands: replay one seed with its trace, or search many seeds for one that fails and shrink it.

mod excerpt;
mod progress;
mod regressions;
mod report;
mod search;
mod shrink;

pub use excerpt::excerpt;
pub(crate) use regressions::kind_of;
pub use regressions::{Regression, regressions};
pub use report::{explain_failure, replay};
pub use search::{Amount, Search, Tally};
pub use shrink::{ShrunkWorld, shrink};

/// The promise that a violation names: the text before its first colon.
#[must_use]
pub fn promise(violation: &str) -> &str {
    violation
        .split_once(": ")
        .map_or(violation, |(name, _)| name)
}
