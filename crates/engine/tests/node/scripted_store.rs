//! The twin of the store, with failures on demand.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, History, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce,
    RequestId, Tx, TxId, TxState,
};
use engine::ports::{
    AcquireOutcome, ChangedTxs, CommitOutcome, EventFilter, EventPage, EventRecord,
    HeartbeatOutcome, LaneBatch, LaneRecord, LaneWork, LeaseRequest, Member, QueuedRequest,
    RegrantOutcome, RenewOutcome, Store, StoreError, TxFilter, TxPage, TxRecord, UnwatchedLanes,
};
use sim::store::MemoryStore;

use crate::support::{CommitScript, StoreScript, sleep};

pub(crate) struct ScriptedStore {
    twin: MemoryStore,
    script: Arc<StoreScript>,
}

impl ScriptedStore {
    pub(crate) fn new(twin: MemoryStore, script: Arc<StoreScript>) -> Self {
        Self { twin, script }
    }

    fn check_cut(&self) -> Result<(), StoreError> {
        match self.script.is_cut.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("cut off by the test".to_owned())),
            false => Ok(()),
        }
    }
}

fn confirms(batches: &[Arc<LaneBatch>]) -> bool {
    let mut changed = batches.iter().flat_map(|batch| &batch.writes.updates);
    changed.any(|tx| tx.state == TxState::Confirmed)
}

/// Passes verbs on to the twin, unless the store is cut off.
macro_rules! pass_on {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for ScriptedStore {
            fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
                self
            }

            async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
                let count = batches.len();
                if self.check_cut().is_err() {
                    return vec![CommitOutcome::NotApplied("cut off by the test".to_owned()); count];
                }
                let inserts = batches.iter().any(|batch| !batch.writes.inserts.is_empty());
                if !inserts {
                    let is_lost = confirms(&batches)
                        && self.script.lose_confirmation.swap(false, Ordering::SeqCst);
                    let outcomes = self.twin.commit(batches).await;
                    return match is_lost {
                        true => vec![CommitOutcome::Unknown("lost by the test".to_owned()); count],
                        false => outcomes,
                    };
                }
                self.script.record("create");
                let script = self.script.commits.lock().unwrap().pop_front();
                match script {
                    None => self.twin.commit(batches).await,
                    Some(CommitScript::Return(outcome)) => vec![outcome; count],
                    Some(CommitScript::ApplyThenUnknown) => {
                        self.twin.commit(batches).await;
                        vec![CommitOutcome::Unknown("lost by the test".to_owned()); count]
                    }
                    Some(CommitScript::Hold(wakeup)) => {
                        wakeup.notified().await;
                        self.twin.commit(batches).await
                    }
                }
            }

            async fn acquire(
                &self,
                lease_request: &LeaseRequest,
                lanes: &[(LaneKey, GrantId)],
            ) -> Result<Vec<AcquireOutcome>, StoreError> {
                self.check_cut()?;
                self.script.record("acquire");
                self.twin.acquire(lease_request, lanes).await
            }

            async fn renew(
                &self,
                lease_request: &LeaseRequest,
                lease_grants: &[LeaseGrant],
            ) -> Result<Vec<RenewOutcome>, StoreError> {
                self.check_cut()?;
                if self.script.fail_renewals.load(Ordering::SeqCst) {
                    return Err(StoreError::Unavailable("failed by the test".to_owned()));
                }
                self.twin.renew(lease_request, lease_grants).await
            }

            async fn regrant(
                &self,
                lease_grant: LeaseGrant,
                grant: GrantId,
            ) -> Result<RegrantOutcome, StoreError> {
                while self.script.hold_regrants.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(10)).await;
                }
                self.check_cut()?;
                self.script.record("regrant");
                self.twin.regrant(lease_grant, grant).await
            }

            async fn suspect_loss(&self, history: History) -> Result<History, StoreError> {
                self.check_cut()?;
                if self.script.fail_suspicions.load(Ordering::SeqCst) {
                    return Err(StoreError::Unavailable("failed by the test".to_owned()));
                }
                self.twin.suspect_loss(history).await
            }

            async fn find_requests(
                &self,
                requests: &[(LaneKey, RequestId)],
            ) -> Result<Vec<Option<Tx>>, StoreError> {
                self.check_cut()?;
                self.script.record("find");
                self.twin.find_requests(requests).await
            }

            async fn tx_by_request(
                &self,
                lane: LaneKey,
                request_id: &RequestId,
            ) -> Result<Option<TxRecord>, StoreError> {
                let running = self.script.lookups.fetch_add(1, Ordering::SeqCst) + 1;
                self.script.lookups_max.fetch_max(running, Ordering::SeqCst);
                sleep(Duration::from_millis(1)).await;
                self.script.lookups.fetch_sub(1, Ordering::SeqCst);
                self.check_cut()?;
                self.twin.tx_by_request(lane, request_id).await
            }

            async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
                self.script.lists_begun.fetch_add(1, Ordering::SeqCst);
                let time = *self.script.read_time.lock().unwrap();
                sleep(time).await;
                self.check_cut()?;
                self.twin.txs(filter).await
            }

            async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
                let time = *self.script.read_time.lock().unwrap();
                sleep(time).await;
                self.check_cut()?;
                self.twin.tx(id).await
            }

            async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
                self.check_cut()?;
                self.script.lanes_read.fetch_add(keys.len(), Ordering::SeqCst);
                self.twin.lanes(keys).await
            }

            $(async fn $verb(&self, $($name: $kind),*) -> Result<$answer, StoreError> {
                self.check_cut()?;
                self.twin.$verb($($name),*).await
            })*
        }
    };
}

pass_on! {
    release(lease_request: &LeaseRequest, lease_grants: &[LeaseGrant]) -> ();
    load(key: LaneKey, lease_grant: LeaseGrant, watch_depth: u64) -> Option<LaneImage>;
    load_backlog(lane: LaneId, from: Nonce, limit: usize) -> Vec<Tx>;
    load_queued(lane: LaneId, limit: usize) -> Vec<Tx>;
    put_headers(chain: ChainId, headers: &[Header]) -> ();
    queue_requests(requests: Vec<QueuedRequest>) -> Vec<Tx>;
    lanes_with_work(lease_request: &LeaseRequest) -> Vec<LaneWork>;
    unwatched_lanes(lease_request: &LeaseRequest, after: Option<LaneId>, limit: usize) -> UnwatchedLanes;
    heartbeat(member: &Member) -> HeartbeatOutcome;
    mark_reconciled(lease_grant: LeaseGrant, history: History) -> bool;
    halt(lease_grant: LeaseGrant, reason: &str) -> bool;
    halt_lost_lane(lane: LaneKey, batch_seq: u64, grant: GrantId, reason: &str) -> bool;
    accept_loss(lane: LaneKey) -> bool;
    extend_feed(lanes: &[LaneId]) -> ();
    members() -> Vec<Member>;
    tx_by_hash(hash: B256) -> Option<TxRecord>;
    tx_events(id: TxId) -> Option<Vec<EventRecord>>;
    events(filter: &EventFilter) -> EventPage;
    changed_txs(after: Option<&str>) -> ChangedTxs;
}
