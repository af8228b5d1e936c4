//! One payload per nonce: no two txs hold the same nonce of a lane at the same time, and only the holder's
//! payload (or a self-transfer) is signed at it.

use std::collections::BTreeMap;

use domain::{LaneKey, Nonce, Tx, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct OnePayloadPerNonce {
    store_model: StoreModel<NonceHoldings>,
}

#[derive(Clone, Default)]
struct NonceHoldings {
    holders: BTreeMap<(LaneKey, Nonce), TxId>,
    held: BTreeMap<TxId, (LaneKey, Nonce)>,
}

impl Checker for OnePayloadPerNonce {
    fn name(&self) -> &'static str {
        "one payload per nonce"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.store_model.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let NonceHoldings { holders, held } = &mut *self.store_model;
        // Releases come first: a batch may move a nonce from one tx to another.
        let rows: Vec<&Tx> = batch
            .writes
            .inserts
            .iter()
            .chain(&batch.writes.updates)
            .collect();
        for tx in &rows {
            if let Some(place) = held.remove(&tx.id) {
                holders.remove(&place);
            }
        }
        for tx in &rows {
            let Some(nonce) = tx.nonce else { continue };
            if let Some(other) = holders.insert((lane, nonce), tx.id) {
                return Err(format!(
                    "nonce {nonce} of {lane} is held by {other} and {}",
                    tx.id
                ));
            }
            held.insert(tx.id, (lane, nonce));
        }
        for attempt in &batch.writes.attempts {
            let holder = holders.get(&(lane, attempt.nonce));
            if holder != Some(&attempt.tx_id) {
                return Err(format!(
                    "attempt {} of {} is signed at nonce {}, which {holder:?} holds",
                    attempt.hash, attempt.tx_id, attempt.nonce
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, attempt, lane, tx};
    use super::*;

    #[test]
    fn nonce_may_move_but_not_be_shared() {
        let mut checker = OnePayloadPerNonce::default();
        assert_eq!(
            checker.after(&applied(lane(1), |w| w.inserts = vec![tx(1, Some(5))])),
            Ok(())
        );
        let moves = applied(lane(1), |writes| {
            writes.updates = vec![tx(1, None)];
            writes.inserts = vec![tx(2, Some(5))];
        });
        assert_eq!(checker.after(&moves), Ok(()));
        assert_eq!(
            checker.after(&applied(lane(2), |w| w.inserts = vec![tx(3, Some(5))])),
            Ok(())
        );
        assert!(
            checker
                .after(&applied(lane(1), |w| w.updates = vec![tx(1, Some(5))]))
                .is_err()
        );
    }

    #[test]
    fn attempt_must_use_the_nonce_of_its_tx() {
        let mut checker = OnePayloadPerNonce::default();
        let signed = applied(lane(1), |writes| {
            writes.inserts = vec![tx(1, Some(5))];
            writes.attempts = vec![attempt(1, 5)];
        });
        assert_eq!(checker.after(&signed), Ok(()));
        assert!(
            checker
                .after(&applied(lane(1), |w| w.attempts = vec![attempt(2, 5)]))
                .is_err()
        );
        assert!(
            checker
                .after(&applied(lane(1), |w| w.attempts = vec![attempt(1, 6)]))
                .is_err()
        );
    }
}
