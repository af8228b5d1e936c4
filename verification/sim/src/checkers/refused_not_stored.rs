//! A refused request is not stored: a refusal that promises that nothing was stored is true when it is given and stays
//! true, unless the request is sent again. No request that was stored before it was sent is refused so, but with another
//! payload.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneKey, NodeName, RequestId};
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
    /// The requests that each node has not answered.
    at_nodes: BTreeMap<(Key, NodeName), Unanswered>,
}

/// Requests with one key, at one node.
#[derive(Default)]
struct Unanswered {
    count: u64,
    /// Whether one of them was sent before the key was stored.
    may_be_new: bool,
}

impl RefusedNotStored {
    fn sent(&mut self, key: Key, node: &NodeName) {
        let is_stored = self.stored.contains(&key);
        self.refused.remove(&key);
        *self.open.entry(key.clone()).or_default() += 1;
        let at_node = self.at_nodes.entry((key, node.clone())).or_default();
        at_node.count += 1;
        at_node.may_be_new |= !is_stored;
    }

    /// A request that was stored before it was sent gets its tx, whatever holds now.
    fn check_repeat(&mut self, key: &Key, node: &NodeName, answer: &Answer) -> Result<(), String> {
        let at_node = (key.clone(), node.clone());
        let Some(Unanswered { count, may_be_new }) = self.at_nodes.get_mut(&at_node) else {
            return Ok(());
        };
        let may_be_new = *may_be_new;
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.at_nodes.remove(&at_node);
        }
        let Answer::Refused(refusal) = answer else {
            return Ok(());
        };
        let is_honest = refusal.may_have_effect() || matches!(refusal, Refusal::KeyReused(_));
        if is_honest || may_be_new || !self.stored.contains(key) {
            return Ok(());
        }
        let (lane, request_id) = key;
        Err(format!(
            "{request_id} of {lane} was stored before it was sent, and {node} refuses it as without effect: {refusal}"
        ))
    }

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
            lane,
            request_id,
            node,
        } = event
        {
            self.sent((*lane, request_id.clone()), node);
        }
        if let WorldEvent::RequestAnswered {
            lane,
            request_id,
            node,
            answer,
        } = event
        {
            let key = (*lane, request_id.clone());
            self.check_repeat(&key, node, answer)?;
            self.answered(key, answer)?;
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
    fn request_that_was_stored_before_it_was_sent_is_not_refused() {
        let repeated = |answer: Answer, is_stored_before: bool| {
            let mut checker = RefusedNotStored::default();
            let (request_id, node) = (tx(1, None).request.request_id, NodeName("a".to_owned()));
            let sent = WorldEvent::RequestSent {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
            };
            let answered = |answer: Answer| WorldEvent::RequestAnswered {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
                answer,
            };
            let stored = applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]);
            checker.after(&sent)?;
            if is_stored_before {
                checker.after(&stored)?;
                checker.after(&answered(Answer::NoAnswer))?;
                checker.after(&sent)?;
            } else {
                checker.after(&answered(Answer::NoAnswer))?;
                checker.after(&sent)?;
                checker.after(&stored)?;
            }
            checker.after(&answered(answer))
        };
        let halted = || Answer::Refused(Refusal::Halted("lost".to_owned()));
        assert!(repeated(halted(), true).is_err());
        assert_eq!(repeated(halted(), false), Ok(()), "it came first");
        assert_eq!(repeated(Answer::Refused(Refusal::Busy), true), Ok(()));
        let key = tx(1, None).request.request_id;
        let reused = Answer::Refused(Refusal::KeyReused(key));
        assert_eq!(repeated(reused, true), Ok(()));
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
