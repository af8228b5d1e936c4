//! When to poll for the next head: by the chain's own block interval where it has one.
//!
//! A fixed interval costs either many calls per block or much delay after it. Most chains have a steady block
//! interval, so the next poll is due a little before the next block, and repeated after short delays.

use std::collections::VecDeque;
use std::time::Duration;

use domain::{Header, MonotonicTime};

/// How many blocks in a row must have the same interval.
const STEADY_AFTER: usize = 4;
/// Polls move forward by this part of the block interval, so that one late poll does not delay all later ones.
const EARLY_PART: u32 = 50;
/// A poll that came too early is repeated after this part of the block interval.
const REPEAT_PART: u32 = 10;

/// The longest delay, however slow the chain seems: its interval may have been chance.
const DELAY_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct PollSchedule {
    /// The delay where there is no steady interval.
    poll: Duration,
    /// Seconds between the last blocks, by their own timestamps.
    intervals: VecDeque<u64>,
    newest: Option<Header>,
    seen_at: MonotonicTime,
    /// Whether a node announces new heads by itself.
    is_announced: bool,
}

impl PollSchedule {
    pub(crate) fn new(poll: Duration) -> Self {
        Self {
            poll,
            intervals: VecDeque::new(),
            newest: None,
            seen_at: MonotonicTime(0),
            is_announced: false,
        }
    }

    pub(crate) fn observe_head(&mut self, head: Header, now: MonotonicTime) {
        if let Some(before) = self.newest.replace(head) {
            let is_next = before.number.checked_add(1) == Some(head.number);
            // After a pause or a fork the interval is measured anew.
            match head.timestamp.checked_sub(before.timestamp) {
                Some(seconds) if is_next => self.intervals.push_back(seconds),
                Some(_) | None => self.intervals.clear(),
            }
            if self.intervals.len() > STEADY_AFTER {
                self.intervals.pop_front();
            }
        }
        self.seen_at = now;
    }

    /// Whether the last head was announced by an endpoint.
    pub(crate) fn set_announced(&mut self, is_announced: bool) {
        self.is_announced = is_announced;
    }

    /// The time between blocks, where it is steady.
    fn block_interval(&self) -> Option<Duration> {
        let first = *self.intervals.front()?;
        let is_steady = self.intervals.iter().all(|seconds| *seconds == first);
        (self.intervals.len() >= STEADY_AFTER && is_steady && first > 0)
            .then(|| Duration::from_secs(first))
    }

    /// Whether a poll soon after a send may find a new block: not where blocks come at steady intervals.
    pub(crate) fn is_triggered_by_sends(&self) -> bool {
        self.block_interval()
            .is_none_or(|block_interval| block_interval > DELAY_MAX)
    }

    /// How long to wait until the next poll.
    pub(crate) fn next_poll_delay(&self, now: MonotonicTime) -> Duration {
        let Some(block_interval) = self.block_interval() else {
            return self.poll;
        };
        let expected = if self.is_announced {
            block_interval.saturating_mul(3) / 2 // beside the announcements, which may fail
        } else {
            block_interval.saturating_sub(block_interval / EARLY_PART)
        };
        let delay = expected.saturating_sub(now.since(self.seen_at));
        delay.max(block_interval / REPEAT_PART).min(DELAY_MAX)
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

    /// Follows a chain with a block every second. Returns the polls per block, and the average delay after a block.
    fn follow_chain(blocks: u64) -> (f64, Duration) {
        let mut schedule = PollSchedule::new(Duration::from_millis(200));
        let (mut now, mut polls, mut seen, mut late) = (0, 0_u32, 0, 0);
        while seen < blocks {
            polls += 1;
            let newest = now / 1_000;
            if newest > seen {
                seen = newest;
                late += now % 1_000;
                schedule.observe_head(head(newest, newest), at(now));
            }
            now += u64::try_from(schedule.next_poll_delay(at(now)).as_millis()).expect("short");
        }
        let average = Duration::from_millis(late / blocks);
        (f64::from(polls) / blocks as f64, average)
    }

    #[test]
    fn steady_chain_is_polled_little_more_than_once_per_block() {
        let (polls, late) = follow_chain(200);
        assert!(polls < 1.4, "{polls} polls per block");
        assert!(late < Duration::from_millis(80), "{late:?} late");
    }

    #[test]
    fn chain_without_a_steady_interval_is_polled_at_the_configured_one() {
        let mut schedule = PollSchedule::new(Duration::from_millis(200));
        for (number, timestamp) in [(1, 10), (2, 10), (3, 14), (4, 15), (5, 15), (6, 16)] {
            schedule.observe_head(head(number, timestamp), at(number));
            assert_eq!(
                schedule.next_poll_delay(at(number)),
                Duration::from_millis(200)
            );
            assert!(schedule.is_triggered_by_sends());
        }
    }

    #[test]
    fn announced_heads_make_polls_rare() {
        let mut schedule = PollSchedule::new(Duration::from_millis(200));
        for number in 1..8 {
            schedule.observe_head(head(number, number * 2), at(number * 2_000));
        }
        schedule.set_announced(true);
        assert_eq!(schedule.next_poll_delay(at(14_000)), Duration::from_secs(3));
    }
}
