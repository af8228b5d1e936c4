//! One effect per request: the same key names one tx for ever, and the chain never shows its
//! payload twice. Effects are told apart by what the chain executes, not by what the store says:
//! every request of a simulated workload carries its key as call data.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{B256, Bytes, ChainId, LaneKey, RequestId, TxId};

use super::{Checker, applied};
use crate::chain::ChainTx;
use crate::event::{Answer, WorldEvent};

/// See the module.
#[derive(Default)]
pub struct OneEffect {
    named: BTreeMap<(LaneKey, RequestId), TxId>,
    /// What each block of the present chain does.
    blocks: BTreeMap<B256, Vec<Effect>>,
    seen: BTreeMap<Effect, u64>,
}

/// Who executed which call data on which chain.
type Effect = (LaneKey, Bytes);

impl OneEffect {
    fn name_tx(&mut self, lane: LaneKey, request: &RequestId, tx: TxId) -> Result<(), String> {
        let known = *self.named.entry((lane, request.clone())).or_insert(tx);
        if known == tx {
            Ok(())
        } else {
            Err(format!("{request} is both {known} and {tx}"))
        }
    }

    fn mined(&mut self, chain: ChainId, block: B256, txs: &[Arc<ChainTx>]) -> Result<(), String> {
        let effects: Vec<Effect> = txs
            .iter()
            .filter(|tx| !tx.envelope.data.is_empty())
            .map(|tx| {
                let lane = LaneKey {
                    chain_id: chain,
                    signer: tx.envelope.signer,
                };
                (lane, tx.envelope.data.clone())
            })
            .collect();
        let mut twice = None;
        for effect in &effects {
            let count = self.seen.entry(effect.clone()).or_default();
            *count += 1;
            if *count > 1 {
                twice = Some(format!("{:?} is on chain {count} times", text(&effect.1)));
            }
        }
        self.blocks.insert(block, effects);
        twice.map_or(Ok(()), Err)
    }

    fn taken_back(&mut self, block: B256) {
        for effect in self.blocks.remove(&block).unwrap_or_default() {
            if let Some(count) = self.seen.get_mut(&effect) {
                *count -= 1;
            }
        }
    }
}

impl Checker for OneEffect {
    fn name(&self) -> &'static str {
        "one effect per request"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let Some((lane, batch)) = applied(event) {
            for tx in &batch.writes.inserts {
                self.name_tx(lane, &tx.request_id, tx.id)?;
            }
        }
        if let WorldEvent::Queued {
            lane,
            request_id,
            tx_id,
        } = event
        {
            self.name_tx(*lane, request_id, *tx_id)?;
        }
        if let WorldEvent::Answered {
            lane,
            request_id,
            answer,
            ..
        } = event
            && let Answer::Accepted { tx_id, .. } = answer
        {
            self.name_tx(*lane, request_id, *tx_id)?;
        }
        if let WorldEvent::Forked { dropped, .. } = event {
            dropped
                .iter()
                .for_each(|header| self.taken_back(header.hash));
        }
        if let WorldEvent::Mined {
            chain_id,
            header,
            txs,
        } = event
        {
            self.mined(*chain_id, header.hash, txs)?;
        }
        Ok(())
    }
}

fn text(data: &Bytes) -> String {
    String::from_utf8_lossy(data).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{applied, block, chain_tx, forked, lane, tx};
    use super::*;

    #[test]
    fn a_payload_is_mined_once_on_one_branch_and_again_on_another() {
        let mut checker = OneEffect::default();
        let one = chain_tx(lane(1), 0, b"pay-1");
        assert_eq!(checker.after(&block(1, vec![one.clone()])), Ok(()));
        assert_eq!(checker.after(&forked(1)), Ok(()));
        assert_eq!(checker.after(&block(2, vec![one])), Ok(()));
        let again = chain_tx(lane(1), 1, b"pay-1");
        assert!(checker.after(&block(3, vec![again])).is_err());
        let fillers = vec![chain_tx(lane(1), 2, b""), chain_tx(lane(1), 3, b"")];
        assert_eq!(checker.after(&block(4, fillers)), Ok(()));
    }

    #[test]
    fn a_key_names_one_tx() {
        let mut checker = OneEffect::default();
        let first = tx(1, None);
        let mut second = tx(2, None);
        second.request_id = first.request_id.clone();
        assert_eq!(
            checker.after(&applied(lane(1), |w| w.inserts = vec![first])),
            Ok(())
        );
        assert!(
            checker
                .after(&applied(lane(1), |w| w.inserts = vec![second]))
                .is_err()
        );
    }
}
