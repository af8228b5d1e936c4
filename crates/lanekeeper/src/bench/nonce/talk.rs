//! What the bench and its worker processes say to each other: lines of JSON.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::plan::Work;

/// The longest latency that is told apart, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;

/// To a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Order {
    /// Borrow once in each lane, so that nothing is opened or asked for the first time later.
    Open {
        lanes: Vec<Address>,
    },
    Run(Load),
}

/// One round of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Load {
    pub(super) lanes: Vec<Address>,
    pub(super) work: Work,
    pub(super) clients: u16,
    pub(super) duration_ms: u64,
    /// How many nonces at most.
    pub(super) allocations_max: u64,
    /// Whether the round ends when everything is written down, and not before.
    pub(super) until_written: bool,
}

/// From a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    /// Nonces that were lent and, in a cycle, used.
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Why the first one failed.
    pub(super) failure: Option<String>,
    /// How often a caller was told to come back, because too much was under way.
    pub(super) busy: u64,
    pub(super) elapsed_us: u64,
    /// Pairs of microseconds and how often.
    pub(super) latency: Vec<(u64, u64)>,
    /// What was lent, by lane: first and last of each row of neighbours.
    pub(super) lent: BTreeMap<Address, Vec<(u64, u64)>>,
}

pub(super) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("fixed bounds hold")
}

/// Numbers as rows of neighbours. One that comes twice stands there twice.
pub(super) fn rows(mut numbers: Vec<u64>) -> Vec<(u64, u64)> {
    numbers.sort_unstable();
    let mut rows: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match rows.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            Some(_) | None => rows.push((number, number)),
        }
    }
    rows
}

/// How many numbers stand in more than one row.
pub(super) fn doubled(mut rows: Vec<(u64, u64)>) -> u64 {
    rows.sort_unstable();
    let mut doubled = 0;
    let mut highest: Option<u64> = None;
    for (first, last) in rows {
        if let Some(highest) = highest.filter(|highest| *highest >= first) {
            doubled += highest.min(last) - first + 1;
        }
        highest = highest.max(Some(last));
    }
    doubled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_twice_is_found_within_a_process_and_between_two() {
        assert_eq!(rows(vec![3, 1, 2, 7]), [(1, 3), (7, 7)]);
        assert_eq!(doubled(rows(vec![1, 2, 3])), 0);
        assert_eq!(doubled(rows(vec![1, 2, 2, 3])), 1);
        assert_eq!(doubled(vec![(0, 9), (10, 12), (5, 7), (12, 12)]), 4);
    }
}
