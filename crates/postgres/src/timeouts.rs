//! How long anything may take, derived from the caller's lease: whatever hangs must end before the lease does.
//!
//! The database's limits are settings of the serving role in this database, not of a session: so they hold on
//! every connection, also behind a pooler.

use std::time::Duration;

/// Limits after which the database or the client gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// One statement: half the lease.
    pub statement: Duration,
    /// Waiting for one row; short, because a whole turn may wait behind it.
    lock: Duration,
    /// An idle transaction. Statements here are in autocommit; this is for other programs with the same role.
    idle_in_transaction: Duration,
    /// How often the database checks that the client of a running statement is still connected.
    connection_check: Duration,
    /// A silent connection: first probe, next probes, and when it counts as dead.
    pub(crate) keepalive_idle: Duration,
    pub(crate) keepalive_interval: Duration,
    pub(crate) dead: Duration,
}

/// How many probes a silent connection may leave unanswered.
pub(crate) const KEEPALIVE_COUNT: u32 = 3;

/// The first major with a limit for whole transactions.
pub(crate) const TRANSACTION_TIMEOUT_SINCE: i32 = 170_000;

/// A setting of the serving role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As in `pg_settings.name`.
    pub name: &'static str,
    /// In the unit of `pg_settings.unit`.
    pub value: i64,
    /// Has no effect on a connection through a Unix socket, and is shown as 0 there.
    pub is_tcp_only: bool,
}

/// For callers without a lease: as of one of ten seconds.
impl Default for Timeouts {
    fn default() -> Self {
        Self::from_lease(Duration::from_secs(10))
    }
}

impl Timeouts {
    /// Derives every limit from the lease.
    pub fn from_lease(lease: Duration) -> Self {
        let part = |of: u32| lease / of;
        let seconds = |time: Duration| Duration::from_secs(time.as_secs().max(1));
        Self {
            statement: part(2),
            lock: part(20).clamp(Duration::from_millis(100), Duration::from_millis(500)),
            idle_in_transaction: part(5),
            connection_check: part(5),
            keepalive_idle: seconds(part(3)),
            keepalive_interval: seconds(part(6)),
            dead: part(5) * 4,
        }
    }

    /// The settings that the serving role must have on a server of this version (as in `server_version_num`).
    pub fn settings(&self, server_version: i32) -> Vec<Setting> {
        let in_ms = |name, time: Duration| Setting {
            name,
            value: i64::try_from(time.as_millis()).unwrap_or(i64::MAX),
            is_tcp_only: false,
        };
        let tcp_only = |name, value: u64| Setting {
            name,
            value: i64::try_from(value).unwrap_or(i64::MAX),
            is_tcp_only: true,
        };
        let dead_ms = u64::try_from(self.dead.as_millis()).unwrap_or(u64::MAX);
        let mut settings = vec![
            in_ms("statement_timeout", self.statement),
            in_ms("lock_timeout", self.lock),
            in_ms(
                "idle_in_transaction_session_timeout",
                self.idle_in_transaction,
            ),
            in_ms("client_connection_check_interval", self.connection_check),
            tcp_only("tcp_keepalives_idle", self.keepalive_idle.as_secs()),
            tcp_only("tcp_keepalives_interval", self.keepalive_interval.as_secs()),
            tcp_only("tcp_keepalives_count", KEEPALIVE_COUNT.into()),
            tcp_only("tcp_user_timeout", dead_ms),
        ];
        if server_version >= TRANSACTION_TIMEOUT_SINCE {
            settings.push(in_ms("transaction_timeout", self.statement));
        }
        settings
    }
}

impl Setting {
    /// Whether the server's value is as strict as this one, or stricter.
    pub fn is_satisfied_by(&self, found: i64) -> bool {
        (1..=self.value).contains(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timeout_is_shorter_than_the_lease() {
        for seconds in [2, 10, 60] {
            let lease = Duration::from_secs(seconds);
            let timeouts = Timeouts::from_lease(lease);
            let keepalive = timeouts.keepalive_idle + timeouts.keepalive_interval;
            for time in [
                timeouts.statement,
                timeouts.lock,
                timeouts.idle_in_transaction,
                timeouts.connection_check,
                timeouts.dead,
            ] {
                assert!(!time.is_zero() && time < lease, "{timeouts:?}");
            }
            assert!(keepalive <= lease, "{timeouts:?}");
        }
    }

    #[test]
    fn stricter_setting_satisfies_and_no_limit_does_not() {
        let setting = Setting {
            name: "lock_timeout",
            value: 500,
            is_tcp_only: false,
        };
        assert!(setting.is_satisfied_by(500) && setting.is_satisfied_by(1));
        assert!(!setting.is_satisfied_by(0) && !setting.is_satisfied_by(501));
    }

    #[test]
    fn transaction_timeout_is_set_from_version_17() {
        let timeouts = Timeouts::from_lease(Duration::from_secs(10));
        let has = |version| {
            let settings = timeouts.settings(version);
            settings.iter().any(|s| s.name == "transaction_timeout")
        };
        assert!(!has(150_018) && has(170_000) && has(180_004));
    }
}
