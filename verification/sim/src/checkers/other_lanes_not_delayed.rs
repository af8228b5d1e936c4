//! A poisoned lane does not delay others, and neither do harmful requests, endpoints and readers: without other faults, requests for the other lanes of the same
//! nodes are accepted soon, and signed attempts arrive at an endpoint soon.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{B256, LaneKey, RequestId};
use tokio::time::Instant;

use super::{Checker, applied};
use crate::event::{Answer, WorldEvent};

/// How long a request may take until it is accepted, by clients that retry now and then.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(10);
/// How long an attempt may take from its commit to an endpoint.
const SENT_WITHIN: Duration = Duration::from_secs(5);

pub struct OtherLanesNotDelayed {
    poisoned: LaneKey,
    /// When each request was first sent; `None` once it was accepted, or reported as late.
    request_sent: BTreeMap<(LaneKey, RequestId), Option<Instant>>,
    /// When each attempt was committed that has not been sent.
    unsent: BTreeMap<B256, (LaneKey, Instant)>,
}

impl OtherLanesNotDelayed {
    pub(super) const PROMISE: &'static str = "a poisoned lane does not delay others";

    /// The poisoned lane.
    #[must_use]
    pub fn for_poisoned_lane(poisoned: LaneKey) -> Self {
        Self {
            poisoned,
            request_sent: BTreeMap::new(),
            unsent: BTreeMap::new(),
        }
    }

    /// A node that has not started yet does not answer, and the client may retry only seconds later: that delay
    /// does not count.
    fn excuse_unanswered(&mut self, key: (LaneKey, RequestId)) {
        if self.request_sent.get(&key) == Some(&Some(Instant::now())) {
            self.request_sent.remove(&key);
        }
    }

    fn check_deadlines(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let late = |since: &Instant, bound| now.duration_since(*since) > bound;
        let waiting = self.request_sent.iter_mut();
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

impl Checker for OtherLanesNotDelayed {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::RequestSent {
            lane, request_id, ..
        } = event
            && *lane != self.poisoned
        {
            let key = (*lane, request_id.clone());
            self.request_sent
                .entry(key)
                .or_insert_with(|| Some(Instant::now()));
        }
        if let WorldEvent::RequestAnswered {
            lane,
            request_id,
            answer: Answer::Accepted { .. },
            ..
        } = event
            && *lane != self.poisoned
        {
            self.request_sent.insert((*lane, request_id.clone()), None);
        }
        if let WorldEvent::RequestAnswered {
            lane,
            request_id,
            answer: Answer::NoAnswer,
            ..
        } = event
        {
            self.excuse_unanswered((*lane, request_id.clone()));
        }
        if let Some((lane, batch)) = applied(event).filter(|(lane, _)| *lane != self.poisoned) {
            let signed = batch.writes.attempts.iter().map(|attempt| attempt.hash);
            self.unsent
                .extend(signed.map(|hash| (hash, (lane, Instant::now()))));
        }
        if let WorldEvent::Sent { hash, .. } = event {
            self.unsent.remove(hash);
        }
        // With every block: other events happen in between.
        if matches!(event, WorldEvent::Mined { .. }) {
            return self.check_deadlines();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{accepted, applied, attempt, block, lane, request_sent, sent};
    use super::*;

    async fn seconds(count: u64) {
        tokio::time::sleep(Duration::from_secs(count)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn late_acceptance_is_reported_once() {
        let mut checker = OtherLanesNotDelayed::for_poisoned_lane(lane(9));
        assert_eq!(checker.after(&request_sent(lane(1), 1)), Ok(()));
        seconds(10).await;
        assert_eq!(checker.after(&block(1, Vec::new())), Ok(()));
        seconds(1).await;
        assert!(checker.after(&block(2, Vec::new())).is_err());
        assert_eq!(checker.after(&request_sent(lane(1), 1)), Ok(()));
        seconds(11).await;
        assert_eq!(checker.after(&block(3, Vec::new())), Ok(()));
        assert_eq!(checker.after(&request_sent(lane(1), 2)), Ok(()));
        assert_eq!(checker.after(&accepted(lane(1), 2)), Ok(()));
        seconds(11).await;
        assert_eq!(checker.after(&block(4, Vec::new())), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn late_send_is_reported_except_on_the_poisoned_lane() {
        let mut checker = OtherLanesNotDelayed::for_poisoned_lane(lane(9));
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
