//! A foreign transaction is never outbid: once a lane has reported one as pending at its nonce, no other
//! attempt is made at that nonce while it is pending and no endpoint has accepted one of the lane's own.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, EventKind, LaneKey, Nonce, SendOutcome};

use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct ForeignNotOutbid {
    /// Pending foreign transactions.
    foreign: BTreeMap<B256, (LaneKey, Nonce)>,
    /// Where a lane has reported one, and none of its own attempts was accepted since.
    reported: BTreeSet<(LaneKey, Nonce)>,
}

impl Checker for ForeignNotOutbid {
    fn name(&self) -> &'static str {
        "a foreign transaction is never outbid"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Foreign { lane, nonce, hash } = event {
            self.foreign.insert(*hash, (*lane, *nonce));
        }
        if let WorldEvent::ForeignGone { hash, .. } = event
            && let Some(place) = self.foreign.remove(hash)
        {
            self.reported.remove(&place);
        }
        if let WorldEvent::Sent {
            lane,
            nonce,
            outcome: SendOutcome::Accepted,
            ..
        } = event
        {
            self.reported.remove(&(*lane, *nonce));
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for attempt in &batch.writes.attempts {
            let place = (lane, attempt.nonce);
            let waits = self.foreign.values().any(|held| *held == place);
            if waits && self.reported.contains(&place) {
                let (kind, nonce) = (attempt.kind.as_str(), attempt.nonce);
                return Err(format!(
                    "a {kind} is made at nonce {nonce} of {lane}, where a foreign transaction is pending"
                ));
            }
        }
        for event in &batch.writes.events {
            if let EventKind::LaneForeignPending { nonce } = event.kind {
                self.reported.insert((lane, nonce));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{
        applied, attempt, foreign, foreign_gone, lane, lane_event, sent,
    };
    use super::*;

    #[test]
    fn reported_foreign_tx_is_not_outbid_while_pending() {
        let reported = || {
            let kind = EventKind::LaneForeignPending { nonce: Nonce(4) };
            applied(lane(1), |w| w.events = vec![lane_event(1, 1, kind)])
        };
        let bump = || applied(lane(1), |w| w.attempts = vec![attempt(1, 4)]);
        let run = |events: Vec<WorldEvent>| {
            let mut checker = ForeignNotOutbid::default();
            events.iter().try_for_each(|event| checker.after(event))
        };
        let other = foreign(lane(1), 4, 9);
        assert_eq!(
            run(vec![other.clone(), bump()]),
            Ok(()),
            "it was not reported"
        );
        assert!(run(vec![other.clone(), reported(), bump()]).is_err());
        let gone = foreign_gone(9);
        assert_eq!(run(vec![other.clone(), reported(), gone, bump()]), Ok(()));
        let accepted = sent(lane(1), &attempt(1, 4));
        assert_eq!(run(vec![other, reported(), accepted, bump()]), Ok(()));
    }
}
