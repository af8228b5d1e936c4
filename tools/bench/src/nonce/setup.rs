//! What a run measures: scheme, number of lanes, number of processes, kind of work.

use clap::ValueEnum;
use domain::lane::reservations::RESERVATIONS_MAX;
use nonce::SchemeKind;
use serde::{Deserialize, Serialize};

/// A measured scheme: `row-lock` with and without the Redis lock in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// PostgreSQL issues and reserves under the lane's row lock
    RowLock,
    /// The same with a lock in Redis in front
    RowLockRedis,
    /// Redis issues, PostgreSQL reserves
    RedisIssue,
    /// Redis issues and reserves, PostgreSQL gets the reservations in batches
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

    /// Commands that clients send. All others that the server counts run inside a script.
    pub(super) fn plain_commands(self) -> &'static [&'static str] {
        match self {
            Self::RowLockRedis => &["set"],
            Self::RedisReserve => &["hscan"],
            Self::RedisIssue | Self::RowLock | Self::Lane | Self::Segment => &[],
        }
    }

    /// Whether reservations are returned before they are written; a run then ends when they are written.
    pub(super) fn writes_later(self) -> bool {
        match self {
            Self::RedisReserve | Self::Segment => true,
            Self::RowLock | Self::RowLockRedis | Self::RedisIssue | Self::Lane => false,
        }
    }

    /// How many nonces of a lane may be reserved in one run. Nothing is ever mined here, so that a limit of open
    /// reservations would be reached, and the run would measure waiting.
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

/// What a client repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Work {
    /// Reserves a nonce.
    Allocate,
    /// Reserves a nonce, marks it as submitted, marks it as used.
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

/// The most nonces that a scheme with a limit per lane reserves in one run, over several sets of new lanes.
const BOUNDED_MAX: u64 = 300_000;

impl Setup {
    /// How many sets of lanes a run needs at most.
    pub(super) fn lane_sets_max(self) -> u64 {
        let per_lane = self.contender.per_lane_max();
        let per_set = per_lane.map(|max| max.saturating_mul(self.lanes.into()));
        per_set.map_or(1, |max| BOUNDED_MAX.div_ceil(max.max(1)))
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
    fn only_a_bounded_scheme_needs_several_lane_sets() {
        let setup = |contender, lanes| Setup {
            contender,
            lanes,
            processes: 1,
            work: Work::Cycle,
        };
        assert_eq!(setup(Contender::Lane, 1).lane_sets_max(), 34);
        assert_eq!(setup(Contender::Lane, 100).lane_sets_max(), 1);
        assert_eq!(setup(Contender::Segment, 1).lane_sets_max(), 1);
    }
}
