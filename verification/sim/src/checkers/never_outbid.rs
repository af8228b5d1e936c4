//! Nobody outbids somebody else's transaction: once a lane has told that one is pending at its nonce,
//! no other attempt is made at that nonce as long as it waits and no node has taken one of ours.

use std::collections::{BTreeMap, BTreeSet};

use domain::{B256, EventKind, LaneKey, Nonce, SendOutcome};

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct NeverOutbid {
    /// What somebody else has waiting, and where.
    foreign: BTreeMap<B256, (LaneKey, Nonce)>,
    /// Where a lane has told of it, and nothing of ours was taken since.
    told: BTreeSet<(LaneKey, Nonce)>,
}

impl Checker for NeverOutbid {
    fn name(&self) -> &'static str {
        "nobody else's transaction is outbid"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Foreign { lane, nonce, hash } = event {
            self.foreign.insert(*hash, (*lane, *nonce));
        }
        if let WorldEvent::ForeignGone { hash, .. } = event
            && let Some(place) = self.foreign.remove(hash)
        {
            self.told.remove(&place);
        }
        if let WorldEvent::Sent {
            lane,
            nonce,
            outcome: SendOutcome::Accepted,
            ..
        } = event
        {
            self.told.remove(&(*lane, *nonce));
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for attempt in &batch.writes.attempts {
            let place = (lane, attempt.nonce);
            let waits = self.foreign.values().any(|held| *held == place);
            if waits && self.told.contains(&place) {
                let (kind, nonce) = (attempt.kind.as_str(), attempt.nonce);
                return Err(format!(
                    "a {kind} is made at nonce {nonce} of {lane}, where somebody else's waits"
                ));
            }
        }
        for event in &batch.writes.events {
            if let EventKind::LaneForeignPending { nonce } = event.kind {
                self.told.insert((lane, nonce));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, attempt, foreign, foreign_gone, lane, sent, story};
    use super::*;

    #[test]
    fn what_is_told_to_wait_is_left_alone_until_it_is_gone() {
        let told = || {
            let kind = EventKind::LaneForeignPending { nonce: Nonce(4) };
            applied(lane(1), |w| w.events = vec![story(1, 1, kind)])
        };
        let bump = || applied(lane(1), |w| w.attempts = vec![attempt(1, 4)]);
        let run = |events: Vec<WorldEvent>| {
            let mut checker = NeverOutbid::default();
            events.iter().try_for_each(|event| checker.after(event))
        };
        let other = foreign(lane(1), 4, 9);
        assert_eq!(run(vec![other.clone(), bump()]), Ok(()), "nobody knew");
        assert!(run(vec![other.clone(), told(), bump()]).is_err());
        let gone = foreign_gone(9);
        assert_eq!(run(vec![other.clone(), told(), gone, bump()]), Ok(()));
        let taken = sent(lane(1), &attempt(1, 4));
        assert_eq!(run(vec![other, told(), taken, bump()]), Ok(()));
    }
}
