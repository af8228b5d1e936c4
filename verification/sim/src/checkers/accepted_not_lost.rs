//! Nothing accepted is lost: an accepted tx is in the store. (That it stays there and ends is liveness, which
//! the final checks cover.)

use std::collections::BTreeSet;

use domain::TxId;

use super::{Checker, applied};
use crate::event::{Answer, WorldEvent};

#[derive(Default)]
pub struct AcceptedNotLost {
    durable: BTreeSet<TxId>,
}

impl Checker for AcceptedNotLost {
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
        if let WorldEvent::RequestAnswered {
            request_id,
            node,
            answer,
            ..
        } = event
            && let Answer::Accepted { tx_id, .. } = answer
            && !self.durable.contains(tx_id)
        {
            return Err(format!(
                "{node} accepted {request_id} as {tx_id}, which is not in the store"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{accepted, applied, lane, tx};
    use super::*;

    #[test]
    fn accepted_tx_must_be_stored_before() {
        let mut checker = AcceptedNotLost::default();
        assert!(checker.after(&accepted(lane(1), 1)).is_err());
        assert_eq!(
            checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, None)])),
            Ok(())
        );
        assert_eq!(checker.after(&accepted(lane(1), 1)), Ok(()));
    }
}
