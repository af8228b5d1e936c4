//! Statistics of measurements.

use std::time::Duration;

use serde_json::{Value, json};

/// Sorted durations.
#[derive(Clone, Debug)]
pub struct Spread(Vec<Duration>);

impl Spread {
    pub fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self(durations)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The percentile by nearest rank; zero without values.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        let at = self.0.get(rank.saturating_sub(1));
        at.copied().unwrap_or_default()
    }

    pub fn max(&self) -> Duration {
        self.percentile(100)
    }

    /// In milliseconds, for a report.
    pub fn to_json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50Ms": ms(self.percentile(50)),
            "p99Ms": ms(self.percentile(99)),
            "maxMs": ms(self.max()),
        })
    }
}

/// A duration in whole milliseconds for JSON.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let spread = Spread::of((1..=30).rev().map(Duration::from_secs).collect());
        assert_eq!(spread.percentile(50), Duration::from_secs(15));
        assert_eq!(spread.percentile(99), Duration::from_secs(30));
        assert_eq!(spread.max(), Duration::from_secs(30));
        assert_eq!(Spread::of(Vec::new()).percentile(99), Duration::ZERO);
    }
}
