//! How long anything may take, derived from the lease: whatever hangs must end before the lease does.
//!
//! They are settings of the serving role in this database, not of a session: so they hold on every
//! connection, also behind a pooler. `migrate` writes them, and opening the store checks them.

use std::time::Duration;

/// The database ends what takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// One statement; half a lease.
    pub(super) statement: Duration,
    /// Waiting for one row; short, because a whole turn may wait behind it.
    lock: Duration,
    /// A transaction that nobody continues. We open none; this is for whoever else uses the role.
    idle_in_transaction: Duration,
    /// How soon the database notices that the asker of a running statement is gone.
    gone: Duration,
    /// A silent connection: first question, next questions, and when it counts as dead.
    pub(super) keepalive_idle: Duration,
    pub(super) keepalive_interval: Duration,
    pub(super) dead: Duration,
}

/// How often a silent connection is asked before it is given up.
pub(super) const KEEPALIVE_COUNT: u32 = 3;

/// The first major with a limit for whole transactions.
const TRANSACTION_TIMEOUT_SINCE: i32 = 170_000;

/// One setting, in its own unit (see `pg_settings.unit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: i64,
    /// Means nothing on a connection through a socket file, and is shown as 0 there.
    pub(super) of_tcp: bool,
}

impl Timeouts {
    pub(super) fn of_lease(lease: Duration) -> Self {
        let part = |of: u32| lease / of;
        let seconds = |time: Duration| Duration::from_secs(time.as_secs().max(1));
        Self {
            statement: part(2),
            lock: part(20).clamp(Duration::from_millis(100), Duration::from_millis(500)),
            idle_in_transaction: part(5),
            gone: part(5),
            keepalive_idle: seconds(part(3)),
            keepalive_interval: seconds(part(6)),
            dead: part(5) * 4,
        }
    }

    /// What the serving role must have on a server of this version (as in `server_version_num`).
    pub(super) fn settings(&self, server_version: i32) -> Vec<Setting> {
        let in_ms = |name, time: Duration| Setting {
            name,
            value: i64::try_from(time.as_millis()).unwrap_or(i64::MAX),
            of_tcp: false,
        };
        let of_tcp = |name, value: u64| Setting {
            name,
            value: i64::try_from(value).unwrap_or(i64::MAX),
            of_tcp: true,
        };
        let dead_ms = u64::try_from(self.dead.as_millis()).unwrap_or(u64::MAX);
        let mut settings = vec![
            in_ms("statement_timeout", self.statement),
            in_ms("lock_timeout", self.lock),
            in_ms(
                "idle_in_transaction_session_timeout",
                self.idle_in_transaction,
            ),
            in_ms("client_connection_check_interval", self.gone),
            of_tcp("tcp_keepalives_idle", self.keepalive_idle.as_secs()),
            of_tcp("tcp_keepalives_interval", self.keepalive_interval.as_secs()),
            of_tcp("tcp_keepalives_count", KEEPALIVE_COUNT.into()),
            of_tcp("tcp_user_timeout", dead_ms),
        ];
        if server_version >= TRANSACTION_TIMEOUT_SINCE {
            settings.push(in_ms("transaction_timeout", self.statement));
        }
        settings
    }
}

impl Setting {
    /// Whether what the server says of it is as strict as ours, or stricter.
    pub(super) fn is_kept_by(&self, found: i64) -> bool {
        (1..=self.value).contains(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_ends_before_the_lease() {
        for seconds in [2, 10, 60] {
            let lease = Duration::from_secs(seconds);
            let timeouts = Timeouts::of_lease(lease);
            let keepalive = timeouts.keepalive_idle + timeouts.keepalive_interval;
            for time in [
                timeouts.statement,
                timeouts.lock,
                timeouts.idle_in_transaction,
                timeouts.gone,
                timeouts.dead,
            ] {
                assert!(!time.is_zero() && time < lease, "{timeouts:?}");
            }
            assert!(keepalive <= lease, "{timeouts:?}");
        }
    }

    #[test]
    fn a_stricter_setting_is_kept_and_none_is_not() {
        let setting = Setting {
            name: "lock_timeout",
            value: 500,
            of_tcp: false,
        };
        assert!(setting.is_kept_by(500) && setting.is_kept_by(1));
        assert!(!setting.is_kept_by(0) && !setting.is_kept_by(501));
    }

    #[test]
    fn transactions_have_a_limit_where_the_server_knows_it() {
        let timeouts = Timeouts::of_lease(Duration::from_secs(10));
        let has = |version| {
            let settings = timeouts.settings(version);
            settings.iter().any(|s| s.name == "transaction_timeout")
        };
        assert!(!has(150_018) && has(170_000) && has(180_004));
    }
}
