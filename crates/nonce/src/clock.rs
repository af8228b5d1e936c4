//! The system clock and random source, for applications that use the component as a library. Tests and the
//! simulator bring their own.

use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::Clock;

/// The machine's clocks and randomness.
pub struct SystemClock {
    /// Origin of every [`MonotonicTime`].
    started: Instant,
}

impl SystemClock {
    /// Starts counting monotonic time now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock before 1970 reads as 1970: this time is for display and records, never for leases.
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Timestamp(0).plus(since_epoch.unwrap_or_default())
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(0).plus(self.started.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn random(&self) -> u128 {
        rand::random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_rises_and_random_values_differ() {
        let clock = SystemClock::new();
        let before = clock.monotonic();
        assert!(clock.monotonic() >= before);
        assert!(
            clock.now() > Timestamp(1_700_000_000_000),
            "this was written after November 2023"
        );
        assert_ne!(clock.random(), clock.random());
    }
}
