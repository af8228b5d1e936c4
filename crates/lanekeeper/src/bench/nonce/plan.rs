//! What is measured: which scheme, on how many lanes, from how many processes, doing what.

use clap::ValueEnum;
use domain::lane::reserve::RESERVATIONS_MAX;
use nonce::SchemeKind;
use serde::{Deserialize, Serialize};

/// A scheme as it is measured: `row-lock` with and without the lock in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// PostgreSQL issues and reserves under the lane's row lock
    RowLock,
    /// The same with a lock in Redis in front
    RowLockRedis,
    /// Redis issues, PostgreSQL reserves
    RedisIssue,
    /// Redis issues and reserves, PostgreSQL is told in batches
    RedisReserve,
    /// The lane's keeper issues and reserves (the default scheme)
    Lane,
    /// Segments are handed out from memory
    Segment,
}

impl Contender {
    pub(super) fn scheme(self) -> SchemeKind {
        match self {
            Self::RowLock | Self::RowLockRedis => SchemeKind::RowLock,
            Self::RedisIssue => SchemeKind::RedisIssue,
            Self::RedisReserve => SchemeKind::RedisReserve,
            Self::Lane => SchemeKind::Lane,
            Self::Segment => SchemeKind::Segment,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RowLockRedis => "row-lock, Redis lock",
            Self::RowLock | Self::RedisIssue | Self::RedisReserve | Self::Lane | Self::Segment => {
                self.scheme().as_str()
            }
        }
    }

    pub(super) fn uses_redis(self) -> bool {
        match self {
            Self::RowLockRedis | Self::RedisIssue | Self::RedisReserve => true,
            Self::RowLock | Self::Lane | Self::Segment => false,
        }
    }

    /// Commands that go to Redis by themselves. Whatever else the server counts is inside a script.
    pub(super) fn plain_commands(self) -> &'static [&'static str] {
        match self {
            Self::RowLockRedis => &["set"],
            Self::RedisReserve => &["hscan"],
            Self::RedisIssue | Self::RowLock | Self::Lane | Self::Segment => &[],
        }
    }

    /// Whether loans are handed out first and written down afterwards: then a run ends when they are.
    pub(super) fn writes_later(self) -> bool {
        match self {
            Self::RedisReserve | Self::Segment => true,
            Self::RowLock | Self::RowLockRedis | Self::RedisIssue | Self::Lane => false,
        }
    }

    /// How many nonces of a lane may be lent in one run. Nothing is ever mined here, so that a bound on open
    /// loans would be reached, and waiting for it be measured.
    pub(super) fn per_lane_max(self) -> Option<u64> {
        match self {
            Self::Lane => Some(RESERVATIONS_MAX - RESERVATIONS_MAX / 10),
            Self::RowLock
            | Self::RowLockRedis
            | Self::RedisIssue
            | Self::RedisReserve
            | Self::Segment => None,
        }
    }
}

/// What a client does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Work {
    /// Borrows, and says nothing more.
    Allocate,
    /// Borrows, says that it sends, says that the nonce is used.
    Cycle,
}

impl Work {
    pub(super) const ALL: [Self; 2] = [Self::Allocate, Self::Cycle];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Cycle => "cycle",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) contender: Contender,
    pub(super) lanes: u16,
    pub(super) processes: u16,
    pub(super) work: Work,
}

/// How many nonces a scheme with a bound per lane lends in one run at most, over fresh lanes, one set after the
/// other.
const BOUNDED_MAX: u64 = 300_000;

impl Setup {
    /// How many sets of lanes there are to go through.
    pub(super) fn rounds_max(self) -> u64 {
        let of_a_set = self.contender.per_lane_max();
        let of_a_set = of_a_set.map(|max| max.saturating_mul(self.lanes.into()));
        of_a_set.map_or(1, |max| BOUNDED_MAX.div_ceil(max.max(1)))
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            contender,
            lanes,
            processes,
            work,
        } = self;
        let (scheme, work) = (contender.name(), work.name());
        write!(
            f,
            "{scheme}, {lanes} lane(s), {processes} process(es), {work}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bounded_scheme_goes_through_several_sets_of_lanes() {
        let setup = |contender, lanes| Setup {
            contender,
            lanes,
            processes: 1,
            work: Work::Cycle,
        };
        assert_eq!(setup(Contender::Lane, 1).rounds_max(), 34);
        assert_eq!(setup(Contender::Lane, 100).rounds_max(), 1);
        assert_eq!(setup(Contender::Segment, 1).rounds_max(), 1);
    }
}
