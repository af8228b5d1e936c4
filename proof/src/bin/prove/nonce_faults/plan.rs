//! The combinations of schemes and faults.

use proof::{Outcome, ensure, flag};

/// The scheme of the nonce component.
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

    /// The name in the settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RowLock => "row-lock",
            Self::RedisIssue => "redis-issue",
            Self::RedisReserve => "redis-reserve",
            Self::Lane => "lane",
            Self::Segment => "segment",
        }
    }

    /// Whether it uses Redis. (For `row-lock` as an optional lock.)
    pub(crate) fn has_redis(self) -> bool {
        match self {
            Self::RowLock | Self::RedisIssue | Self::RedisReserve => true,
            Self::Lane | Self::Segment => false,
        }
    }
}

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

    /// The name after `--fault`.
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

    /// For messages.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::RedisKilled => "Redis killed, back after 3 s with its data",
            Self::RedisFrozen => "Redis frozen for 3 s",
            Self::RedisFlushed => "Redis flushed, three times",
            Self::RedisEmptied => "Redis restarted empty",
            Self::RedisFailedOver => "Redis failed over to a replica that lags",
            Self::PostgresKilled => "PostgreSQL killed, back after 3 s",
            Self::HolderKilled => "a holder killed between reservation and mark",
            Self::HolderFrozen => "a holder frozen past its timeouts",
            Self::KeeperKilled => "the lane's keeper killed",
            Self::KeeperFrozen => "the lane's keeper frozen",
        }
    }

    /// Whether Redis is bypassed and must be used again later.
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

    /// Whether a scheme uses the failing part.
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

/// `--short`: the scheme that depends most on Redis, and the default one.
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

/// The selected cases, and whether they are all.
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
    ensure(!cases.is_empty(), what)?;
    Ok((cases, !is_short && scheme.is_empty() && fault.is_empty()))
}
