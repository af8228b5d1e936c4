//! The store's standby: it replicates, or stopped replicating, and is promoted.
//!
//! With synchronous replication the standby has every acknowledged commit; then only the timeline changes. With
//! asynchronous replication the last commits are lost, while nodes remember them and the chain keeps what was
//! sent.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use domain::lane::UNRECORDED_PREFIX;
use domain::lease::Lease;
use domain::{History, LaneKey, RequestId, SubState, Tx, TxId};
use engine::ports::LaneBatch;

use super::MemoryStore;
use super::rows::{Rows, count};
use crate::event::WorldEvent;

/// What failovers lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Txs that are lost.
    pub txs: BTreeSet<TxId>,
    /// Their keys. (A key may have been stored again since.)
    pub requests: BTreeSet<(LaneKey, RequestId)>,
    /// Lanes that lost commits.
    pub lanes: BTreeSet<LaneKey>,
    /// How often a backup was restored.
    pub restores: u64,
}

/// How lanes dealt with what failovers and restores lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossFigures {
    /// How often a backup was restored.
    pub restores: u64,
    /// Transactions on chain that no tx recorded.
    pub unrecorded: u64,
    /// Requests that wait for a decision because their effect may be on chain.
    pub held: u64,
}

impl MemoryStore {
    /// The standby stops replicating: a failover loses everything written from now on.
    pub fn stop_standby(&self) {
        let rows = self.rows();
        *self.standby.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows.clone());
        self.record(|| WorldEvent::StandbyStopped);
    }

    /// What failovers lost so far.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How lanes dealt with losses so far.
    #[must_use]
    pub fn loss_figures(&self) -> LossFigures {
        let rows = self.rows();
        let txs = rows.tx_lanes.keys().filter_map(|id| rows.tx_row(*id));
        let is_unrecorded = |tx: &Tx| {
            let id = tx.request.request_id.as_str();
            id.starts_with(UNRECORDED_PREFIX)
        };
        let (unrecorded, requests): (Vec<&Tx>, Vec<&Tx>) = txs
            .map(|(_, row)| &row.tx)
            .partition(|tx| is_unrecorded(tx));
        let is_held = |tx: &&&Tx| tx.sub_state == Some(SubState::ForeignNonce) && tx.is_open();
        LossFigures {
            restores: self.loss().restores,
            unrecorded: count(unrecorded.len()),
            held: count(requests.iter().filter(is_held).count()),
        }
    }

    /// Whether a failover now would lose commits.
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

    /// Whether the standby would accept this batch and lacks rows that it changes: requests that were queued, and
    /// loaded by the keeper, since it stopped replicating. The batch count does not show that; only row counts do.
    pub(super) fn would_miss(&self, batch: &LaneBatch) -> bool {
        let standby = self.standby.lock().unwrap_or_else(PoisonError::into_inner);
        standby.as_ref().is_some_and(|standby| {
            let mut updates = batch.writes.updates.iter();
            standby.passes(batch) && updates.any(|tx| !standby.tx_lanes.contains_key(&tx.id))
        })
    }

    /// The standby is promoted, with its present state.
    pub fn fail_over(&self) {
        self.replace_with_standby(|before, standby| History {
            timeline: before.timeline + 1,
            ..standby
        });
    }

    /// The state of the standby replaces the store on the same history, as a volume snapshot does that is restored.
    pub fn restore_snapshot(&self) {
        self.replace_with_standby(|_, snapshot| snapshot);
    }

    /// A backup, taken when the standby stopped replicating, is put back, and the restore declared.
    pub fn restore_backup(&self) {
        self.replace_with_standby(|before, _| History {
            restores: before.restores + 1,
            ..before
        });
        self.rows().end_grants();
        let mut all = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        all.restores += 1;
    }

    /// An operator declares that a backup was restored: every lane is reconciled anew, and no grant holds any more.
    pub fn declare_restore(&self) {
        let mut rows = self.rows();
        rows.history.restores += 1;
        rows.end_grants();
        self.locks().end_all();
    }

    /// Replaces all rows by those of the standby, on the history that follows from those of both.
    fn replace_with_standby(&self, history: impl FnOnce(History, History) -> History) {
        let mut rows = self.rows();
        let mut standby = self.standby.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = standby.take().unwrap_or_else(|| rows.clone());
        let history = history(rows.history, stopped.history);
        let promoted = Rows { history, ..stopped };
        let Loss {
            txs,
            requests,
            lanes,
            ..
        } = loss(&rows, &promoted);
        *rows = promoted;
        // Every session ends with its server, at any step.
        self.locks().end_all();
        self.record(|| WorldEvent::FailedOver {
            history,
            lost: txs.iter().copied().collect(),
            damaged: lanes.iter().copied().collect(),
        });
        let mut all = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        all.txs.extend(txs);
        all.requests.extend(requests);
        all.lanes.extend(lanes);
    }
}

impl Rows {
    /// No grant holds any more, and no lease either.
    fn end_grants(&mut self) {
        for lane in &mut self.lanes {
            lane.grant = None;
            if let Some(lease) = &mut lane.lease {
                lease.expires_at = Lease::RELEASED;
            }
        }
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
    let has_lost_commits = |key: &&LaneKey| batches(before, key) != batches(after, key);
    Loss {
        requests: rows
            .map(|(lane, row)| (lane.key, row.tx.request.request_id.clone()))
            .collect(),
        lanes: before
            .lane_ids
            .keys()
            .filter(has_lost_commits)
            .copied()
            .collect(),
        txs,
        restores: 0,
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
                request_id: RequestId::parse(format!("r{number}")).expect("a valid request id"),
                fingerprint: payload.fingerprint(),
                payload,
                gas: 21_000,
            },
            at: EPOCH,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_standby_that_stopped_replicating_loses_commits() {
        let store = MemoryStore::new(Arc::new(SimClock::new(1)));
        let has = async |number| {
            let tx = store.tx(TxId(Uuid::from_u128(number))).await;
            tx.expect("the twin's reads do not fail").is_some()
        };
        store.queue_requests(vec![queued(1)]).await.expect("queue");
        store.fail_over();
        assert!(has(1).await);
        assert_eq!(store.loss(), Loss::default());
        store.stop_standby();
        store.queue_requests(vec![queued(2)]).await.expect("queue");
        store.fail_over();
        assert!(has(1).await && !has(2).await);
        let lost = queued(2);
        let key = (lost.lane, lost.request.request_id);
        assert_eq!(store.loss().txs, BTreeSet::from([lost.request.id]));
        assert_eq!(store.loss().requests, BTreeSet::from([key]));
    }
}
