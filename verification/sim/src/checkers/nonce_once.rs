//! One payload per nonce: no two txs hold the same nonce of a lane at the same time, and nothing
//! else than the holder's payload (or a self-transfer) goes out at it.

use std::collections::BTreeMap;

use domain::{LaneKey, Nonce, Tx, TxId};

use super::books::Books;
use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct NonceOnce {
    books: Books<Holdings>,
}

#[derive(Clone, Default)]
struct Holdings {
    holders: BTreeMap<(LaneKey, Nonce), TxId>,
    held: BTreeMap<TxId, (LaneKey, Nonce)>,
}

impl Checker for NonceOnce {
    fn name(&self) -> &'static str {
        "one payload per nonce"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.books.follow(event);
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        let Holdings { holders, held } = &mut *self.books;
        // First everything is let go, then taken: a batch may move a nonce from one tx to another.
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
    use super::super::testing::{applied, attempt, lane, tx};
    use super::*;

    #[test]
    fn a_nonce_may_move_but_not_be_shared() {
        let mut checker = NonceOnce::default();
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
    fn an_attempt_needs_the_nonce_of_its_tx() {
        let mut checker = NonceOnce::default();
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
