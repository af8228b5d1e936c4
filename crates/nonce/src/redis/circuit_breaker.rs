//! A circuit breaker: opens after consecutive failures, allows a probe per interval, and closes after a success.

use std::time::Duration;

use domain::MonotonicTime;
use parking_lot::Mutex;

/// Counts failures. Does no IO and reads no clock.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    failures_to_degrade: u32,
    probe_every: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures_in_a_row: u32 },
    Open { next_probe: MonotonicTime },
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerDecision {
    /// Call Redis.
    Open,
    /// Do without Redis.
    Reject,
    /// Do without Redis, and start a probe: returned to one caller per interval.
    Probe,
}

/// What a failure or a success changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerChange {
    /// Nothing visible to callers.
    None,
    /// Redis is not used from now on.
    Opened,
    /// Redis is used again from now on.
    Closed,
}

impl CircuitBreaker {
    /// A closed breaker that opens after so many consecutive failures.
    pub(super) fn new(failures_to_degrade: u32, probe_every: Duration) -> Self {
        Self {
            failures_to_degrade: failures_to_degrade.max(1),
            probe_every,
            state: Mutex::new(State::Closed {
                failures_in_a_row: 0,
            }),
        }
    }

    /// Whether a call is allowed now.
    pub(super) fn check(&self, now: MonotonicTime) -> BreakerDecision {
        let mut state = self.state.lock();
        match *state {
            State::Closed { .. } => BreakerDecision::Open,
            State::Open { next_probe } if now >= next_probe => {
                *state = State::Open {
                    next_probe: now.plus(self.probe_every),
                };
                BreakerDecision::Probe
            }
            State::Open { .. } => BreakerDecision::Reject,
        }
    }

    /// Whether calls are allowed.
    pub(super) fn is_available(&self) -> bool {
        matches!(*self.state.lock(), State::Closed { .. })
    }

    /// Records that a call or a probe was answered.
    pub(super) fn record_success(&self) -> BreakerChange {
        let before = std::mem::replace(
            &mut *self.state.lock(),
            State::Closed {
                failures_in_a_row: 0,
            },
        );
        match before {
            State::Closed { .. } => BreakerChange::None,
            State::Open { .. } => BreakerChange::Closed,
        }
    }

    /// Records that a call or a probe failed.
    pub(super) fn record_failure(&self, now: MonotonicTime) -> BreakerChange {
        let mut state = self.state.lock();
        let State::Closed { failures_in_a_row } = *state else {
            return BreakerChange::None;
        };
        let failures_in_a_row = failures_in_a_row.saturating_add(1);
        if failures_in_a_row < self.failures_to_degrade {
            *state = State::Closed { failures_in_a_row };
            return BreakerChange::None;
        }
        *state = State::Open {
            next_probe: now.plus(self.probe_every),
        };
        BreakerChange::Opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn from_seconds(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * SECOND)
    }

    #[test]
    fn opens_after_consecutive_failures_and_closes_after_a_probe() {
        let breaker = CircuitBreaker::new(3, Duration::from_secs(5));
        assert_eq!(breaker.record_failure(from_seconds(0)), BreakerChange::None);
        assert_eq!(breaker.record_failure(from_seconds(0)), BreakerChange::None);
        assert_eq!(breaker.record_success(), BreakerChange::None); // resets the count
        assert_eq!(breaker.record_failure(from_seconds(1)), BreakerChange::None);
        assert_eq!(breaker.record_failure(from_seconds(1)), BreakerChange::None);
        assert_eq!(breaker.check(from_seconds(1)), BreakerDecision::Open);
        assert_eq!(
            breaker.record_failure(from_seconds(1)),
            BreakerChange::Opened
        );
        assert_eq!(breaker.record_failure(from_seconds(1)), BreakerChange::None); // a call that began before
        assert_eq!(breaker.check(from_seconds(5)), BreakerDecision::Reject);
        assert_eq!(breaker.check(from_seconds(6)), BreakerDecision::Probe);
        assert_eq!(breaker.check(from_seconds(6)), BreakerDecision::Reject); // one probe per interval
        assert_eq!(breaker.record_failure(from_seconds(6)), BreakerChange::None);
        assert_eq!(breaker.check(from_seconds(11)), BreakerDecision::Probe);
        assert!(!breaker.is_available());
        assert_eq!(breaker.record_success(), BreakerChange::Closed);
        assert_eq!(breaker.check(from_seconds(11)), BreakerDecision::Open);
        assert!(breaker.is_available());
    }
}
