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

/// Sorted ratios of paired measurements; never empty.
#[derive(Clone, Debug)]
pub struct Ratios(Vec<f64>);

impl Ratios {
    /// None without values, or if one is not a number.
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        let is_complete = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite());
        ratios.sort_unstable_by(f64::total_cmp);
        is_complete.then_some(Self(ratios))
    }

    /// The mean of the two middle values if their number is even.
    pub fn median(&self) -> f64 {
        let upper = self.0.len() / 2;
        let lower = (self.0.len() - 1) / 2;
        f64::midpoint(self.0[lower], self.0[upper])
    }

    pub fn lowest(&self) -> f64 {
        self.0[0]
    }

    pub fn highest(&self) -> f64 {
        self.0[self.0.len() - 1]
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

    #[test]
    fn median_of_ratios_is_the_middle_or_between_the_two_middle_values() {
        let odd = Ratios::of(vec![1.5, 0.5, 1.0]).unwrap();
        assert_eq!((odd.lowest(), odd.median(), odd.highest()), (0.5, 1.0, 1.5));
        let even = Ratios::of(vec![2.0, 1.0, 0.5, 1.5]).unwrap();
        assert_eq!(even.median(), 1.25);
        assert!(Ratios::of(Vec::new()).is_none());
        assert!(Ratios::of(vec![1.0, f64::NAN]).is_none());
    }
}
