//! The line of a lane's `with_nonce`s: the first one has the turn.
//!
//! It has it whether it knows or not: a future learns of it when it is polled, and nobody can make its task poll
//! it. So both are looked at: whoever stands in front, inside or not, must move within the others' patience.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::MonotonicTime;
use tokio::sync::Notify;

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Who is in the section, and who waits for it, in their order.
#[derive(Default)]
pub(super) struct Line {
    places: BTreeMap<Ticket, Place>,
    tickets: u64,
}

struct Place {
    /// When it was polled last, or was given the turn.
    moved_at: MonotonicTime,
    /// Rung when it has the turn.
    bell: Arc<Notify>,
}

impl Line {
    /// Joins at the end.
    pub(super) fn join(&mut self, bell: Arc<Notify>, now: MonotonicTime) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let moved_at = now;
        self.places.insert(ticket, Place { moved_at, bell });
        ticket
    }

    /// It was polled. Whether it still has its place.
    pub(super) fn moves(&mut self, ticket: Ticket, now: MonotonicTime) -> bool {
        let place = self.places.get_mut(&ticket);
        place.map(|place| place.moved_at = now).is_some()
    }

    /// Leaves, at its end or before. Nothing happens when it was passed over.
    pub(super) fn leave(&mut self, ticket: Ticket, now: MonotonicTime) {
        let had_turn = self.has_turn(ticket);
        self.places.remove(&ticket);
        if had_turn {
            self.hand_on(now);
        }
    }

    pub(super) fn has_turn(&self, ticket: Ticket) -> bool {
        let first = self.places.first_key_value();
        first.is_some_and(|(first, _)| *first == ticket)
    }

    /// How long the first one has not moved, as somebody knows who has been there since then.
    pub(super) fn stands_still(&self, since: MonotonicTime, now: MonotonicTime) -> Duration {
        let first = self.places.first_key_value();
        first.map_or(Duration::ZERO, |(_, first)| {
            now.since(first.moved_at.max(since))
        })
    }

    /// Takes out those before this one that have not been polled for as long: all of them at once, or several that
    /// nobody polls would cost everybody behind them the patience for each. How many.
    pub(super) fn pass_over(
        &mut self,
        ticket: Ticket,
        patience: Duration,
        now: MonotonicTime,
    ) -> usize {
        let before = self.places.len();
        self.places
            .retain(|other, place| *other >= ticket || now.since(place.moved_at) < patience);
        self.hand_on(now);
        before - self.places.len()
    }

    /// The first one has the turn from now on, and the whole patience to take it.
    fn hand_on(&mut self, now: MonotonicTime) {
        if let Some(mut first) = self.places.first_entry() {
            first.get_mut().moved_at = now;
            first.get().bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_micros(10);

    fn join(line: &mut Line, at: u64) -> Ticket {
        line.join(Arc::default(), MonotonicTime(at))
    }

    #[test]
    fn the_turn_goes_down_the_line_whoever_leaves() {
        let mut line = Line::default();
        let [first, second, third] = [0, 0, 0].map(|at| join(&mut line, at));
        assert!(line.has_turn(first) && !line.has_turn(second));
        line.leave(second, MonotonicTime(1));
        assert!(line.has_turn(first), "a waiter that leaves takes no turn");
        line.leave(first, MonotonicTime(2));
        assert!(line.has_turn(third));
        line.leave(third, MonotonicTime(3));
        assert!(line.places.is_empty());
    }

    #[test]
    fn all_that_stand_still_are_passed_over_at_once_and_those_that_move_are_not() {
        let mut line = Line::default();
        let [hangs, forgotten, waits, me] = [0, 0, 0, 1].map(|at| join(&mut line, at));
        assert!(line.moves(waits, MonotonicTime(6)) && line.moves(me, MonotonicTime(10)));
        assert_eq!(
            line.stands_still(MonotonicTime(1), MonotonicTime(10)),
            Duration::from_micros(9)
        );
        assert_eq!(line.pass_over(me, PATIENCE, MonotonicTime(10)), 2);
        assert!(line.has_turn(waits));
        assert_eq!(
            line.stands_still(MonotonicTime(1), MonotonicTime(12)),
            Duration::from_micros(2)
        );
        assert!(!line.moves(hangs, MonotonicTime(12)) && !line.moves(forgotten, MonotonicTime(12)));
        line.leave(hangs, MonotonicTime(12)); // its end changes nothing any more
        assert!(line.has_turn(waits));
    }
}
