//! The queue of a lane's `with_nonce` sections: the first one is active.
//!
//! It is active whether it knows or not: a future learns of it when its task polls it, which cannot be forced. So the
//! first one, started or not, must be polled within the idle timeout of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::MonotonicTime;
use tokio::sync::Notify;

/// Identifies a place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The active section and the waiting ones, in their order.
#[derive(Default)]
pub(super) struct SectionQueue {
    waiters: BTreeMap<Ticket, Waiter>,
    tickets: u64,
}

struct Waiter {
    /// When it was last polled, or became first.
    polled_at: MonotonicTime,
    /// Notified when it becomes first.
    wakeup: Arc<Notify>,
}

impl SectionQueue {
    /// Joins at the end.
    pub(super) fn enqueue(&mut self, wakeup: Arc<Notify>, now: MonotonicTime) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let polled_at = now;
        self.waiters.insert(ticket, Waiter { polled_at, wakeup });
        ticket
    }

    /// Records a poll; returns whether the place still exists.
    pub(super) fn record_poll(&mut self, ticket: Ticket, now: MonotonicTime) -> bool {
        let waiter = self.waiters.get_mut(&ticket);
        waiter.map(|waiter| waiter.polled_at = now).is_some()
    }

    /// Leaves, finished or not. Has no effect after a removal.
    pub(super) fn remove(&mut self, ticket: Ticket, now: MonotonicTime) {
        let was_first = self.is_first(ticket);
        self.waiters.remove(&ticket);
        if was_first {
            self.notify_first(now);
        }
    }

    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        let first = self.waiters.first_key_value();
        first.is_some_and(|(first, _)| *first == ticket)
    }

    /// How long the first one was not polled, counted at most from `since`.
    pub(super) fn head_idle_time(&self, since: MonotonicTime, now: MonotonicTime) -> Duration {
        let first = self.waiters.first_key_value();
        first.map_or(Duration::ZERO, |(_, first)| {
            now.since(first.polled_at.max(since))
        })
    }

    /// Removes the places before this one that were not polled for the idle timeout and returns their number. All at
    /// once: otherwise each of them would cost everyone behind it one idle timeout.
    pub(super) fn remove_idle_before(
        &mut self,
        ticket: Ticket,
        idle_timeout: Duration,
        now: MonotonicTime,
    ) -> usize {
        let before = self.waiters.len();
        self.waiters
            .retain(|other, waiter| *other >= ticket || now.since(waiter.polled_at) < idle_timeout);
        self.notify_first(now);
        before - self.waiters.len()
    }

    /// Makes the first one active, with a fresh idle timeout.
    fn notify_first(&mut self, now: MonotonicTime) {
        if let Some(mut first) = self.waiters.first_entry() {
            first.get_mut().polled_at = now;
            first.get().wakeup.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_micros(10);

    fn enqueue(queue: &mut SectionQueue, at: u64) -> Ticket {
        queue.enqueue(Arc::default(), MonotonicTime(at))
    }

    #[test]
    fn next_waiter_becomes_first_when_the_first_leaves() {
        let mut queue = SectionQueue::default();
        let [first, second, third] = [0, 0, 0].map(|at| enqueue(&mut queue, at));
        assert!(queue.is_first(first) && !queue.is_first(second));
        queue.remove(second, MonotonicTime(1));
        assert!(
            queue.is_first(first),
            "a waiter that leaves does not change the first"
        );
        queue.remove(first, MonotonicTime(2));
        assert!(queue.is_first(third));
        queue.remove(third, MonotonicTime(3));
        assert!(queue.waiters.is_empty());
    }

    #[test]
    fn idle_waiters_are_removed_together_and_polled_ones_stay() {
        let mut queue = SectionQueue::default();
        let [hangs, forgotten, waits, me] = [0, 0, 0, 1].map(|at| enqueue(&mut queue, at));
        assert!(
            queue.record_poll(waits, MonotonicTime(6)) && queue.record_poll(me, MonotonicTime(10))
        );
        assert_eq!(
            queue.head_idle_time(MonotonicTime(1), MonotonicTime(10)),
            Duration::from_micros(9)
        );
        assert_eq!(
            queue.remove_idle_before(me, IDLE_TIMEOUT, MonotonicTime(10)),
            2
        );
        assert!(queue.is_first(waits));
        assert_eq!(
            queue.head_idle_time(MonotonicTime(1), MonotonicTime(12)),
            Duration::from_micros(2)
        );
        assert!(
            !queue.record_poll(hangs, MonotonicTime(12))
                && !queue.record_poll(forgotten, MonotonicTime(12))
        );
        queue.remove(hangs, MonotonicTime(12)); // has no effect any more
        assert!(queue.is_first(waits));
    }
}
