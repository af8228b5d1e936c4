//! Time and randomness for twins: tokio's clock, which the simulation controls, and a seeded random
//! stream.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::Clock;
use tokio::time::Instant;

use crate::rng::Rng;

/// When every simulated world begins: 2026-01-01T00:00:00Z.
pub const EPOCH: Timestamp = Timestamp(1_767_225_600_000);

/// A clock over tokio's time. Clones show the same time and share the random stream.
#[derive(Clone, Debug)]
pub struct SimClock {
    began: Instant,
    /// How far its wall time is ahead of the world's, in milliseconds.
    ahead_ms: Arc<AtomicI64>,
    /// The wall time that it shows while it is frozen.
    frozen_at: Arc<Mutex<Option<Timestamp>>>,
    /// By how many millionths both of its clocks are fast (or slow, if negative).
    drift_ppm: i64,
    rng: Rng,
}

/// Parts per million in one.
const PPM: u64 = 1_000_000;

impl SimClock {
    /// A clock that shows [`EPOCH`] now.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            began: Instant::now(),
            ahead_ms: Arc::default(),
            frozen_at: Arc::default(),
            drift_ppm: 0,
            rng: Rng::new(seed),
        }
    }

    /// The clock of another machine in the same world: its wall time is `ahead` of this one's, its
    /// random stream is its own.
    #[must_use]
    pub fn machine(&self, ahead: Duration, rng: Rng) -> Self {
        Self {
            began: self.began,
            ahead_ms: Arc::new(AtomicI64::new(millis(ahead))),
            frozen_at: Arc::default(),
            drift_ppm: 0,
            rng,
        }
    }

    /// The same clock with a drift: `drift_ppm` millionths fast, or slow if negative.
    ///
    /// # Panics
    /// When time would not advance.
    #[must_use]
    pub fn with_drift(self, drift_ppm: i64) -> Self {
        assert!(
            PPM.checked_add_signed(drift_ppm)
                .is_some_and(|rate| rate > 0),
            "a clock goes forward"
        );
        Self { drift_ppm, ..self }
    }

    /// Sets its wall time, forward or back. Its monotonic clock is not affected.
    pub fn jump(&self, by_ms: i64) {
        self.ahead_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Freezes its wall time, or lets it catch up. Its monotonic clock is not affected.
    pub fn freeze_wall_time(&self, is_frozen: bool) {
        let at = is_frozen.then(|| self.now());
        *self.frozen_at() = at;
    }

    /// How long the world has run, as this clock measures it.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        scaled(self.began.elapsed(), self.rate(), PPM)
    }

    /// How many millionths of a second it advances in one second of the world.
    fn rate(&self) -> u64 {
        PPM.saturating_add_signed(self.drift_ppm)
    }

    fn frozen_at(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.frozen_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        if let Some(at) = *self.frozen_at() {
            return at;
        }
        let ahead = self.ahead_ms.load(Ordering::SeqCst);
        Timestamp(EPOCH.plus(self.elapsed()).0.saturating_add_signed(ahead))
    }

    fn monotonic(&self) -> MonotonicTime {
        // Starts at 1 second: zero means "no time" elsewhere.
        MonotonicTime(1_000_000).plus(self.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(scaled(duration, PPM, self.rate())).await;
    }

    fn random(&self) -> u128 {
        self.rng.bits_128()
    }
}

/// `duration` × `by` ÷ `of`, exactly itself where the two are equal.
fn scaled(duration: Duration, by: u64, of: u64) -> Duration {
    if by == of {
        return duration;
    }
    let nanos = duration.as_nanos() * u128::from(by) / u128::from(of);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("clocks differ by far less than 2^63 ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn machines_share_time_but_not_offset_and_randomness() {
        let world = SimClock::new(1);
        let node = world.machine(Duration::from_millis(250), Rng::new(2));
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(world.now(), EPOCH.plus(Duration::from_secs(5)));
        assert_eq!(node.now(), world.now().plus(Duration::from_millis(250)));
        assert_eq!(node.monotonic(), world.monotonic());
        assert_ne!(node.random(), world.random());
        let before = (world.now(), node.monotonic());
        node.jump(-3_600_250);
        assert_eq!(node.now().plus(Duration::from_secs(3_600)), world.now());
        assert_eq!((world.now(), node.monotonic()), before);
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_drift_and_freeze() {
        let world = SimClock::new(1);
        let node = world.machine(Duration::ZERO, Rng::new(2));
        let fast = node.clone().with_drift(10_000);
        let (began, sent) = (fast.monotonic(), world.monotonic());
        fast.sleep(Duration::from_secs(101)).await;
        assert_eq!(world.monotonic().since(sent), Duration::from_secs(100));
        assert_eq!(fast.monotonic().since(began), Duration::from_secs(101));
        node.freeze_wall_time(true);
        let stood_at = node.now();
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(node.now(), stood_at);
        node.freeze_wall_time(false);
        assert_eq!(node.now(), world.now());
    }
}
