//! No more requests to an endpoint than its operator allows per second.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::RATE_BURST;

/// Deals out moments at which requests may leave. Gateways count the calls of a batch one by one,
/// and so does this.
pub(super) struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// `per_second` is not 0.
    pub(super) fn new(per_second: u32) -> Self {
        assert!(per_second > 0, "the configuration was checked");
        Self {
            interval: Duration::from_secs(1) / per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// How long to wait with a request of so many calls; `None`, and nothing is taken, when that
    /// is longer than `patience`. What was not used before is saved up for a moment only.
    pub(super) fn take(&self, calls: usize, patience: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut next = self.next.lock().expect("nothing panics while holding it");
        let earliest = now.checked_sub(RATE_BURST).unwrap_or(now);
        let at = (*next).max(earliest);
        let wait = at.saturating_duration_since(now);
        if wait > patience {
            return None;
        }
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        *next = at + self.interval.saturating_mul(calls);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_per_second() {
        let pace = Pace::new(20);
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            let wait = pace.take(1, PATIENCE).unwrap();
            tokio::time::advance(wait).await;
            waited += wait;
        }
        assert_eq!(waited, Duration::from_millis(99 * 50));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_costs_as_much_as_its_calls_and_idle_time_is_saved_for_a_moment() {
        let pace = Pace::new(20);
        assert_eq!(pace.take(40, PATIENCE), Some(Duration::ZERO));
        assert_eq!(
            pace.take(1, Duration::from_secs(1)),
            None,
            "too long to wait"
        );
        assert_eq!(pace.take(1, PATIENCE), Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_secs(100)).await;
        let at_once = (0..100).filter(|_| pace.take(1, PATIENCE) == Some(Duration::ZERO));
        assert_eq!(at_once.count(), 6);
    }
}
