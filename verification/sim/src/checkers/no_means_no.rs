//! No means no: whoever is refused with a word that says that nothing was stored finds nothing stored, as
//! long as nobody asks again.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LaneKey, RequestId};
use engine::node::Refusal;

use super::{Checker, applied};
use crate::event::{Answer, WorldEvent};

/// The key of a request.
type Key = (LaneKey, RequestId);

/// See the module.
#[derive(Default)]
pub struct NoMeansNo {
    /// How many questions have no clear answer yet; those that never get one stay.
    open: BTreeMap<Key, u64>,
    /// Those whose every question was refused.
    refused: BTreeSet<Key>,
    /// Those that somebody was promised: a later no is about another payload.
    promised: BTreeSet<Key>,
}

impl NoMeansNo {
    fn answered(&mut self, key: Key, answer: &Answer) {
        if !is_clear(answer) {
            return;
        }
        let open = self.open.entry(key.clone()).or_default();
        *open = open.saturating_sub(1);
        if matches!(answer, Answer::Accepted { .. }) {
            self.promised.insert(key);
        } else if *open == 0 && !self.promised.contains(&key) {
            self.refused.insert(key);
        }
    }

    fn stored(&self, lane: LaneKey, request_id: &RequestId) -> Result<(), String> {
        if self.refused.contains(&(lane, request_id.clone())) {
            return Err(format!(
                "{request_id} of {lane} is stored, after everybody was told that it is not"
            ));
        }
        Ok(())
    }
}

impl Checker for NoMeansNo {
    fn name(&self) -> &'static str {
        "no means no"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Asked {
            lane, request_id, ..
        } = event
        {
            let key = (*lane, request_id.clone());
            self.refused.remove(&key);
            *self.open.entry(key).or_default() += 1;
        }
        if let WorldEvent::Answered {
            lane,
            request_id,
            answer,
            ..
        } = event
        {
            self.answered((*lane, request_id.clone()), answer);
        }
        if let WorldEvent::Queued {
            lane, request_id, ..
        } = event
        {
            self.stored(*lane, request_id)?;
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let mut inserts = batch.writes.inserts.iter();
        inserts.try_for_each(|tx| self.stored(lane, &tx.request_id))
    }
}

/// Whether an answer says for certain what became of the request.
fn is_clear(answer: &Answer) -> bool {
    match answer {
        Answer::Accepted { .. } => true,
        Answer::Refused(refusal) => *refusal != Refusal::OutcomeUnknown,
        Answer::Silence => false,
    }
}

#[cfg(test)]
mod tests {
    use domain::NodeName;

    use super::super::testing::{applied, lane, tx};
    use super::*;

    fn run(answers: &[Answer]) -> Result<(), String> {
        let mut checker = NoMeansNo::default();
        let (request_id, node) = (tx(1, None).request_id, NodeName("a".to_owned()));
        for _ in answers {
            checker.after(&WorldEvent::Asked {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
            })?;
        }
        for answer in answers {
            checker.after(&WorldEvent::Answered {
                lane: lane(1),
                request_id: request_id.clone(),
                node: node.clone(),
                answer: answer.clone(),
            })?;
        }
        checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]))
    }

    #[test]
    fn what_was_clearly_refused_is_not_stored() {
        let no = Answer::Refused(Refusal::Busy);
        let unknown = Answer::Refused(Refusal::OutcomeUnknown);
        assert!(run(std::slice::from_ref(&no)).is_err());
        assert!(run(&[no.clone(), no.clone()]).is_err());
        assert_eq!(run(&[]), Ok(()));
        assert_eq!(run(std::slice::from_ref(&unknown)), Ok(()));
        assert_eq!(run(&[unknown, no.clone()]), Ok(()));
        assert_eq!(run(&[Answer::Silence, no.clone()]), Ok(()));
        let promised = Answer::Accepted {
            tx_id: tx(1, None).id,
            is_new: true,
        };
        assert_eq!(run(&[promised, no]), Ok(()), "another payload was refused");
    }
}
