//! Every write meets its row: what a batch changes, signs for or takes out of the queue is there. A write
//! that meets nothing would be told as done.

use std::collections::BTreeSet;

use domain::TxId;

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct WritesMeetRows {
    txs: Books<BTreeSet<TxId>>,
}

impl Checker for WritesMeetRows {
    fn name(&self) -> &'static str {
        "every write meets its row"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.txs.follow(event);
        if let WorldEvent::Queued { tx_id, .. } = event {
            self.txs.insert(*tx_id);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let writes = &batch.writes;
        self.txs.extend(writes.inserts.iter().map(|tx| tx.id));
        let changed = writes.updates.iter().map(|tx| tx.id);
        let signed = writes.attempts.iter().map(|attempt| attempt.tx_id);
        let woken = writes.queued_removed.iter().copied();
        let mut named = changed.chain(signed).chain(woken);
        match named.find(|id| !self.txs.contains(id)) {
            Some(id) => Err(format!(
                "a batch of {lane} changes tx {id}, which is not there"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, attempt, lane, tx};
    use super::*;

    #[test]
    fn only_what_is_there_can_change() {
        let mut checker = WritesMeetRows::default();
        let inserts = applied(lane(1), |writes| {
            writes.inserts = vec![tx(1, Some(5))];
            writes.attempts = vec![attempt(1, 5)];
        });
        assert_eq!(checker.after(&inserts), Ok(()));
        let changes = |number| applied(lane(1), |w| w.updates = vec![tx(number, None)]);
        assert_eq!(checker.after(&changes(1)), Ok(()));
        assert!(checker.after(&changes(2)).is_err());
        let signs = applied(lane(1), |w| w.attempts = vec![attempt(2, 6)]);
        assert!(checker.after(&signs).is_err());
    }

    #[test]
    fn what_a_failover_took_is_not_there() {
        let mut checker = WritesMeetRows::default();
        let inserts = applied(lane(1), |w| w.inserts = vec![tx(1, None)]);
        let changes = applied(lane(1), |w| w.updates = vec![tx(1, None)]);
        let failed_over = WorldEvent::FailedOver {
            history: 2,
            lost: Vec::new(),
            hurt: Vec::new(),
        };
        for event in [WorldEvent::StandbyStopped, inserts, failed_over] {
            assert_eq!(checker.after(&event), Ok(()));
        }
        assert!(checker.after(&changes).is_err());
    }
}
