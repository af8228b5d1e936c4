//! The implementation of the port: which thread runs each method.

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

use super::readers::Reader;
use super::writer::JobFailure;
use super::{SqliteStore, events, gate, headers, history, lanes, lease, nodes, queue, txs};
use crate::commit_metrics::count_txs;

#[async_trait]
impl Store for SqliteStore {
    fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
        Arc::new(Self {
            threads: Arc::clone(&self.threads),
            reader: Reader::Customer,
        })
    }

    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        let (lease_request, lanes) = (lease_request.clone(), lanes.to_vec());
        self.writer()
            .write(0, move |conn, now| {
                lease::acquire(conn, now, &lease_request, &lanes)
            })
            .await
    }

    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let (lease_request, lease_grants) = (lease_request.clone(), lease_grants.to_vec());
        self.writer()
            .write(0, move |conn, now| {
                lease::renew(conn, now, &lease_request, &lease_grants)
            })
            .await
    }

    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError> {
        let (lease_request, lease_grants) = (lease_request.clone(), lease_grants.to_vec());
        self.writer()
            .write(0, move |conn, now| {
                lease::release(conn, now, &lease_request, &lease_grants)
            })
            .await
    }

    async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        self.engine_readers()
            .read(move |conn| lanes::load(conn, key, lease_grant, watch_depth))
            .await
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        self.engine_readers()
            .read(move |conn| lanes::load_backlog(conn, lane, from, limit))
            .await
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        self.engine_readers()
            .read(move |conn| lanes::load_queued(conn, lane, limit))
            .await
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        let headers = headers.to_vec();
        self.writer()
            .write(0, move |conn, _now| {
                headers::put_headers(conn, chain, &headers)
            })
            .await
    }

    async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
        let lanes = batches.len();
        if lanes == 0 {
            return Vec::new();
        }
        let committing = self
            .writer()
            .submit(count_txs(&batches), move |conn, _now| {
                gate::commit(conn, &batches)
            });
        match committing.await {
            Ok(outcomes) => outcomes,
            Err(JobFailure::NotDone(error)) => {
                vec![CommitOutcome::NotApplied(error.to_string()); lanes]
            }
            Err(JobFailure::Unknown(text)) => vec![CommitOutcome::Unknown(text); lanes],
        }
    }

    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError> {
        self.writer()
            .write(0, move |conn, _now| gate::regrant(conn, lease_grant, grant))
            .await
    }

    async fn find_requests(
        &self,
        requests: &[(LaneKey, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let requests = requests.to_vec();
        self.engine_readers()
            .read(move |conn| queue::find_requests(conn, &requests))
            .await
    }

    async fn queue_requests(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError> {
        let txs = requests.len();
        self.writer()
            .write(txs, move |conn, _now| queue::queue(conn, &requests))
            .await
    }

    async fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
    ) -> Result<Vec<LaneWork>, StoreError> {
        let (lease_request, now) = (lease_request.clone(), (self.threads.now)());
        self.engine_readers()
            .read(move |conn| lanes::lanes_with_work(conn, now, &lease_request))
            .await
    }

    async fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<UnwatchedLanes, StoreError> {
        let (lease_request, now) = (lease_request.clone(), (self.threads.now)());
        self.engine_readers()
            .read(move |conn| lanes::unwatched_lanes(conn, now, &lease_request, after, limit))
            .await
    }

    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError> {
        let member = member.clone();
        self.writer()
            .write(0, move |conn, _now| nodes::heartbeat(conn, &member))
            .await
    }

    async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError> {
        self.writer()
            .write(0, move |conn, _now| {
                lease::mark_reconciled(conn, lease_grant, history)
            })
            .await
    }

    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        self.writer()
            .write(0, move |conn, _now| lease::halt(conn, lease_grant, &reason))
            .await
    }

    async fn suspect_loss(&self, history: History) -> Result<History, StoreError> {
        self.writer()
            .write(0, move |conn, _now| history::suspect_loss(conn, history))
            .await
    }

    async fn halt_lost_lane(
        &self,
        lane: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        self.writer()
            .write(0, move |conn, _now| {
                lease::halt_lost_lane(conn, lane, batch_seq, grant, &reason)
            })
            .await
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        self.writer()
            .write(0, move |conn, _now| lease::accept_loss(conn, lane))
            .await
    }

    async fn extend_feed(&self, _lanes: &[LaneId]) -> Result<(), StoreError> {
        Ok(()) // the gate does it
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        self.readers().read(nodes::members).await
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        self.readers().read(move |conn| txs::tx(conn, id)).await
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        let request_id = request_id.clone();
        self.readers()
            .read(move |conn| txs::tx_by_request(conn, lane, &request_id))
            .await
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        self.readers()
            .read(move |conn| txs::tx_by_hash(conn, hash))
            .await
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let filter = filter.clone();
        self.readers()
            .read(move |conn| txs::txs(conn, &filter))
            .await
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        let tag = self.threads.tag;
        self.readers()
            .read(move |conn| events::tx_events(conn, tag, id))
            .await
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let (filter, tag) = (filter.clone(), self.threads.tag);
        self.readers()
            .read(move |conn| events::events(conn, tag, &filter))
            .await
    }

    async fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError> {
        let (after, tag) = (after.map(str::to_owned), self.threads.tag);
        self.readers()
            .read(move |conn| events::changed_txs(conn, tag, after.as_deref()))
            .await
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        let keys = keys.to_vec();
        self.readers()
            .read(move |conn| lanes::lanes(conn, &keys))
            .await
    }
}
