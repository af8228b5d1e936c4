//! One effect per request: the same key always names one tx, and the chain never shows its payload twice.
//! Effects are identified by what the chain executes, not by what the store records: every simulated request
//! has its key as call data.
//!
//! A store that loses commits in a failover loses keys as well. A repeat, or a delayed copy, is held all the same once what
//! the lost commits sent is mined: no nonce may be allocated to it. Only what waits in a pool at that time, behind a missing
//! nonce, can have a second effect, and what a lane sent whose row is lost as well: that is the documented cost of
//! asynchronous replication. What the store still has is executed once in any case, also when the store has forgotten that
//! it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{B256, Bytes, ChainId, LaneKey, Nonce, RequestId, Tx, TxId};

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
    seen: BTreeMap<Effect, MinedEffect>,
    /// The height of the newest block.
    height: u64,
    allocated: BTreeSet<(TxId, Nonce)>,
    /// Lanes whose row is new since a failover: nothing shows that commits of it were lost.
    forgotten_lanes: BTreeSet<LaneKey>,
    has_failed_over: bool,
    /// Effects that had been mined, where every endpoint shows it, when a tx for them got a nonce.
    repeated: BTreeSet<Effect>,
}

/// How often an effect is on chain.
#[derive(Clone, Copy, Debug, Default)]
struct MinedEffect {
    count: u64,
    /// The height of the first one.
    first: u64,
}

/// A block this deep is known to every endpoint, also to one that lags and whose answers are late.
const KNOWN_DEPTH: u64 = 40;

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
        self.has_failed_over = true;
        self.lost.extend(lost);
        let (gone, kept) = std::mem::take(&mut self.named)
            .into_iter()
            .partition(|(_, tx)| self.lost.contains(tx));
        self.named = kept;
        let gone: BTreeMap<_, TxId> = gone;
        self.forgotten.extend(gone.into_keys());
    }

    fn allocate(&mut self, lane: LaneKey, tx: &Tx) {
        let is_new = |nonce| self.allocated.insert((tx.id, nonce));
        if !tx.nonce.is_some_and(is_new) || self.forgotten_lanes.contains(&lane) {
            return;
        }
        let effect = (lane, tx.request.payload.data.clone());
        let is_known = self.seen.get(&effect).is_some_and(|mined| {
            mined.count > 0 && mined.first.saturating_add(KNOWN_DEPTH) <= self.height
        });
        if is_known {
            self.repeated.insert(effect);
        }
    }

    /// Whether a failover lost its key, and its effect was not mined long ago when it was allocated a nonce again.
    fn is_excused(&self, effect: &Effect) -> bool {
        let (lane, data) = effect;
        if self.repeated.contains(effect) {
            return false;
        }
        let is_same_lease = |id: &RequestId| {
            let id = id.as_str().as_bytes();
            data.as_ref() == id || data.get(MARK..) == Some(id)
        };
        let mut keys = self.forgotten.iter();
        keys.any(|(of, id)| of == lane && is_same_lease(id))
    }

    fn mined(
        &mut self,
        chain: ChainId,
        (block, height): (B256, u64),
        txs: &[Arc<ChainTx>],
    ) -> Result<(), String> {
        self.height = height;
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
            let mined = self.seen.entry(effect.clone()).or_default();
            if mined.count == 0 {
                mined.first = height;
            }
            mined.count += 1;
            let count = mined.count;
            if count > 1 && !self.is_excused(effect) {
                twice = Some(format!("{:?} is on chain {count} times", text(&effect.1)));
            }
        }
        self.blocks.insert(block, effects);
        twice.map_or(Ok(()), Err)
    }

    fn reorged_out(&mut self, block: B256) {
        for effect in self.blocks.remove(&block).unwrap_or_default() {
            if let Some(mined) = self.seen.get_mut(&effect) {
                mined.count -= 1;
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
            if self.has_failed_over && batch.batch_seq_before == 0 {
                self.forgotten_lanes.insert(lane);
            }
            for tx in &batch.writes.inserts {
                self.name_tx(lane, &tx.request.request_id, tx.id)?;
            }
            for tx in batch.writes.inserts.iter().chain(&batch.writes.updates) {
                self.allocate(lane, tx);
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
            self.mined(*chain_id, (header.hash, header.number), txs)?;
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
    fn lost_request_is_not_allocated_a_nonce_once_its_effect_is_known() {
        let run = |blocks: u8| {
            let mut checker = OneEffectPerRequest::default();
            let pay = |id: u128, nonce: u64, before: u64| {
                let mut tx = tx(id, Some(nonce));
                tx.request.request_id = RequestId::parse("pay-1").expect("a valid request id");
                tx.request.payload.data = Bytes::from_static(b"pay-1");
                let mut event = applied(lane(1), move |w| w.inserts = vec![tx]);
                if let WorldEvent::Committed { batch, .. } = &mut event {
                    Arc::make_mut(batch).batch_seq_before = before;
                }
                event
            };
            let once = chain_tx(lane(1), 0, b"pay-1");
            assert_eq!(checker.after(&pay(1, 0, 0)), Ok(()));
            assert_eq!(checker.after(&block(1, vec![once])), Ok(()));
            assert_eq!(checker.after(&failed_over(&[1])), Ok(()));
            for number in 0..blocks {
                assert_eq!(checker.after(&block(2 + number, Vec::new())), Ok(()));
            }
            assert_eq!(checker.after(&pay(2, 1, 7)), Ok(()));
            let again = chain_tx(lane(1), 1, b"pay-1");
            checker.after(&block(100, vec![again]))
        };
        assert_eq!(run(3), Ok(()), "endpoints may not show it yet");
        assert!(run(50).is_err());
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
