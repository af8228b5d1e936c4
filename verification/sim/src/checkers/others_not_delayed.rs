//! A poisoned lane does not delay others: where nothing else is wrong, requests for the other lanes of the
//! same nodes are accepted soon, and what is signed for them is at a node of the chain soon.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{B256, LaneKey, RequestId};
use tokio::time::Instant;

use super::{Checker, applied};
use crate::event::{Answer, WorldEvent};

/// How long a request may take until it is accepted, by clients that ask again now and then.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(10);
/// How long bytes may take from their commit to a node.
const SENT_WITHIN: Duration = Duration::from_secs(5);

/// See the module.
pub struct OthersNotDelayed {
    poisoned: LaneKey,
    /// When each request was first asked; `None` once it was accepted, or was late.
    asked: BTreeMap<(LaneKey, RequestId), Option<Instant>>,
    /// When each attempt was committed that has not been sent.
    unsent: BTreeMap<B256, (LaneKey, Instant)>,
}

impl OthersNotDelayed {
    pub(super) const PROMISE: &'static str = "a poisoned lane does not delay others";

    /// By this lane.
    #[must_use]
    pub fn by(poisoned: LaneKey) -> Self {
        Self {
            poisoned,
            asked: BTreeMap::new(),
            unsent: BTreeMap::new(),
        }
    }

    /// A node that had not started yet answers nothing at once, and the client may ask again only seconds later:
    /// that delay is nobody's.
    fn nobody_was_there(&mut self, key: (LaneKey, RequestId)) {
        if self.asked.get(&key) == Some(&Some(Instant::now())) {
            self.asked.remove(&key);
        }
    }

    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let late = |since: &Instant, bound| now.duration_since(*since) > bound;
        let waiting = self.asked.iter_mut();
        let slow = waiting.filter_map(|(key, since)| Some((key, since.as_ref().copied()?, since)));
        for ((lane, request_id), since, entry) in slow {
            if late(&since, ACCEPTED_WITHIN) {
                *entry = None;
                return Err(format!(
                    "{request_id} of {lane} is not accepted after {ACCEPTED_WITHIN:?}"
                ));
            }
        }
        let unsent = self.unsent.iter();
        let found = unsent
            .filter(|(_, (_, since))| late(since, SENT_WITHIN))
            .map(|(hash, (lane, _))| (*hash, *lane))
            .next();
        let Some((hash, lane)) = found else {
            return Ok(());
        };
        self.unsent.remove(&hash);
        Err(format!(
            "{hash} of {lane} is not sent after {SENT_WITHIN:?}"
        ))
    }
}

impl Checker for OthersNotDelayed {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Asked {
            lane, request_id, ..
        } = event
        {
            let key = (*lane, request_id.clone());
            self.asked
                .entry(key)
                .or_insert_with(|| Some(Instant::now()));
        }
        if let WorldEvent::Answered {
            lane,
            request_id,
            answer: Answer::Accepted { .. },
            ..
        } = event
        {
            self.asked.insert((*lane, request_id.clone()), None);
        }
        if let WorldEvent::Answered {
            lane,
            request_id,
            answer: Answer::Silence,
            ..
        } = event
        {
            self.nobody_was_there((*lane, request_id.clone()));
        }
        if let Some((lane, batch)) = applied(event).filter(|(lane, _)| *lane != self.poisoned) {
            let signed = batch.writes.attempts.iter().map(|attempt| attempt.hash);
            self.unsent
                .extend(signed.map(|hash| (hash, (lane, Instant::now()))));
        }
        if let WorldEvent::Sent { hash, .. } = event {
            self.unsent.remove(hash);
        }
        // With every block: something else always happens in between.
        if matches!(event, WorldEvent::Mined { .. }) {
            return self.look();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, applied, asked, attempt, block, lane, sent};
    use super::*;

    async fn seconds(count: u64) {
        tokio::time::sleep(Duration::from_secs(count)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_accepted_soon_is_told_once() {
        let mut checker = OthersNotDelayed::by(lane(9));
        assert_eq!(checker.after(&asked(lane(1), 1)), Ok(()));
        seconds(10).await;
        assert_eq!(checker.after(&block(1, Vec::new())), Ok(()));
        seconds(1).await;
        assert!(checker.after(&block(2, Vec::new())).is_err());
        assert_eq!(checker.after(&asked(lane(1), 1)), Ok(()));
        seconds(11).await;
        assert_eq!(checker.after(&block(3, Vec::new())), Ok(()));
        assert_eq!(checker.after(&asked(lane(1), 2)), Ok(()));
        assert_eq!(checker.after(&accepted(lane(1), 2)), Ok(()));
        seconds(11).await;
        assert_eq!(checker.after(&block(4, Vec::new())), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_signed_must_leave_except_where_the_poison_is() {
        let mut checker = OthersNotDelayed::by(lane(9));
        let poisoned = applied(lane(9), |w| w.attempts = vec![attempt(3, 0)]);
        assert_eq!(checker.after(&poisoned), Ok(()));
        let both = applied(lane(1), |w| w.attempts = vec![attempt(1, 0), attempt(2, 1)]);
        assert_eq!(checker.after(&both), Ok(()));
        assert_eq!(checker.after(&sent(lane(1), &attempt(1, 0))), Ok(()));
        seconds(6).await;
        assert!(checker.after(&block(1, Vec::new())).is_err());
        assert_eq!(checker.after(&block(2, Vec::new())), Ok(()));
    }
}
