//! Whether Redis is there: left out after so many failures in a row, asked again at intervals, and back by itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::MonotonicTime;

/// Counts failures. Knows no clock and no wire.
#[derive(Debug)]
pub struct Health {
    failures_to_degrade: u32,
    probe_every: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Well { failures_in_a_row: u32 },
    Away { next_probe: MonotonicTime },
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Ask.
    Open,
    /// Do without.
    Shut,
    /// Do without, and have somebody look whether it is back: only one caller per interval is told this.
    Probe,
}

/// What a failure or a success changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that a caller would notice.
    None,
    /// It is left out from now on.
    Degraded,
    /// It is used again from now on.
    Returned,
}

impl Health {
    /// Well until so many calls in a row have failed.
    #[must_use]
    pub fn new(failures_to_degrade: u32, probe_every: Duration) -> Self {
        Self {
            failures_to_degrade: failures_to_degrade.max(1),
            probe_every,
            state: Mutex::new(State::Well {
                failures_in_a_row: 0,
            }),
        }
    }

    /// Whether it may be asked now.
    pub fn gate(&self, now: MonotonicTime) -> Gate {
        let mut state = self.state();
        match *state {
            State::Well { .. } => Gate::Open,
            State::Away { next_probe } if now >= next_probe => {
                *state = State::Away {
                    next_probe: now.plus(self.probe_every),
                };
                Gate::Probe
            }
            State::Away { .. } => Gate::Shut,
        }
    }

    /// Whether it is in use.
    pub fn is_well(&self) -> bool {
        matches!(*self.state(), State::Well { .. })
    }

    /// A call or a probe was answered.
    pub fn succeeded(&self) -> Change {
        let before = std::mem::replace(
            &mut *self.state(),
            State::Well {
                failures_in_a_row: 0,
            },
        );
        match before {
            State::Well { .. } => Change::None,
            State::Away { .. } => Change::Returned,
        }
    }

    /// A call or a probe failed.
    pub fn failed(&self, now: MonotonicTime) -> Change {
        let mut state = self.state();
        let State::Well { failures_in_a_row } = *state else {
            return Change::None;
        };
        let failures_in_a_row = failures_in_a_row.saturating_add(1);
        if failures_in_a_row < self.failures_to_degrade {
            *state = State::Well { failures_in_a_row };
            return Change::None;
        }
        *state = State::Away {
            next_probe: now.plus(self.probe_every),
        };
        Change::Degraded
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * SECOND)
    }

    #[test]
    fn degrades_after_failures_in_a_row_and_returns_by_a_probe() {
        let health = Health::new(3, Duration::from_secs(5));
        assert_eq!(health.failed(at(0)), Change::None);
        assert_eq!(health.failed(at(0)), Change::None);
        assert_eq!(health.succeeded(), Change::None); // the row is broken
        assert_eq!(health.failed(at(1)), Change::None);
        assert_eq!(health.failed(at(1)), Change::None);
        assert_eq!(health.gate(at(1)), Gate::Open);
        assert_eq!(health.failed(at(1)), Change::Degraded);
        assert_eq!(health.failed(at(1)), Change::None); // one who had begun before
        assert_eq!(health.gate(at(5)), Gate::Shut);
        assert_eq!(health.gate(at(6)), Gate::Probe);
        assert_eq!(health.gate(at(6)), Gate::Shut); // one prober is enough
        assert_eq!(health.failed(at(6)), Change::None);
        assert_eq!(health.gate(at(11)), Gate::Probe);
        assert!(!health.is_well());
        assert_eq!(health.succeeded(), Change::Returned);
        assert_eq!(health.gate(at(11)), Gate::Open);
        assert!(health.is_well());
    }
}
