//! Events: every step once, in lane order, without a hole, and the story of a tx begins with its
//! acceptance.

use std::collections::{BTreeMap, BTreeSet};

use domain::{Event, EventKind, LaneKey, TxId};

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct EventsGapless {
    books: Books<Stories>,
}

#[derive(Clone, Default)]
struct Stories {
    last: BTreeMap<LaneKey, u64>,
    begun: BTreeSet<TxId>,
}

impl Stories {
    fn read(&mut self, lane: LaneKey, event: &Event) -> Result<(), String> {
        let last = self.last.entry(lane).or_default();
        let due = *last + 1;
        *last = event.seq;
        if event.seq != due {
            return Err(format!("event {} of {lane} where {due} is due", event.seq));
        }
        let Some(tx) = event.tx_id else { return Ok(()) };
        let is_acceptance = matches!(event.kind, EventKind::TxAccepted { .. });
        match (is_acceptance, self.begun.insert(tx)) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(format!("tx {tx} is accepted a second time")),
            (false, true) => Err(format!("the story of tx {tx} begins with {:?}", event.kind)),
        }
    }
}

impl Checker for EventsGapless {
    fn name(&self) -> &'static str {
        "events without a hole"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.books.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        batch
            .writes
            .events
            .iter()
            .try_for_each(|event| self.books.read(lane, event))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, lane, story};
    use super::*;

    #[test]
    fn holes_and_headless_stories_are_seen() {
        let accept = |seq, tx| story(seq, tx, EventKind::TxAccepted { nonce: None });
        let fail = |seq, tx| {
            story(
                seq,
                tx,
                EventKind::TxFailed {
                    reason: String::new(),
                },
            )
        };
        let run = |events: Vec<Event>| {
            EventsGapless::default().after(&applied(lane(1), |writes| writes.events = events))
        };
        assert_eq!(run(vec![accept(1, 1), accept(2, 2), fail(3, 1)]), Ok(()));
        assert!(run(vec![accept(1, 1), accept(3, 2)]).is_err());
        assert!(run(vec![accept(2, 1)]).is_err());
        assert!(run(vec![fail(1, 1)]).is_err());
        assert!(run(vec![accept(1, 1), accept(2, 1)]).is_err());
    }
}
