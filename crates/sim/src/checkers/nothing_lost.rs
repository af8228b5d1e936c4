//! Nothing accepted is lost: whoever is told "accepted" is told of a tx that the store has, and
//! that tx never vanishes from a later image of its row. (That it also ends is liveness, and the
//! world's own check.)

use std::collections::BTreeSet;

use domain::TxId;
use engine::ports::CommitOutcome;

use super::Checker;
use crate::event::{Answer, WorldEvent};

/// See the module.
#[derive(Default)]
pub struct NothingLost {
    durable: BTreeSet<TxId>,
}

impl Checker for NothingLost {
    fn name(&self) -> &'static str {
        "nothing accepted is lost"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        match event {
            WorldEvent::Committed { batch, outcome: CommitOutcome::Applied, .. } => {
                self.durable.extend(batch.writes.inserts.iter().map(|tx| tx.id));
                Ok(())
            }
            WorldEvent::Queued { tx_id, .. } => {
                self.durable.insert(*tx_id);
                Ok(())
            }
            WorldEvent::Answered {
                request_id, node, answer: Answer::Accepted { tx_id, .. }, ..
            } if !self.durable.contains(tx_id) => {
                Err(format!("{node} accepted {request_id} as {tx_id}, which no store has"))
            }
            WorldEvent::Committed { .. }
            | WorldEvent::Answered { .. }
            | WorldEvent::Phase(_)
            | WorldEvent::Started(_)
            | WorldEvent::Crashed { .. }
            | WorldEvent::Frozen(_)
            | WorldEvent::Thawed(_)
            | WorldEvent::Cut { .. }
            | WorldEvent::Granted { .. }
            | WorldEvent::Released { .. }
            | WorldEvent::Regranted { .. }
            | WorldEvent::Sent { .. }
            | WorldEvent::Mined { .. }
            | WorldEvent::Forked { .. }
            | WorldEvent::Dropped { .. }
            | WorldEvent::Asked { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, applied, lane, tx};
    use super::*;

    #[test]
    fn accepted_means_durable_before() {
        let mut checker = NothingLost::default();
        assert!(checker.after(&accepted(lane(1), 1)).is_err());
        assert_eq!(checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, None)])), Ok(()));
        assert_eq!(checker.after(&accepted(lane(1), 1)), Ok(()));
    }
}
