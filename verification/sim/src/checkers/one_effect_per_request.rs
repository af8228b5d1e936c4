//! One effect per request: the same key always names one tx, and the chain never shows its payload twice.
//! Effects are identified by what the chain executes, not by what the store records: every simulated request
//! has its key as call data.
//!
//! A store that loses commits in a failover loses keys as well. Then a repeat, or a delayed copy, cannot be
//! distinguished from a new request: that is the documented cost of asynchronous replication. But what the store
//! still has is executed once, also when the store has forgotten that it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{B256, Bytes, ChainId, LaneKey, RequestId, TxId};

use super::{Checker, applied};
use crate::chain::ChainTx;
use crate::event::{Answer, WorldEvent};

#[derive(Default)]
pub struct OneEffectPerRequest {
    named: BTreeMap<(LaneKey, RequestId), TxId>,
    /// Txs that a failover lost: late answers may still name them.
    lost: BTreeSet<TxId>,
    /// Keys that a failover lost.
    forgotten: BTreeSet<(LaneKey, RequestId)>,
    /// The effects of each canonical block.
    blocks: BTreeMap<B256, Vec<Effect>>,
    seen: BTreeMap<Effect, u64>,
}

/// Call data may begin with a marker of this length (that it reverts, or is never signed); the rest is
/// the key.
const MARK: usize = 4;

/// The lane and the executed call data.
type Effect = (LaneKey, Bytes);

impl OneEffectPerRequest {
    fn name_tx(&mut self, lane: LaneKey, request: &RequestId, tx: TxId) -> Result<(), String> {
        if self.lost.contains(&tx) {
            return Ok(());
        }
        let known = *self.named.entry((lane, request.clone())).or_insert(tx);
        if known == tx {
            Ok(())
        } else {
            Err(format!("{request} is both {known} and {tx}"))
        }
    }

    fn failed_over(&mut self, lost: &[TxId]) {
        self.lost.extend(lost);
        let (gone, kept) = std::mem::take(&mut self.named)
            .into_iter()
            .partition(|(_, tx)| self.lost.contains(tx));
        self.named = kept;
        let gone: BTreeMap<_, TxId> = gone;
        self.forgotten.extend(gone.into_keys());
    }

    /// Whether a failover lost its key.
    fn is_excused(&self, (lane, data): &Effect) -> bool {
        let is_same_lease = |id: &RequestId| {
            let id = id.as_str().as_bytes();
            data.as_ref() == id || data.get(MARK..) == Some(id)
        };
        let mut keys = self.forgotten.iter();
        keys.any(|(of, id)| of == lane && is_same_lease(id))
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
            let count = *count;
            if count > 1 && !self.is_excused(effect) {
                twice = Some(format!("{:?} is on chain {count} times", text(&effect.1)));
            }
        }
        self.blocks.insert(block, effects);
        twice.map_or(Ok(()), Err)
    }

    fn reorged_out(&mut self, block: B256) {
        for effect in self.blocks.remove(&block).unwrap_or_default() {
            if let Some(count) = self.seen.get_mut(&effect) {
                *count -= 1;
            }
        }
    }
}

impl Checker for OneEffectPerRequest {
    fn name(&self) -> &'static str {
        "one effect per request"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        if let WorldEvent::FailedOver { lost, .. } = event {
            self.failed_over(lost);
        }
        if let Some((lane, batch)) = applied(event) {
            for tx in &batch.writes.inserts {
                self.name_tx(lane, &tx.request.request_id, tx.id)?;
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
        if let WorldEvent::RequestAnswered {
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
                .for_each(|header| self.reorged_out(header.hash));
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
    use super::super::test_events::{
        accepted, applied, block, chain_tx, failed_over, forked, lane, tx,
    };
    use super::*;

    #[test]
    fn only_lost_requests_may_have_a_second_effect() {
        let run = |lost: &[u128]| {
            let mut checker = OneEffectPerRequest::default();
            let first = applied(lane(1), |w| w.inserts = vec![tx(1, None)]);
            assert_eq!(checker.after(&first), Ok(()));
            let once = chain_tx(lane(1), 0, b"request-1");
            assert_eq!(checker.after(&block(1, vec![once])), Ok(()));
            assert_eq!(checker.after(&failed_over(lost)), Ok(()));
            let late = accepted(lane(1), 1);
            assert_eq!(checker.after(&late), Ok(()), "a late answer names nothing");
            let again = chain_tx(lane(1), 1, b"request-1");
            checker.after(&block(2, vec![again]))
        };
        assert_eq!(run(&[1]), Ok(()));
        assert!(run(&[]).is_err());
        assert!(run(&[2]).is_err());
    }

    #[test]
    fn payload_may_be_mined_once_per_branch() {
        let mut checker = OneEffectPerRequest::default();
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
    fn key_names_one_tx() {
        let mut checker = OneEffectPerRequest::default();
        let first = tx(1, None);
        let mut second = tx(2, None);
        second.request.request_id = first.request.request_id.clone();
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
