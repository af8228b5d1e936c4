//! Randomness from a seed. Every component of a world has its own stream, so that one more draw in one
//! component does not change all others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

/// A random stream. Clones share the stream.
#[derive(Clone, Debug)]
pub struct Rng {
    stream: Arc<Mutex<SmallRng>>,
}

impl Rng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            stream: Arc::new(Mutex::new(SmallRng::seed_from_u64(seed))),
        }
    }

    /// A new stream of its own, seeded from this one.
    #[must_use]
    pub fn split(&self) -> Self {
        Self::new(self.bits())
    }

    /// A number in `0..end`.
    ///
    /// # Panics
    /// When `end` is 0.
    #[must_use]
    pub fn below(&self, end: u64) -> u64 {
        self.lock().random_range(0..end)
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// When `low` is above `high`.
    #[must_use]
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.lock().random_range(low..=high)
    }

    /// Whole milliseconds in `low..=high`.
    #[must_use]
    pub fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// True with a probability of `chance` per thousand.
    #[must_use]
    pub fn permille(&self, chance: u64) -> bool {
        self.below(1_000) < chance
    }

    /// One of the given values.
    ///
    /// # Panics
    /// When the slice is empty.
    #[must_use]
    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        let index = self.lock().random_range(0..from.len());
        &from[index]
    }

    /// 64 random bits.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.lock().next_u64()
    }

    /// 128 random bits.
    #[must_use]
    pub fn bits_128(&self) -> u128 {
        (u128::from(self.bits()) << 64) | u128::from(self.bits())
    }

    fn lock(&self) -> MutexGuard<'_, SmallRng> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_makes_the_same_stream() {
        let draw = |seed: u64| {
            let rng = Rng::new(seed);
            let split = rng.split();
            (
                rng.bits_128(),
                split.below(1_000),
                split.millis(5, 9),
                rng.permille(500),
            )
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_stay_in_range() {
        let rng = Rng::new(1);
        for _ in 0..1_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=9).contains(&rng.between(5, 9)));
            assert!([1, 2].contains(rng.pick(&[1, 2])));
        }
        assert!(!rng.permille(0) && rng.permille(1_000));
    }
}
