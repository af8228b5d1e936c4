//! Events: every transition once, in lane order, gapless, and the history of a tx begins with its
//! acceptance.

use std::collections::{BTreeMap, BTreeSet};

use domain::{Event, EventKind, LaneKey, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct EventsGapless {
    store_model: StoreModel<EventLogs>,
}

#[derive(Clone, Default)]
struct EventLogs {
    last: BTreeMap<LaneKey, u64>,
    begun: BTreeSet<TxId>,
}

impl EventLogs {
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
            (false, true) => Err(format!(
                "the history of tx {tx} begins with {:?}",
                event.kind
            )),
        }
    }
}

impl Checker for EventsGapless {
    fn name(&self) -> &'static str {
        "events are gapless"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.store_model.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        batch
            .writes
            .events
            .iter()
            .try_for_each(|event| self.store_model.read(lane, event))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, lane, lane_event};
    use super::*;

    #[test]
    fn gaps_and_missing_acceptance_are_reported() {
        let accept = |seq, tx| lane_event(seq, tx, EventKind::TxAccepted { nonce: None });
        let fail = |seq, tx| {
            lane_event(
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
