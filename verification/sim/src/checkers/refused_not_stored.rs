//! A refused request is not stored: a refusal that promises that nothing was stored is true when it is given and stays
//! true, unless the request is sent again.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneKey, RequestId};
use engine::node::Refusal;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::{Answer, WorldEvent};

/// The key of a request.
type Key = (LaneKey, RequestId);

#[derive(Default)]
pub struct RefusedNotStored {
    /// How many requests have no clear answer yet; those that never get one stay.
    open: BTreeMap<Key, u64>,
    /// Keys whose requests were all refused.
    refused: BTreeSet<Key>,
    /// Keys that were accepted: a later refusal is about another payload.
    promised: BTreeSet<Key>,
    /// Keys that are stored.
    stored: StoreModel<BTreeSet<Key>>,
}

impl RefusedNotStored {
    fn answered(&mut self, key: Key, answer: &Answer) -> Result<(), String> {
        if !is_clear(answer) {
            return Ok(());
        }
        let open = self.open.entry(key.clone()).or_default();
        *open = open.saturating_sub(1);
        if matches!(answer, Answer::Accepted { .. }) {
            self.promised.insert(key);
        } else if *open == 0 && !self.promised.contains(&key) {
            let is_about_another = matches!(answer, Answer::Refused(Refusal::KeyReused(_)));
            if self.stored.contains(&key) && !is_about_another {
                let (lane, request_id) = key;
                return Err(format!(
                    "{request_id} of {lane} is stored, and every answer denies it: {answer:?}"
                ));
            }
            self.refused.insert(key);
        }
        Ok(())
    }

    fn store(&mut self, lane: LaneKey, request_id: &RequestId) -> Result<(), String> {
        let key = (lane, request_id.clone());
        let is_refused = self.refused.contains(&key);
        self.stored.insert(key);
        if is_refused {
            return Err(format!(
                "{request_id} of {lane} is stored, although every answer denied it"
            ));
        }
        Ok(())
    }
}

impl Checker for RefusedNotStored {
    fn name(&self) -> &'static str {
        "a refused request is not stored"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.stored.follow(event);
        if let WorldEvent::RequestSent {
            lane, request_id, ..
        } = event
        {
            let key = (*lane, request_id.clone());
            self.refused.remove(&key);
            *self.open.entry(key).or_default() += 1;
        }
        if let WorldEvent::RequestAnswered {
            lane,
            request_id,
            answer,
            ..
        } = event
        {
            self.answered((*lane, request_id.clone()), answer)?;
        }
        if let WorldEvent::Queued {
            lane, request_id, ..
        } = event
        {
            self.store(*lane, request_id)?;
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let mut inserts = batch.writes.inserts.iter();
        inserts.try_for_each(|tx| self.store(lane, &tx.request.request_id))
    }
}

/// Whether an answer states for certain what happened to the request.
fn is_clear(answer: &Answer) -> bool {
    match answer {
        Answer::Accepted { .. } => true,
        Answer::Refused(refusal) => *refusal != Refusal::OutcomeUnknown,
        Answer::NoAnswer => false,
    }
}

#[cfg(test)]
mod tests {
    use domain::NodeName;

    use super::super::test_events::{applied, lane, tx};
    use super::*;

    fn run(answers: &[Answer]) -> Result<(), String> {
        let mut checker = RefusedNotStored::default();
        let (request_id, node) = (tx(1, None).request.request_id, NodeName("a".to_owned()));
        for _ in answers {
            checker.after(&WorldEvent::RequestSent {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
            })?;
        }
        for answer in answers {
            checker.after(&WorldEvent::RequestAnswered {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
                answer: answer.clone(),
            })?;
        }
        checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]))
    }

    #[test]
    fn clearly_refused_request_is_not_stored() {
        let no = Answer::Refused(Refusal::Busy);
        let unknown = Answer::Refused(Refusal::OutcomeUnknown);
        assert!(run(std::slice::from_ref(&no)).is_err());
        assert!(run(&[no.clone(), no.clone()]).is_err());
        assert_eq!(run(&[]), Ok(()));
        assert_eq!(run(std::slice::from_ref(&unknown)), Ok(()));
        assert_eq!(run(&[unknown, no.clone()]), Ok(()));
        assert_eq!(run(&[Answer::NoAnswer, no.clone()]), Ok(()));
        let promised = Answer::Accepted {
            tx_id: tx(1, None).id,
            is_new: true,
        };
        assert_eq!(run(&[promised, no]), Ok(()), "another payload was refused");
    }

    #[test]
    fn stored_request_is_not_denied() {
        let denied = |answer: &Answer| {
            let mut checker = RefusedNotStored::default();
            let (request_id, node) = (tx(1, None).request.request_id, NodeName("a".to_owned()));
            checker.after(&WorldEvent::RequestSent {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
            })?;
            checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]))?;
            checker.after(&WorldEvent::RequestAnswered {
                lane: lane(1),
                request_id,
                node,
                answer: answer.clone(),
            })
        };
        assert!(denied(&Answer::Refused(Refusal::Busy)).is_err());
        assert_eq!(denied(&Answer::Refused(Refusal::OutcomeUnknown)), Ok(()));
        assert_eq!(denied(&Answer::NoAnswer), Ok(()));
    }
}
