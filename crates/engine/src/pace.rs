//! When to look for the next head: by the chain's own rhythm where it has one.
//!
//! Looking at a fixed pace costs either many calls per block or much time after it. Most chains have
//! a steady rhythm, so the next look is due a little before the next block is, and a few short rests
//! later it is there.

use std::collections::VecDeque;
use std::time::Duration;

use domain::{Header, MonotonicTime};

/// How many blocks in a row must keep the same distance.
const REGULAR_AFTER: usize = 4;
/// Looks creep forward by this part of a block's time, so that one late look does not make all late.
const CREEP: u32 = 50;
/// A look that came too early is repeated after this part of a block's time.
const REPEAT: u32 = 10;

/// The longest rest, however slow the chain seems: its rhythm may have been chance.
const REST_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Pace {
    /// How often to look where there is no rhythm.
    poll: Duration,
    /// Seconds between the last blocks, by their own timestamps.
    distances: VecDeque<u64>,
    newest: Option<Header>,
    seen_at: MonotonicTime,
    /// Whether a node announces new heads by itself.
    is_announced: bool,
}

impl Pace {
    pub(crate) fn new(poll: Duration) -> Self {
        Self {
            poll,
            distances: VecDeque::new(),
            newest: None,
            seen_at: MonotonicTime(0),
            is_announced: false,
        }
    }

    /// A new head is there.
    pub(crate) fn saw(&mut self, head: Header, now: MonotonicTime) {
        if let Some(before) = self.newest.replace(head) {
            let is_next = before.number.checked_add(1) == Some(head.number);
            // After a pause or a fork the rhythm is learned anew.
            match head.timestamp.checked_sub(before.timestamp) {
                Some(distance) if is_next => self.distances.push_back(distance),
                Some(_) | None => self.distances.clear(),
            }
            if self.distances.len() > REGULAR_AFTER {
                self.distances.pop_front();
            }
        }
        self.seen_at = now;
    }

    /// A node announced a head, or one came unannounced.
    pub(crate) fn announced(&mut self, is_announced: bool) {
        self.is_announced = is_announced;
    }

    /// The time between blocks, where they keep one.
    fn rhythm(&self) -> Option<Duration> {
        let first = *self.distances.front()?;
        let is_steady = self.distances.iter().all(|distance| *distance == first);
        (self.distances.len() >= REGULAR_AFTER && is_steady && first > 0)
            .then(|| Duration::from_secs(first))
    }

    /// Whether a look soon after a send may find a new block: not where blocks have their times.
    pub(crate) fn is_moved_by_sends(&self) -> bool {
        self.rhythm().is_none_or(|rhythm| rhythm > REST_MAX)
    }

    /// How long to rest until the next look.
    pub(crate) fn rest(&self, now: MonotonicTime) -> Duration {
        let Some(rhythm) = self.rhythm() else {
            return self.poll;
        };
        let expected = if self.is_announced {
            rhythm.saturating_mul(3) / 2 // beside the announcements, which may fail
        } else {
            rhythm.saturating_sub(rhythm / CREEP)
        };
        let rest = expected.saturating_sub(now.since(self.seen_at));
        rest.max(rhythm / REPEAT).min(REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use domain::B256;

    use super::*;

    fn head(number: u64, timestamp: u64) -> Header {
        Header {
            number,
            hash: B256::left_padding_from(&number.to_be_bytes()),
            parent_hash: B256::ZERO,
            timestamp,
        }
    }

    fn at(millis: u64) -> MonotonicTime {
        MonotonicTime(0).plus(Duration::from_millis(millis))
    }

    /// Follows a chain with a block every second; says how many looks a block took, and how late they were.
    fn follow(blocks: u64) -> (f64, Duration) {
        let mut pace = Pace::new(Duration::from_millis(200));
        let (mut now, mut looks, mut seen, mut late) = (0, 0_u32, 0, 0);
        while seen < blocks {
            looks += 1;
            let newest = now / 1_000;
            if newest > seen {
                seen = newest;
                late += now % 1_000;
                pace.saw(head(newest, newest), at(now));
            }
            now += u64::try_from(pace.rest(at(now)).as_millis()).expect("short");
        }
        let average = Duration::from_millis(late / blocks);
        (f64::from(looks) / blocks as f64, average)
    }

    #[test]
    fn a_steady_chain_is_looked_at_little_more_than_once_a_block() {
        let (looks, late) = follow(200);
        assert!(looks < 1.4, "{looks} looks a block");
        assert!(late < Duration::from_millis(80), "{late:?} late");
    }

    #[test]
    fn a_chain_without_rhythm_is_polled() {
        let mut pace = Pace::new(Duration::from_millis(200));
        for (number, timestamp) in [(1, 10), (2, 10), (3, 14), (4, 15), (5, 15), (6, 16)] {
            pace.saw(head(number, timestamp), at(number));
            assert_eq!(pace.rest(at(number)), Duration::from_millis(200));
            assert!(pace.is_moved_by_sends());
        }
    }

    #[test]
    fn announced_heads_make_looks_rare() {
        let mut pace = Pace::new(Duration::from_millis(200));
        for number in 1..8 {
            pace.saw(head(number, number * 2), at(number * 2_000));
        }
        pace.announced(true);
        assert_eq!(pace.rest(at(14_000)), Duration::from_secs(3));
    }
}
