//! Time and chance for twins: tokio's clock (which a simulation stops and turns by hand) and a
//! seeded stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Moment, Time};
use engine::ports::Clock;
use tokio::time::Instant;

use crate::rng::Rng;

/// When every simulated world begins: 2026-01-01T00:00:00Z.
pub const EPOCH: Time = Time(1_767_225_600_000);

/// A clock over tokio's time. Clones show the same time and share the stream of chance.
#[derive(Clone, Debug)]
pub struct SimClock {
    began: Instant,
    /// How far its wall time is ahead of the world's, in milliseconds.
    ahead_ms: Arc<AtomicI64>,
    rng: Rng,
}

impl SimClock {
    /// A clock that shows [`EPOCH`] now.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            began: Instant::now(),
            ahead_ms: Arc::default(),
            rng: Rng::new(seed),
        }
    }

    /// Another machine's clock in the same world: its wall time is `ahead` of this one's, its
    /// chance is its own.
    #[must_use]
    pub fn machine(&self, ahead: Duration, rng: Rng) -> Self {
        Self {
            began: self.began,
            ahead_ms: Arc::new(AtomicI64::new(millis(ahead))),
            rng,
        }
    }

    /// Sets its wall time, forward or back. Its monotonic clock knows nothing of it.
    pub fn jump(&self, by_ms: i64) {
        self.ahead_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// How long the world has lasted.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

#[async_trait]
impl Clock for SimClock {
    fn now(&self) -> Time {
        let ahead = self.ahead_ms.load(Ordering::SeqCst);
        Time(EPOCH.plus(self.elapsed()).0.saturating_add_signed(ahead))
    }

    fn moment(&self) -> Moment {
        // From 1 second on: a moment of zero is nobody's.
        Moment(1_000_000).plus(self.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn random(&self) -> u128 {
        self.rng.bits_128()
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("clocks differ by far less than 2^63 ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn machines_share_time_and_differ_in_offset_and_chance() {
        let world = SimClock::new(1);
        let node = world.machine(Duration::from_millis(250), Rng::new(2));
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(world.now(), EPOCH.plus(Duration::from_secs(5)));
        assert_eq!(node.now(), world.now().plus(Duration::from_millis(250)));
        assert_eq!(node.moment(), world.moment());
        assert_ne!(node.random(), world.random());
        let before = (world.now(), node.moment());
        node.jump(-3_600_250);
        assert_eq!(node.now().plus(Duration::from_secs(3_600)), world.now());
        assert_eq!((world.now(), node.moment()), before);
    }
}
