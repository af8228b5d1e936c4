//! A tx gets another nonce only when it is known whose transaction consumed its own: one that stands on the
//! chain, and is named. What nobody can show may be ours, and then the effect would come twice.

use std::collections::BTreeMap;

use domain::{B256, EventKind, LaneKey, Nonce};

use super::{Checker, applied};
use crate::event::WorldEvent;

/// See the module.
#[derive(Default)]
pub struct RequeueNamesWho {
    /// Who consumed which nonce on the present chain, and in which block.
    consumed: BTreeMap<(LaneKey, Nonce), (B256, B256)>,
}

impl RequeueNamesWho {
    fn requeued(&self, lane: LaneKey, nonce: Nonce, named: Option<B256>) -> Result<(), String> {
        let by = self.consumed.get(&(lane, nonce)).map(|(hash, _)| *hash);
        if named.is_some() && named == by {
            return Ok(());
        }
        Err(format!(
            "nonce {nonce} of {lane} was given up because of {named:?}; the chain shows {by:?}"
        ))
    }
}

impl Checker for RequeueNamesWho {
    fn name(&self) -> &'static str {
        "who took a nonce is named"
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
    use super::super::testing::{applied, block, chain_tx, forked, lane, story};
    use super::*;

    #[test]
    fn only_what_the_chain_shows_takes_a_nonce() {
        let other = chain_tx(lane(1), 4, b"theirs");
        let requeued = |foreign: Option<B256>| {
            let nonce = Nonce(4);
            let kind = EventKind::TxRequeued { nonce, foreign };
            applied(lane(1), |w| w.events = vec![story(1, 1, kind)])
        };
        let mut checker = RequeueNamesWho::default();
        assert!(checker.after(&requeued(Some(other.hash))).is_err());
        assert_eq!(checker.after(&block(7, vec![other.clone()])), Ok(()));
        assert_eq!(checker.after(&requeued(Some(other.hash))), Ok(()));
        assert!(checker.after(&requeued(None)).is_err());
        assert_eq!(checker.after(&forked(7)), Ok(()));
        assert!(checker.after(&requeued(Some(other.hash))).is_err());
    }
}
