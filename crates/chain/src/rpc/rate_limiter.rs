//! The limit on calls per second to an endpoint.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::RATE_BURST;

/// Assigns the times at which requests may start. Every call of a batch counts, as gateways count.
pub(super) struct RateLimiter {
    interval: Duration,
    next: Mutex<Instant>,
}

impl RateLimiter {
    /// `per_second` is not 0.
    pub(super) fn new(per_second: u32) -> Self {
        assert!(per_second > 0, "the configuration was checked");
        Self {
            interval: Duration::from_secs(1) / per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// How long the next request would wait.
    pub(super) fn next_wait(&self) -> Duration {
        let next = *self.next.lock().expect("nothing panics while holding it");
        next.saturating_duration_since(Instant::now())
    }

    /// Claims a slot for a request of `calls` calls; returns how long to wait for it. `None`, without a claim, if
    /// that is longer than `wait_max`. Unused time is saved for [`RATE_BURST`] only.
    pub(super) fn claim_slot(&self, calls: usize, wait_max: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut next = self.next.lock().expect("nothing panics while holding it");
        let earliest = now.checked_sub(RATE_BURST).unwrap_or(now);
        let at = (*next).max(earliest);
        let wait = at.saturating_duration_since(now);
        if wait > wait_max {
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

    const WAIT_MAX: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn calls_per_second_are_limited() {
        let rate_limiter = RateLimiter::new(20);
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            let wait = rate_limiter.claim_slot(1, WAIT_MAX).unwrap();
            tokio::time::advance(wait).await;
            waited += wait;
        }
        assert_eq!(waited, Duration::from_millis(99 * 50));
    }

    #[tokio::test(start_paused = true)]
    async fn batch_counts_every_call_and_unused_time_is_capped() {
        let rate_limiter = RateLimiter::new(20);
        assert_eq!(rate_limiter.claim_slot(40, WAIT_MAX), Some(Duration::ZERO));
        assert_eq!(
            rate_limiter.claim_slot(1, Duration::from_secs(1)),
            None,
            "too long to wait"
        );
        assert_eq!(
            rate_limiter.claim_slot(1, WAIT_MAX),
            Some(Duration::from_secs(2))
        );
        tokio::time::advance(Duration::from_secs(100)).await;
        let at_once =
            (0..100).filter(|_| rate_limiter.claim_slot(1, WAIT_MAX) == Some(Duration::ZERO));
        assert_eq!(at_once.count(), 6);
    }
}
