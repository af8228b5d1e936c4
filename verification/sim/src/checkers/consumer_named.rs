//! A tx gets another nonce only when the transaction that consumed its own is known: it is on the canonical
//! chain, and is named. An unknown consumer may be the tx's own attempt, and the effect would happen twice.

use std::collections::BTreeMap;

use domain::{B256, EventKind, LaneKey, Nonce};

use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct ConsumerNamed {
    /// The consumer of each nonce on the canonical chain, and its block.
    consumed: BTreeMap<(LaneKey, Nonce), (B256, B256)>,
}

impl ConsumerNamed {
    fn requeued(&self, lane: LaneKey, nonce: Nonce, named: Option<B256>) -> Result<(), String> {
        let by = self.consumed.get(&(lane, nonce)).map(|(hash, _)| *hash);
        if named.is_some() && named == by {
            return Ok(());
        }
        Err(format!(
            "nonce {nonce} of {lane} was released because of {named:?}; the chain shows {by:?}"
        ))
    }
}

impl Checker for ConsumerNamed {
    fn name(&self) -> &'static str {
        "the consumer of a nonce is named"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::Mined {
            chain_id,
            header,
            txs,
        } = event
        {
            for tx in txs {
                let lane = LaneKey {
                    chain_id: *chain_id,
                    signer: tx.envelope.signer,
                };
                let by = (tx.hash, header.hash);
                self.consumed.insert((lane, tx.envelope.nonce), by);
            }
        }
        if let WorldEvent::Forked { dropped, .. } = event {
            let stays = |block: B256| dropped.iter().all(|header| header.hash != block);
            self.consumed.retain(|_, (_, block)| stays(*block));
        }
        let Some((lane, batch)) = applied(event) else {
            return Ok(());
        };
        for event in &batch.writes.events {
            if let EventKind::TxRequeued { nonce, foreign } = event.kind {
                self.requeued(lane, nonce, foreign)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, block, chain_tx, forked, lane, lane_event};
    use super::*;

    #[test]
    fn requeue_must_name_the_canonical_consumer() {
        let other = chain_tx(lane(1), 4, b"theirs");
        let requeued = |foreign: Option<B256>| {
            let nonce = Nonce(4);
            let kind = EventKind::TxRequeued { nonce, foreign };
            applied(lane(1), |w| w.events = vec![lane_event(1, 1, kind)])
        };
        let mut checker = ConsumerNamed::default();
        assert!(checker.after(&requeued(Some(other.hash))).is_err());
        assert_eq!(checker.after(&block(7, vec![other.clone()])), Ok(()));
        assert_eq!(checker.after(&requeued(Some(other.hash))), Ok(()));
        assert!(checker.after(&requeued(None)).is_err());
        assert_eq!(checker.after(&forked(7)), Ok(()));
        assert!(checker.after(&requeued(Some(other.hash))).is_err());
    }
}
