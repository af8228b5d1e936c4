//! The messages between the benchmark and its worker processes: lines of JSON.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::setup::Work;

/// The longest recorded latency, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum WorkerRequest {
    /// Reserve one nonce of each lane, so that the run opens no lane and queries no chain nonce.
    Open {
        lanes: Vec<Address>,
    },
    Run(Load),
}

/// The load of one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Load {
    pub(super) lanes: Vec<Address>,
    pub(super) work: Work,
    pub(super) clients: u16,
    pub(super) duration_ms: u64,
    /// The most nonces of the round.
    pub(super) allocations_max: u64,
    /// Whether the round ends only when all reservations are written.
    pub(super) until_written: bool,
}

/// The answer of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkerAnswer {
    /// Nonces that were reserved and, in a cycle, used.
    pub(super) done: u64,
    pub(super) failed: u64,
    /// The error of the first failure.
    pub(super) failure: Option<String>,
    /// How often a caller had to retry because the queue was full.
    pub(super) busy: u64,
    pub(super) elapsed_us: u64,
    /// Pairs of microseconds and their count.
    pub(super) latency: Vec<(u64, u64)>,
    /// The reserved nonces by lane, as inclusive ranges.
    pub(super) reserved: BTreeMap<Address, Vec<(u64, u64)>>,
}

pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("fixed bounds hold")
}

/// Numbers as inclusive ranges. A number that occurs twice is in two ranges.
pub(super) fn to_ranges(mut numbers: Vec<u64>) -> Vec<(u64, u64)> {
    numbers.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            Some(_) | None => ranges.push((number, number)),
        }
    }
    ranges
}

/// How many numbers are in more than one range.
pub(super) fn count_duplicates(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let mut duplicates = 0;
    let mut highest: Option<u64> = None;
    for (first, last) in ranges {
        if let Some(highest) = highest.filter(|highest| *highest >= first) {
            duplicates += highest.min(last) - first + 1;
        }
        highest = highest.max(Some(last));
    }
    duplicates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_within_and_between_processes() {
        assert_eq!(to_ranges(vec![3, 1, 2, 7]), [(1, 3), (7, 7)]);
        assert_eq!(count_duplicates(to_ranges(vec![1, 2, 3])), 0);
        assert_eq!(count_duplicates(to_ranges(vec![1, 2, 2, 3])), 1);
        assert_eq!(
            count_duplicates(vec![(0, 9), (10, 12), (5, 7), (12, 12)]),
            4
        );
    }
}
