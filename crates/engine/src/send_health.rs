//! Which lanes' sends get no answer from any endpoint, as this node observes it. Another node may be able to send what
//! this one cannot, even where both can query the chain.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use domain::{LaneKey, MonotonicTime, SendOutcome};

use crate::core::lock;

/// For how long a node that released a lane because of its sends does not acquire it again; also the longest pause
/// between two sends that count as one row without answers.
const UNANSWERED_AGE_MAX: Duration = Duration::from_secs(30);
/// When the sends of so many lanes get no answer, those of the chain's other lanes are not expected to get one either.
const UNANSWERED_LANES_MIN: usize = 2;
/// How often the time until the next release of a lane doubles: where no node gets an answer, it must not circulate.
const DOUBLED_MAX: u32 = 6;

/// The lanes of one chain whose last sends got no answer.
#[derive(Default)]
pub(crate) struct SendHealth(Mutex<BTreeMap<LaneKey, Unanswered>>);

#[derive(Clone, Copy)]
struct Unanswered {
    since: MonotonicTime,
    last: MonotonicTime,
    released_at: Option<MonotonicTime>,
    releases: u32,
}

impl SendHealth {
    /// Records what came of a send that began at `began`.
    pub(crate) fn record_outcomes(
        &self,
        lane: LaneKey,
        outcomes: &[SendOutcome],
        began: MonotonicTime,
        now: MonotonicTime,
    ) {
        let is_unknown = |outcome: &SendOutcome| matches!(outcome, SendOutcome::Unknown(_));
        let mut lanes = lock(&self.0);
        if outcomes.iter().any(is_decided) {
            lanes.remove(&lane);
        } else if outcomes.iter().any(is_unknown) {
            let unanswered = lanes.entry(lane).or_insert(Unanswered {
                since: began,
                last: now,
                released_at: None,
                releases: 0,
            });
            if began.since(unanswered.last) >= UNANSWERED_AGE_MAX {
                unanswered.since = began;
            }
            unanswered.last = now;
        }
    }

    /// Whether the sends of this lane, or of other lanes of the chain, got no answer for so long. Twice as long each time
    /// that the lane was released for it.
    pub(crate) fn is_unanswered(&self, lane: LaneKey, long: Duration, now: MonotonicTime) -> bool {
        let lanes = lock(&self.0);
        let mut unanswered = lanes.iter().filter(|(_, one)| {
            let long = long.saturating_mul(2_u32.saturating_pow(one.releases));
            one.last.since(one.since) >= long && now.since(one.last) < UNANSWERED_AGE_MAX
        });
        let count = unanswered.clone().count();
        count >= UNANSWERED_LANES_MIN || unanswered.any(|(key, _)| *key == lane)
    }

    /// Records that a lane is released because its sends got no answer.
    pub(crate) fn record_release(&self, lane: LaneKey, now: MonotonicTime) {
        if let Some(one) = lock(&self.0).get_mut(&lane) {
            one.released_at = Some(now);
            one.releases = one.releases.saturating_add(1).min(DOUBLED_MAX);
        }
    }

    /// Whether the lane was released for that reason a short while ago.
    pub(crate) fn was_released(&self, lane: LaneKey, now: MonotonicTime) -> bool {
        let released_at = lock(&self.0).get(&lane).and_then(|one| one.released_at);
        released_at.is_some_and(|at| now.since(at) < UNANSWERED_AGE_MAX)
    }
}

/// Whether a node looked at the bytes. Busy is no such answer: behind a send that hangs, the others of its batch are busy
/// because they were not sent.
fn is_decided(outcome: &SendOutcome) -> bool {
    match outcome {
        SendOutcome::Accepted
        | SendOutcome::NonceTooLow
        | SendOutcome::Underpriced(_)
        | SendOutcome::ReplacementUnderpriced(_)
        | SendOutcome::ForeignPending(_)
        | SendOutcome::Underfunded(_)
        | SendOutcome::Full { .. }
        | SendOutcome::Refused(_)
        | SendOutcome::Rejected(_)
        | SendOutcome::GasTooLow(_) => true,
        SendOutcome::Busy(_) | SendOutcome::Unknown(_) | SendOutcome::NotSent(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn lane(number: u8) -> LaneKey {
        LaneKey {
            chain_id: ChainId(1),
            signer: Address::repeat_byte(number),
        }
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(0).plus(Duration::from_secs(seconds))
    }

    fn unknown() -> Vec<SendOutcome> {
        vec![SendOutcome::Unknown("no answer".into())]
    }

    #[test]
    fn lane_is_unanswered_after_long_and_until_a_node_decides() {
        let health = SendHealth::default();
        health.record_outcomes(lane(1), &unknown(), at(100), at(105));
        assert!(
            !health.is_unanswered(lane(1), LONG, at(105)),
            "not for long"
        );
        health.record_outcomes(lane(1), &unknown(), at(106), at(111));
        assert!(health.is_unanswered(lane(1), LONG, at(111)));
        assert!(
            !health.is_unanswered(lane(2), LONG, at(111)),
            "it may be those bytes"
        );
        assert!(!health.is_unanswered(lane(1), LONG, at(141)), "tried again");
        let not_sent = vec![SendOutcome::NotSent(at(112))];
        health.record_outcomes(lane(1), &not_sent, at(112), at(112));
        assert!(
            health.is_unanswered(lane(1), LONG, at(113)),
            "that proves nothing"
        );
        let busy = vec![SendOutcome::Busy("syncing".into())];
        health.record_outcomes(lane(1), &busy, at(113), at(113));
        assert!(
            health.is_unanswered(lane(1), LONG, at(113)),
            "nor does this"
        );
        let refused = vec![SendOutcome::Refused("the fee exceeds its cap".into())];
        health.record_outcomes(lane(1), &refused, at(114), at(114));
        assert!(!health.is_unanswered(lane(1), LONG, at(114)));
    }

    #[test]
    fn envelopes_that_wait_behind_one_that_hangs_are_no_answer() {
        let health = SendHealth::default();
        let mut outcomes = unknown();
        outcomes.push(SendOutcome::Busy("not sent".into()));
        health.record_outcomes(lane(1), &outcomes, at(100), at(105));
        health.record_outcomes(lane(1), &outcomes, at(106), at(111));
        assert!(health.is_unanswered(lane(1), LONG, at(111)));
        outcomes[1] = SendOutcome::Accepted;
        health.record_outcomes(lane(1), &outcomes, at(112), at(113));
        assert!(!health.is_unanswered(lane(1), LONG, at(113)));
    }

    #[test]
    fn two_unanswered_lanes_speak_for_all_of_their_chain() {
        let health = SendHealth::default();
        for number in [1, 2] {
            assert!(!health.is_unanswered(lane(3), LONG, at(112)));
            health.record_outcomes(lane(number), &unknown(), at(100), at(112));
        }
        assert!(health.is_unanswered(lane(3), LONG, at(112)));
    }

    #[test]
    fn released_lane_stays_away_and_is_released_later_the_next_time() {
        let health = SendHealth::default();
        health.record_outcomes(lane(1), &unknown(), at(100), at(111));
        assert!(health.is_unanswered(lane(1), LONG, at(111)));
        health.record_release(lane(1), at(112));
        assert!(health.was_released(lane(1), at(141)) && !health.was_released(lane(1), at(142)));
        health.record_outcomes(lane(1), &unknown(), at(150), at(161));
        assert!(
            !health.is_unanswered(lane(1), LONG, at(161)),
            "twice as long"
        );
        health.record_outcomes(lane(1), &unknown(), at(165), at(170));
        assert!(health.is_unanswered(lane(1), LONG, at(170)));
    }
}
