//! The implementation of the port: each method is in the file of its topic.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, History, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce,
    RequestId, Tx, TxId,
};
use engine::ports::{
    AcquireOutcome, ChangedTxs, CommitOutcome, EventFilter, EventPage, EventRecord,
    HeartbeatOutcome, LaneBatch, LaneRecord, LaneWork, LeaseRequest, Member, QueuedRequest,
    RegrantOutcome, RenewOutcome, Store, StoreError, TxFilter, TxPage, TxRecord, UnwatchedLanes,
};

use super::pool::Reader;
use super::{PostgresStore, events, feed, gate, headers, lanes, lease, nodes, queue, txs};

#[async_trait]
impl Store for PostgresStore {
    fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
        Arc::new(Self {
            db: Arc::clone(&self.db),
            tag: Arc::clone(&self.tag),
            reader: Reader::Customer,
        })
    }

    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        Ok(lease::acquire(&self.db, lease_request, lanes).await?)
    }

    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        Ok(lease::renew(&self.db, lease_request, lease_grants).await?)
    }

    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError> {
        Ok(lease::release(&self.db, lease_request, lease_grants).await?)
    }

    async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        Ok(lanes::load(&self.db, key, lease_grant, watch_depth).await?)
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        Ok(lanes::load_backlog(&self.db, lane, from, limit).await?)
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        Ok(lanes::load_queued(&self.db, lane, limit).await?)
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        Ok(headers::put_headers(&self.db, chain, headers).await?)
    }

    async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
        gate::commit(&self.db, &batches).await
    }

    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError> {
        Ok(gate::regrant(&self.db, lease_grant, grant).await?)
    }

    async fn find_requests(
        &self,
        requests: &[(LaneKey, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        Ok(queue::find_requests(&self.db, requests).await?)
    }

    async fn queue_requests(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError> {
        Ok(queue::queue(&self.db, requests).await?)
    }

    async fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<UnwatchedLanes, StoreError> {
        Ok(lanes::unwatched_lanes(&self.db, lease_request, after, limit).await?)
    }

    async fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
    ) -> Result<Vec<LaneWork>, StoreError> {
        Ok(lanes::lanes_with_work(&self.db, lease_request).await?)
    }

    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError> {
        Ok(nodes::heartbeat(&self.db, &self.tag, member).await?)
    }

    async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError> {
        Ok(lease::mark_reconciled(&self.db, lease_grant, history).await?)
    }

    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError> {
        Ok(lease::halt(&self.db, lease_grant, reason).await?)
    }

    async fn suspect_loss(&self, history: History) -> Result<History, StoreError> {
        Ok(lease::suspect_loss(&self.db, history).await?)
    }

    async fn halt_lost_lane(
        &self,
        lane: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        Ok(lease::halt_lost_lane(&self.db, lane, batch_seq, grant, reason).await?)
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        Ok(lease::accept_loss(&self.db, lane).await?)
    }

    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        Ok(feed::extend_feed(&self.db, lanes).await?)
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        Ok(nodes::members(self.reads()).await?)
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        Ok(txs::tx(self.reads(), id).await?)
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        Ok(txs::tx_by_request(self.reads(), lane, request_id).await?)
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        Ok(txs::tx_by_hash(self.reads(), hash).await?)
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        Ok(txs::txs(self.reads(), filter).await?)
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        Ok(events::tx_events(self.reads(), self.tag.get(), id).await?)
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        Ok(events::events(self.reads(), self.tag.get(), filter).await?)
    }

    async fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError> {
        Ok(events::changed_txs(self.reads(), self.tag.get(), after).await?)
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        Ok(lanes::lanes(self.reads(), keys).await?)
    }
}
