//! A store that cannot read, or never accepts, the rows of one lane. All other calls pass through.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, History, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce,
    RequestId, Tx, TxId,
};
use engine::ports::{
    AcquireOutcome, ChangedTxs, CommitOutcome, Conflict, EventFilter, EventPage, EventRecord,
    HeartbeatOutcome, LaneBatch, LaneRecord, LaneWork, LeaseRequest, Member, QueuedRequest,
    RegrantOutcome, RenewOutcome, Store, StoreError, TxFilter, TxPage, TxRecord, UnwatchedLanes,
};

use super::poison::{Poison, PoisonKind};

pub(super) struct PoisonedStore {
    good: Arc<dyn Store>,
    poison: Poison,
    /// The id of the lane, once it was granted.
    id: Mutex<Option<LaneId>>,
}

impl PoisonedStore {
    /// The store of a node; faulty where the plan says so.
    pub(super) fn wrap(good: Arc<dyn Store>, poison: Option<Poison>) -> Arc<dyn Store> {
        match poison {
            Some(poison) => Arc::new(Self {
                good,
                poison,
                id: Mutex::default(),
            }),
            None => good,
        }
    }

    fn is_bad(&self, lane: LaneId) -> bool {
        let id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        self.poison.kind == PoisonKind::Unwritable && *id == Some(lane)
    }
}

/// Passes a verb through unchanged.
macro_rules! passes {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for PoisonedStore {
            fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
                self
            }

            async fn acquire(
                &self,
                lease_request: &LeaseRequest,
                lanes: &[(LaneKey, GrantId)],
            ) -> Result<Vec<AcquireOutcome>, StoreError> {
                let answers = self.good.acquire(lease_request, lanes).await?;
                for ((lane, _), answer) in lanes.iter().zip(&answers) {
                    if let AcquireOutcome::Granted { lease_grant, .. } = answer
                        && *lane == self.poison.lane()
                    {
                        let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
                        *id = Some(lease_grant.lane);
                    }
                }
                Ok(answers)
            }

            async fn load(
                &self,
                key: LaneKey,
                lease_grant: LeaseGrant,
                watch_depth: u64,
            ) -> Result<Option<LaneImage>, StoreError> {
                if self.poison.kind == PoisonKind::Unreadable && key == self.poison.lane() {
                    return Err(StoreError::Corrupt("rows of a poisoned lane".to_owned()));
                }
                self.good.load(key, lease_grant, watch_depth).await
            }

            async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
                let bad: Vec<bool> = batches.iter().map(|batch| self.is_bad(batch.lease_grant.lane)).collect();
                let good = batches.into_iter().zip(&bad).filter(|(_, is_bad)| !**is_bad);
                let good: Vec<Arc<LaneBatch>> = good.map(|(batch, _)| batch).collect();
                let mut outcomes = if good.is_empty() {
                    Vec::new()
                } else {
                    self.good.commit(good).await
                }.into_iter();
                let refused = || CommitOutcome::Conflict(Conflict::Rows("poisoned".to_owned()));
                let mut outcome = |is_bad: bool| {
                    if is_bad {
                        refused()
                    } else {
                        outcomes.next().expect("the store answers every batch")
                    }
                };
                bad.into_iter().map(&mut outcome).collect()
            }

            $(async fn $verb(&self, $($name: $kind),*) -> $answer {
                self.good.$verb($($name),*).await
            })*
        }
    };
}

passes! {
    renew(lease_request: &LeaseRequest, lease_grants: &[LeaseGrant]) -> Result<Vec<RenewOutcome>, StoreError>;
    release(lease_request: &LeaseRequest, lease_grants: &[LeaseGrant]) -> Result<(), StoreError>;
    load_backlog(lane: LaneId, from: Nonce, limit: usize) -> Result<Vec<Tx>, StoreError>;
    load_queued(lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError>;
    put_headers(chain: ChainId, headers: &[Header]) -> Result<(), StoreError>;
    regrant(lease_grant: LeaseGrant, grant: GrantId) -> Result<RegrantOutcome, StoreError>;
    find_requests(requests: &[(LaneKey, RequestId)]) -> Result<Vec<Option<Tx>>, StoreError>;
    queue_requests(requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError>;
    lanes_with_work(lease_request: &LeaseRequest) -> Result<Vec<LaneWork>, StoreError>;
    unwatched_lanes(lease_request: &LeaseRequest, after: Option<LaneId>, limit: usize) -> Result<UnwatchedLanes, StoreError>;
    heartbeat(member: &Member) -> Result<HeartbeatOutcome, StoreError>;
    mark_reconciled(lease_grant: LeaseGrant, history: History) -> Result<bool, StoreError>;
    halt(lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError>;
    suspect_loss(history: History) -> Result<History, StoreError>;
    halt_lost_lane(lane: LaneKey, batch_seq: u64, grant: GrantId, reason: &str) -> Result<bool, StoreError>;
    accept_loss(lane: LaneKey) -> Result<bool, StoreError>;
    extend_feed(lanes: &[LaneId]) -> Result<(), StoreError>;
    members() -> Result<Vec<Member>, StoreError>;
    tx(id: TxId) -> Result<Option<TxRecord>, StoreError>;
    tx_by_request(lane: LaneKey, request_id: &RequestId) -> Result<Option<TxRecord>, StoreError>;
    tx_by_hash(hash: B256) -> Result<Option<TxRecord>, StoreError>;
    txs(filter: &TxFilter) -> Result<TxPage, StoreError>;
    tx_events(id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError>;
    events(filter: &EventFilter) -> Result<EventPage, StoreError>;
    changed_txs(after: Option<&str>) -> Result<ChangedTxs, StoreError>;
    lanes(keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError>;
}
