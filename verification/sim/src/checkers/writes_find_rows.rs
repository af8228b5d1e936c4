//! Every write finds its row: every row that a batch updates, signs for or removes from the queue exists. A
//! write without its row would be reported as done.

use std::collections::BTreeSet;

use domain::TxId;

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct WritesFindRows {
    txs: StoreModel<BTreeSet<TxId>>,
}

impl Checker for WritesFindRows {
    fn name(&self) -> &'static str {
        "every write finds its row"
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
                "a batch of {lane} changes tx {id}, which does not exist"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, attempt, lane, tx};
    use super::*;

    #[test]
    fn only_existing_rows_may_change() {
        let mut checker = WritesFindRows::default();
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
    fn lost_rows_do_not_exist() {
        let mut checker = WritesFindRows::default();
        let inserts = applied(lane(1), |w| w.inserts = vec![tx(1, None)]);
        let changes = applied(lane(1), |w| w.updates = vec![tx(1, None)]);
        let failed_over = WorldEvent::FailedOver {
            history: domain::History {
                store: 1,
                timeline: 2,
                restores: 0,
                suspicions: 0,
            },
            lost: Vec::new(),
            damaged: Vec::new(),
        };
        for event in [WorldEvent::StandbyStopped, inserts, failed_over] {
            assert_eq!(checker.after(&event), Ok(()));
        }
        assert!(checker.after(&changes).is_err());
    }
}
