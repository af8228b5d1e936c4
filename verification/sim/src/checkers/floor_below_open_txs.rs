//! No open tx below the floor: a lane is loaded from its floor on, so no open tx may be below it, and the
//! lane row's own busy flag must find every lane that has one.

use std::collections::BTreeMap;

use domain::{LaneKey, Nonce, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct FloorBelowOpenTxs {
    open: StoreModel<BTreeMap<LaneKey, BTreeMap<TxId, Nonce>>>,
}

impl Checker for FloorBelowOpenTxs {
    fn name(&self) -> &'static str {
        "no open tx below the floor"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.open.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let open = self.open.entry(lane).or_default();
        for tx in batch.writes.inserts.iter().chain(&batch.writes.updates) {
            match tx.nonce.filter(|_| tx.is_open()) {
                Some(nonce) => open.insert(tx.id, nonce),
                None => open.remove(&tx.id),
            };
        }
        let (floor, next) = (batch.floor_nonce, batch.next_nonce);
        if floor > next {
            return Err(format!("{lane}: floor {floor} lies above cursor {next}"));
        }
        match open.iter().find(|(_, nonce)| **nonce < floor) {
            Some((tx, nonce)) => Err(format!(
                "{lane}: tx {tx} is open at nonce {nonce}, the floor is {floor}"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::TxState;

    use super::super::test_events::{applied_above, failed_over, tx};
    use super::*;

    #[test]
    fn floor_may_not_exceed_open_nonces() {
        let mut checker = FloorBelowOpenTxs::default();
        let two = applied_above(4, 6, |w| w.inserts = vec![tx(1, Some(4)), tx(2, Some(5))]);
        assert_eq!(checker.after(&two), Ok(()));
        assert!(checker.after(&applied_above(5, 6, |_| {})).is_err());
        assert!(checker.after(&applied_above(7, 6, |_| {})).is_err());
        let mut done = tx(1, Some(4));
        done.state = TxState::Confirmed;
        let done = applied_above(5, 6, |w| w.updates = vec![done]);
        assert_eq!(checker.after(&done), Ok(()));
        let queued = applied_above(5, 6, |w| w.inserts = vec![tx(3, None)]);
        assert_eq!(checker.after(&queued), Ok(()));
    }

    #[test]
    fn lost_txs_are_not_open() {
        let mut checker = FloorBelowOpenTxs::default();
        assert_eq!(checker.after(&WorldEvent::StandbyStopped), Ok(()));
        let lost = applied_above(0, 1, |w| w.inserts = vec![tx(1, Some(0))]);
        assert_eq!(checker.after(&lost), Ok(()));
        assert_eq!(checker.after(&failed_over(&[1])), Ok(()));
        let next = applied_above(1, 2, |w| w.inserts = vec![tx(2, Some(1))]);
        assert_eq!(checker.after(&next), Ok(()));
    }
}
