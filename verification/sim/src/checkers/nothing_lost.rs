//! Nothing accepted is lost: whoever is told "accepted" is told of a tx that the store has. (That it
//! stays there and also ends is liveness, and the world's own check.)

use std::collections::BTreeSet;

use domain::TxId;

use super::{Checker, applied};
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
        if let Some((_, batch)) = applied(event) {
            self.durable
                .extend(batch.writes.inserts.iter().map(|tx| tx.id));
        }
        if let WorldEvent::Queued { tx_id, .. } = event {
            self.durable.insert(*tx_id);
        }
        if let WorldEvent::Answered {
            request_id,
            node,
            answer,
            ..
        } = event
            && let Answer::Accepted { tx_id, .. } = answer
            && !self.durable.contains(tx_id)
        {
            return Err(format!(
                "{node} accepted {request_id} as {tx_id}, which no store has"
            ));
        }
        Ok(())
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
        assert_eq!(
            checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, None)])),
            Ok(())
        );
        assert_eq!(checker.after(&accepted(lane(1), 1)), Ok(()));
    }
}
