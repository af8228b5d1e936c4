//! The store's standby: it follows, or stopped to, and takes over.
//!
//! With synchronous replication the standby has everything that anybody was told; then only the
//! history changes. With asynchronous replication the last commits are gone as if they had never
//! been, while nodes remember them and the chain keeps what was sent.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use domain::{LaneKey, RequestId, TxId};
use engine::ports::LaneBatch;

use super::MemoryStore;
use super::rows::Rows;
use crate::event::WorldEvent;

/// What failovers took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Txs that are gone.
    pub txs: BTreeSet<TxId>,
    /// Their keys. (A key may have come back since.)
    pub requests: BTreeSet<(LaneKey, RequestId)>,
    /// Lanes that lost commits.
    pub lanes: BTreeSet<LaneKey>,
}

impl MemoryStore {
    /// The standby does not follow any more: a failover loses what is written from now on.
    pub fn stop_standby(&self) {
        let rows = self.rows();
        *self.standby.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows.clone());
        self.tell(|| WorldEvent::StandbyStopped);
    }

    /// What failovers took away so far.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether a failover at this moment would lose commits.
    #[must_use]
    pub fn would_lose(&self) -> bool {
        let rows = self.rows();
        let standby = self.standby.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = |standby: &Rows| {
            let Loss { txs, lanes, .. } = loss(&rows, standby);
            !lanes.is_empty() || !txs.is_empty()
        };
        standby.as_ref().is_some_and(is_behind)
    }

    /// Whether the standby would let this batch pass and lacks rows that it changes: what was queued, and read
    /// by the keeper, since it stopped to follow. No count of batches tells; only counts of rows do.
    pub(super) fn would_miss(&self, batch: &LaneBatch) -> bool {
        let standby = self.standby.lock().unwrap_or_else(PoisonError::into_inner);
        standby.as_ref().is_some_and(|standby| {
            let mut updates = batch.writes.updates.iter();
            standby.passes(batch) && updates.any(|tx| !standby.tx_lanes.contains_key(&tx.id))
        })
    }

    /// The standby takes over, with what it has.
    pub fn fail_over(&self) {
        let mut rows = self.rows();
        let mut standby = self.standby.lock().unwrap_or_else(PoisonError::into_inner);
        let history = rows.history + 1;
        let stopped = standby.take().unwrap_or_else(|| rows.clone());
        let promoted = Rows { history, ..stopped };
        let Loss {
            txs,
            requests,
            lanes,
        } = loss(&rows, &promoted);
        *rows = promoted;
        // Every session ends with its server, whatever it was about to do.
        self.locks().end_all();
        self.tell(|| WorldEvent::FailedOver {
            history,
            lost: txs.iter().copied().collect(),
            hurt: lanes.iter().copied().collect(),
        });
        let mut all = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        all.txs.extend(txs);
        all.requests.extend(requests);
        all.lanes.extend(lanes);
    }
}

fn loss(before: &Rows, after: &Rows) -> Loss {
    let is_gone = |id: &&TxId| !after.tx_lanes.contains_key(id);
    let txs: BTreeSet<TxId> = before.tx_lanes.keys().filter(is_gone).copied().collect();
    let rows = txs.iter().filter_map(|id| before.tx_row(*id));
    let batches = |rows: &Rows, key: &LaneKey| {
        let lane = rows.lane_ids.get(key).and_then(|id| rows.lane(*id));
        lane.map_or(0, |lane| lane.batch_seq)
    };
    let is_hurt = |key: &&LaneKey| batches(before, key) != batches(after, key);
    Loss {
        requests: rows
            .map(|(lane, row)| (lane.key, row.tx.request_id.clone()))
            .collect(),
        lanes: before.lane_ids.keys().filter(is_hurt).copied().collect(),
        txs,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::lane::AdmittedRequest;
    use domain::{Address, ChainId, Payload, U256};
    use engine::ports::{QueuedRequest, Store as _};
    use uuid::Uuid;

    use super::*;
    use crate::clock::{EPOCH, SimClock};

    fn queued(number: u128) -> QueuedRequest {
        let payload = Payload::transfer(Address::ZERO, U256::from(number));
        QueuedRequest {
            lane: LaneKey {
                chain_id: ChainId(1),
                signer: Address::left_padding_from(&number.to_be_bytes()),
            },
            request: AdmittedRequest {
                id: TxId(Uuid::from_u128(number)),
                request_id: RequestId::parse(format!("r{number}")).expect("keeps the rule"),
                fingerprint: payload.fingerprint(),
                payload,
                gas: 21_000,
            },
            at: EPOCH,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_that_follows_loses_nothing_and_one_that_stopped_does() {
        let store = MemoryStore::new(Arc::new(SimClock::new(1)));
        let has = async |number| {
            let tx = store.tx(TxId(Uuid::from_u128(number))).await;
            tx.expect("the twin's reads do not fail").is_some()
        };
        store.queue(vec![queued(1)]).await.expect("queue");
        store.fail_over();
        assert!(has(1).await);
        assert_eq!(store.loss(), Loss::default());
        store.stop_standby();
        store.queue(vec![queued(2)]).await.expect("queue");
        store.fail_over();
        assert!(has(1).await && !has(2).await);
        let lost = queued(2);
        let key = (lost.lane, lost.request.request_id);
        assert_eq!(store.loss().txs, BTreeSet::from([lost.request.id]));
        assert_eq!(store.loss().requests, BTreeSet::from([key]));
    }
}
