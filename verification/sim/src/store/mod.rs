//! The store in memory: answers as PostgreSQL does, and loses everything with the process.
//!
//! [`MemoryStore`] answers at once, each verb atomically. [`RemoteStore`] is what nodes use: a network, and
//! behind it a server in which a verb is a transaction of steps with time between them, on row locks.

mod connections;
mod failover;
mod feed;
mod gate;
mod grants;
mod reads;
mod remote;
mod rows;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::{
    B256, ChainId, GrantId, Header, History, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce,
    RequestId, Timestamp, Tx, TxId,
};
use engine::ports::{
    AcquireOutcome, ChangedTxs, Clock, CommitOutcome, EventFilter, EventPage, EventRecord,
    HeartbeatOutcome, LaneBatch, LaneRecord, LaneWork, LeaseRequest, Member, QueuedRequest,
    RegrantOutcome, RenewOutcome, Store, StoreError, TxFilter, TxPage, TxRecord, UnwatchedLanes,
};

use crate::event::WorldEvent;
use crate::trace::Trace;
use crate::world::Feature;

pub use failover::{Loss, LossFigures};
pub use remote::RemoteStore;
use rows::{LaneRow, Rows};
use server::Locks;

/// The in-memory twin of the Store port. Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    rows: Arc<Mutex<Rows>>,
    /// The state of a standby that stopped replicating; see [`MemoryStore::stop_standby`].
    standby: Arc<Mutex<Option<Rows>>>,
    loss: Arc<Mutex<Loss>>,
    /// The holders of row locks: none, as long as all verbs are called here.
    locks: Arc<Mutex<Locks>>,
    /// The images that takeovers read early (`Mutation::LoadInTakeover`).
    read_in_takeover: Arc<Mutex<BTreeMap<GrantId, LaneRow>>>,
    clock: Arc<dyn Clock>,
    trace: Option<Trace>,
}

impl MemoryStore {
    /// An empty store; `clock` is the database's clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            rows: Arc::new(Mutex::new(Rows::new())),
            standby: Arc::default(),
            loss: Arc::default(),
            locks: Arc::default(),
            read_in_takeover: Arc::default(),
            clock,
            trace: None,
        }
    }

    /// Records every write in a trace.
    #[must_use]
    pub fn traced(self, trace: Trace) -> Self {
        Self {
            trace: Some(trace),
            ..self
        }
    }

    /// How many events each lane has written, and how many of them are not in the feed.
    #[must_use]
    pub fn events_written(&self) -> Vec<(LaneKey, u64, u64)> {
        let rows = self.rows();
        let lanes = rows.lanes.iter();
        lanes
            .map(|lane| {
                let written = lane.event_seq();
                (lane.key, written, written - rows::count(lane.fed.len()))
            })
            .collect()
    }

    /// One transaction: the lock makes it atomic, and there is no await inside.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn record(&self, event: impl FnOnce() -> WorldEvent) {
        if let Some(trace) = &self.trace {
            trace.record(event());
        }
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_in_takeover(&self) -> MutexGuard<'_, BTreeMap<GrantId, LaneRow>> {
        self.read_in_takeover
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a fault of the store has happened.
    pub(crate) fn fire(&self, feature: Feature) {
        if let Some(trace) = &self.trace {
            trace.fire(feature);
        }
    }

    /// A line of text for the trace.
    fn note(&self, text: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.note(&text());
        }
    }

    fn acquire_one(
        &self,
        rows: &mut Rows,
        lease_request: &LeaseRequest,
        (key, grant): (LaneKey, GrantId),
        now: Timestamp,
    ) -> AcquireOutcome {
        let left = rows.left_to_another(lease_request, key, now);
        let acquired = rows.acquire(lease_request, key, grant, now);
        if let AcquireOutcome::Granted {
            lease_grant,
            previous_keeper,
            ..
        } = &acquired
        {
            self.record(|| WorldEvent::Granted {
                lane: key,
                node: lease_request.node.clone(),
                token: lease_grant.token,
                grant,
                previous_keeper: previous_keeper.clone(),
                left,
            });
        }
        acquired
    }

    fn release_one(&self, rows: &mut Rows, lease_request: &LeaseRequest, lease_grant: LeaseGrant) {
        if let Some(lane) = rows.release(lease_request, lease_grant) {
            self.record(|| WorldEvent::Released {
                lane,
                node: lease_request.node.clone(),
            });
        }
    }

    fn regrant_one(
        &self,
        rows: &mut Rows,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> RegrantOutcome {
        let outcome = rows.regrant(lease_grant, grant);
        if let Some(lane) = rows.lane(lease_grant.lane).map(|lane| lane.key) {
            self.record(|| WorldEvent::Regranted { lane, outcome });
        }
        outcome
    }

    fn queue_one(&self, rows: &mut Rows, request: QueuedRequest) -> Tx {
        let lane = request.lane;
        let (tx, is_new) = rows.queue(request);
        if is_new {
            self.record(|| WorldEvent::Queued {
                lane,
                request_id: tx.request.request_id.clone(),
                tx_id: tx.id,
            });
        }
        tx
    }

    fn record_commit(&self, rows: &Rows, batch: Arc<LaneBatch>, outcome: &CommitOutcome) {
        if let Some(lane) = rows.lane(batch.lease_grant.lane).map(|lane| lane.key) {
            self.record(|| WorldEvent::Committed {
                lane,
                batch,
                outcome: outcome.clone(),
            });
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
        self // nothing here waits for a connection
    }

    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        let (mut rows, now) = (self.rows(), self.now());
        Ok(lanes
            .iter()
            .map(|requested| self.acquire_one(&mut rows, lease_request, *requested, now))
            .collect())
    }

    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let (mut rows, now) = (self.rows(), self.now());
        Ok(lease_grants
            .iter()
            .map(|lease_grant| rows.renew(lease_request, *lease_grant, now))
            .collect())
    }

    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError> {
        let mut rows = self.rows();
        for lease_grant in lease_grants {
            self.release_one(&mut rows, lease_request, *lease_grant);
        }
        Ok(())
    }

    async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        Ok(self.rows().load(key, lease_grant, watch_depth))
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        Ok(self.rows().load_backlog(lane, from, limit))
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        Ok(self.rows().load_queued(lane, limit))
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        self.rows().put_headers(chain, headers);
        Ok(())
    }

    async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
        let mut rows = self.rows();
        let commit = |batch: Arc<LaneBatch>| {
            let outcome = rows.commit(&batch);
            self.record_commit(&rows, batch, &outcome);
            outcome
        };
        batches.into_iter().map(commit).collect()
    }

    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError> {
        Ok(self.regrant_one(&mut self.rows(), lease_grant, grant))
    }

    async fn find_requests(
        &self,
        requests: &[(LaneKey, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let rows = self.rows();
        Ok(requests
            .iter()
            .map(|(lane, request)| rows.find_request(*lane, request))
            .collect())
    }

    async fn queue_requests(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError> {
        let mut rows = self.rows();
        if let Some(why) = requests.iter().find_map(|new| rows.queue_refusal(new)) {
            return Err(why);
        }
        if let Some(taken) = rows.conflicting_tx_id(&requests) {
            return Err(StoreError::Invalid(format!("tx id {taken} is taken")));
        }
        let queued = requests.into_iter();
        Ok(queued
            .map(|request| self.queue_one(&mut rows, request))
            .collect())
    }

    async fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
    ) -> Result<Vec<LaneWork>, StoreError> {
        Ok(self.rows().lanes_with_work(lease_request, self.now()))
    }

    async fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<UnwatchedLanes, StoreError> {
        Ok(self
            .rows()
            .unwatched_lanes(lease_request, after, limit, self.now()))
    }

    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError> {
        Ok(self.rows().heartbeat(member))
    }

    async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError> {
        Ok(self.rows().mark_reconciled(lease_grant, history))
    }

    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError> {
        Ok(self.rows().halt(lease_grant, reason))
    }

    async fn suspect_loss(&self, history: History) -> Result<History, StoreError> {
        Ok(self.rows().suspect_loss(history))
    }

    async fn halt_lost_lane(
        &self,
        lane: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        Ok(self.rows().halt_lost_lane(lane, batch_seq, grant, reason))
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        Ok(self.rows().accept_loss(lane))
    }

    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.rows().extend_feed(lanes);
        Ok(())
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        Ok(self.rows().members.values().cloned().collect())
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        Ok(self.rows().tx(id))
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        Ok(self.rows().tx_by_request(lane, request_id))
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        Ok(self.rows().tx_by_hash(hash))
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        self.rows().txs(filter)
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        self.rows().tx_events(id)
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        self.rows().events(filter)
    }

    async fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError> {
        self.rows().changed_txs(after)
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        let rows = self.rows();
        Ok(keys
            .iter()
            .filter_map(|key| rows.lane_record(*key))
            .collect())
    }
}
