//! Tokio's clock, which a test may pause or set forward, and unique random values.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::Clock;
use tokio::sync::watch;
use tokio::time::Instant;

/// Makes the holders of several components, and of several runs on one database, differ.
static DRAWN: AtomicU64 = AtomicU64::new(1);

pub(crate) struct TestClock {
    began: Instant,
    /// Time that was skipped by hand.
    skipped: watch::Sender<Duration>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            skipped: watch::Sender::new(Duration::ZERO),
        }
    }

    /// Sets the clock forward and wakes the sleepers whose time has come.
    pub(crate) fn skip(&self, by: Duration) {
        self.skipped.send_modify(|skipped| *skipped += by);
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed() + *self.skipped.borrow()
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000).plus(self.elapsed())
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(1_000_000).plus(self.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.elapsed().saturating_add(duration);
        let mut skipped = self.skipped.subscribe();
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep(until.saturating_sub(self.elapsed())) => return,
                changed = skipped.changed() => changed.expect("the sender lives as long as the clock"),
            }
        }
    }

    fn random(&self) -> u128 {
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
        u128::from(drawn) << 64 | u128::from(drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}
