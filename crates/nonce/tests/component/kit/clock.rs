//! Tokio's clock, which a test may stop, and chance that never repeats.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::Clock;
use tokio::time::Instant;

/// So that holders of several components, and of several runs on one database, differ.
static DRAWN: AtomicU64 = AtomicU64::new(1);

pub(crate) struct TestClock {
    began: Instant,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000).plus(self.began.elapsed())
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(1_000_000).plus(self.began.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn random(&self) -> u128 {
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
        u128::from(drawn) << 64 | u128::from(drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}
