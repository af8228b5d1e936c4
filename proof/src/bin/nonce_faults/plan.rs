//! Which scheme meets which fault.

use proof::{Outcome, demand, flag};

/// Who keeps the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scheme {
    RowLock,
    RedisIssue,
    RedisReserve,
    Lane,
    Segment,
}

impl Scheme {
    pub(crate) const ALL: [Self; 5] = [
        Self::RowLock,
        Self::RedisIssue,
        Self::RedisReserve,
        Self::Lane,
        Self::Segment,
    ];

    /// As it is written in settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RowLock => "row-lock",
            Self::RedisIssue => "redis-issue",
            Self::RedisReserve => "redis-reserve",
            Self::Lane => "lane",
            Self::Segment => "segment",
        }
    }

    /// Whether Redis has a part in it. (That of `row-lock` is a lock in front, which may be left out.)
    pub(crate) fn has_redis(self) -> bool {
        match self {
            Self::RowLock | Self::RedisIssue | Self::RedisReserve => true,
            Self::Lane | Self::Segment => false,
        }
    }
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    RedisKilled,
    RedisFrozen,
    RedisFlushed,
    RedisEmptied,
    RedisFailedOver,
    PostgresKilled,
    HolderKilled,
    HolderFrozen,
    KeeperKilled,
    KeeperFrozen,
}

impl Fault {
    pub(crate) const ALL: [Self; 10] = [
        Self::RedisKilled,
        Self::RedisFrozen,
        Self::RedisFlushed,
        Self::RedisEmptied,
        Self::RedisFailedOver,
        Self::PostgresKilled,
        Self::HolderKilled,
        Self::HolderFrozen,
        Self::KeeperKilled,
        Self::KeeperFrozen,
    ];

    /// As it is written after `--fault`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RedisKilled => "redis-killed",
            Self::RedisFrozen => "redis-frozen",
            Self::RedisFlushed => "redis-flushed",
            Self::RedisEmptied => "redis-emptied",
            Self::RedisFailedOver => "redis-failed-over",
            Self::PostgresKilled => "postgres-killed",
            Self::HolderKilled => "holder-killed",
            Self::HolderFrozen => "holder-frozen",
            Self::KeeperKilled => "keeper-killed",
            Self::KeeperFrozen => "keeper-frozen",
        }
    }

    /// For people.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::RedisKilled => "Redis killed, back after 3 s with its data",
            Self::RedisFrozen => "Redis frozen for 3 s",
            Self::RedisFlushed => "Redis flushed, three times",
            Self::RedisEmptied => "Redis restarted empty",
            Self::RedisFailedOver => "Redis failed over to a replica that lags",
            Self::PostgresKilled => "PostgreSQL killed, back after 3 s",
            Self::HolderKilled => "a borrowing process killed between issue and mark",
            Self::HolderFrozen => "a borrowing process frozen past its time-outs",
            Self::KeeperKilled => "the lane's keeper killed",
            Self::KeeperFrozen => "the lane's keeper frozen",
        }
    }

    /// Whether Redis fails so that it is left out and has to come back.
    pub(crate) fn takes_redis_away(self) -> bool {
        match self {
            Self::RedisKilled | Self::RedisFrozen => true,
            Self::RedisFlushed
            | Self::RedisEmptied
            | Self::RedisFailedOver
            | Self::PostgresKilled
            | Self::HolderKilled
            | Self::HolderFrozen
            | Self::KeeperKilled
            | Self::KeeperFrozen => false,
        }
    }

    /// Whether a scheme has what breaks.
    fn can_meet(self, scheme: Scheme) -> bool {
        match self {
            Self::RedisKilled
            | Self::RedisFrozen
            | Self::RedisFlushed
            | Self::RedisEmptied
            | Self::RedisFailedOver => scheme.has_redis(),
            Self::PostgresKilled | Self::HolderKilled | Self::HolderFrozen => true,
            Self::KeeperKilled | Self::KeeperFrozen => scheme == Scheme::Lane,
        }
    }
}

/// A scheme that meets a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) fault: Fault,
    pub(crate) scheme: Scheme,
}

impl Case {
    pub(crate) fn name(self) -> String {
        format!("{}/{}", self.fault.as_str(), self.scheme.as_str())
    }
}

/// What `--short` runs: the scheme that trusts Redis most, and the default one.
const SHORT: [Case; 4] = [
    Case {
        fault: Fault::RedisEmptied,
        scheme: Scheme::RedisReserve,
    },
    Case {
        fault: Fault::PostgresKilled,
        scheme: Scheme::RedisReserve,
    },
    Case {
        fault: Fault::HolderKilled,
        scheme: Scheme::Lane,
    },
    Case {
        fault: Fault::KeeperKilled,
        scheme: Scheme::Lane,
    },
];

/// What is to run, and whether that is all there is.
pub(crate) fn chosen() -> Outcome<(Vec<Case>, bool)> {
    let is_short = std::env::args().any(|arg| arg == "--short");
    let (scheme, fault) = (flag("scheme", ""), flag("fault", ""));
    let is_named = |wanted: &str, word: &str| {
        wanted.is_empty() || wanted.split(',').any(|wanted| wanted == word)
    };
    let all = Fault::ALL
        .iter()
        .flat_map(|fault| Scheme::ALL.iter().map(|scheme| (*fault, *scheme)))
        .filter(|(fault, scheme)| fault.can_meet(*scheme))
        .map(|(fault, scheme)| Case { fault, scheme });
    let cases: Vec<Case> = all
        .filter(|case| !is_short || SHORT.contains(case))
        .filter(|case| is_named(&scheme, case.scheme.as_str()))
        .filter(|case| is_named(&fault, case.fault.as_str()))
        .collect();
    let what = format!("--scheme {scheme} --fault {fault}: nothing to run");
    demand(!cases.is_empty(), what)?;
    Ok((cases, !is_short && scheme.is_empty() && fault.is_empty()))
}
