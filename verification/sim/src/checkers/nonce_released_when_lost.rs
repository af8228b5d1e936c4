//! A nonce whose attempts may be in flight is released only when another transaction has consumed it, so deep
//! that none of its attempts can be mined any more. Otherwise a tx with a new nonce could have its effect
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::lane::FOREIGN_FINALITY_DEPTH_MIN;
use domain::lane::reservations::RESERVATION_PREFIX;
use domain::{B256, Header, LaneKey, Nonce, Tx, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::chain::ChainTx;
use crate::event::WorldEvent;

#[derive(Default)]
pub struct NonceReleasedWhenLost {
    store_model: StoreModel<SignedTxs>,
    /// The consumer of each nonce on the canonical chain, and its height. One chain per world.
    consumed: BTreeMap<LaneKey, BTreeMap<Nonce, (B256, u64)>>,
    head: u64,
}

/// The signed txs in the store.
#[derive(Clone, Default)]
struct SignedTxs {
    attempts: BTreeMap<(TxId, Nonce), BTreeSet<B256>>,
    held: BTreeMap<TxId, Nonce>,
}

impl NonceReleasedWhenLost {
    fn mined(&mut self, lane: impl Fn(&ChainTx) -> LaneKey, header: Header, txs: &[Arc<ChainTx>]) {
        self.head = header.number;
        for tx in txs {
            let of_lane = self.consumed.entry(lane(tx)).or_default();
            of_lane.insert(tx.envelope.nonce, (tx.hash, header.number));
        }
    }

    fn forked(&mut self, dropped: &[Header]) {
        let Some(lowest) = dropped.iter().map(|header| header.number).min() else {
            return;
        };
        for of_lane in self.consumed.values_mut() {
            of_lane.retain(|_, (_, height)| *height < lowest);
        }
    }

    fn written(&mut self, lane: LaneKey, tx: &Tx) -> Result<(), String> {
        if tx
            .request
            .request_id
            .as_str()
            .starts_with(RESERVATION_PREFIX)
        {
            return Ok(()); // its holder decides: see ReservationHasOneHolder
        }
        let before = match tx.nonce {
            Some(nonce) => self.store_model.held.insert(tx.id, nonce),
            None => self.store_model.held.remove(&tx.id),
        };
        let Some(nonce) = before.filter(|nonce| tx.nonce != Some(*nonce)) else {
            return Ok(());
        };
        let Some(ours) = self.store_model.attempts.get(&(tx.id, nonce)) else {
            return Ok(()); // it was never in flight
        };
        let (id, head) = (tx.id, self.head);
        let by = self.consumed.get(&lane).and_then(|lane| lane.get(&nonce));
        match by {
            Some((hash, _)) if ours.contains(hash) => Err(format!(
                "tx {id} of {lane} releases nonce {nonce}, which its own {hash} consumed"
            )),
            Some((_, height)) if head.saturating_sub(*height) >= FOREIGN_FINALITY_DEPTH_MIN => {
                Ok(())
            }
            Some((_, height)) => Err(format!(
                "tx {id} of {lane} releases nonce {nonce}, consumed at {height}, the head is {head}"
            )),
            None => Err(format!(
                "tx {id} of {lane} releases nonce {nonce}, which is not consumed"
            )),
        }
    }
}

impl Checker for NonceReleasedWhenLost {
    fn name(&self) -> &'static str {
        "a nonce is released only when it is lost"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.store_model.follow(event);
        if let WorldEvent::Mined {
            chain_id,
            header,
            txs,
        } = event
        {
            let lane = |tx: &ChainTx| LaneKey {
                chain_id: *chain_id,
                signer: tx.envelope.signer,
            };
            self.mined(lane, *header, txs);
        }
        if let WorldEvent::Forked { dropped, .. } = event {
            self.forked(dropped);
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for attempt in &batch.writes.attempts {
            let place = (attempt.tx_id, attempt.nonce);
            let attempts = self.store_model.attempts.entry(place).or_default();
            attempts.insert(attempt.hash);
        }
        let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        let written: Vec<_> = rows.map(|tx| self.written(lane, tx)).collect();
        written.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, attempt, block, chain_tx, forked, lane, tx};
    use super::*;

    fn signed() -> NonceReleasedWhenLost {
        let mut checker = NonceReleasedWhenLost::default();
        let first = applied(lane(1), |writes| {
            writes.inserts = vec![tx(1, Some(0))];
            writes.attempts = vec![attempt(1, 0)];
        });
        assert_eq!(checker.after(&first), Ok(()));
        checker
    }

    fn releases() -> WorldEvent {
        applied(lane(1), |writes| writes.updates = vec![tx(1, None)])
    }

    #[test]
    fn release_requires_a_deep_foreign_consumer() {
        let mut checker = signed();
        assert!(checker.after(&releases()).is_err(), "it is not consumed");
        let mut checker = signed();
        let foreign = chain_tx(lane(1), 0, b"foreign");
        assert_eq!(checker.after(&block(1, vec![foreign])), Ok(()));
        for number in 2..=12 {
            assert_eq!(checker.after(&block(number, Vec::new())), Ok(()));
        }
        assert!(
            checker.after(&releases()).is_err(),
            "eleven blocks are not twelve"
        );
        let mut checker = signed();
        let foreign = chain_tx(lane(1), 0, b"foreign");
        assert_eq!(checker.after(&block(1, vec![foreign])), Ok(()));
        for number in 2..=13 {
            assert_eq!(checker.after(&block(number, Vec::new())), Ok(()));
        }
        assert_eq!(checker.after(&releases()), Ok(()));
    }

    #[test]
    fn reorged_or_own_consumer_proves_nothing() {
        for (data, is_reorged_out) in [(b"foreign".as_slice(), true), (b"", false)] {
            let mut checker = signed();
            let consumer = chain_tx(lane(1), 0, data);
            assert_eq!(checker.after(&block(1, vec![consumer])), Ok(()));
            if is_reorged_out {
                assert_eq!(checker.after(&forked(1)), Ok(()));
            }
            assert_eq!(checker.after(&block(13, Vec::new())), Ok(()));
            assert!(checker.after(&releases()).is_err());
        }
    }

    #[test]
    fn unsigned_tx_may_release_its_nonce() {
        let mut checker = NonceReleasedWhenLost::default();
        let allocated = applied(lane(1), |w| w.inserts = vec![tx(1, Some(0))]);
        assert_eq!(checker.after(&allocated), Ok(()));
        assert_eq!(checker.after(&releases()), Ok(()));
    }
}
