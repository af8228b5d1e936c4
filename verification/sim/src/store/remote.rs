//! The store over a network, as one node reaches it.
//!
//! A lost answer means two different things: a reader retries, a writer has an unknown outcome.
//! [`StoreError`] promises that nothing has happened, but no client of a database can keep that
//! promise for a statement whose answer was lost; the twin does not either.
//!
//! A client's wait for an answer is bounded; the request continues anyway.

use std::sync::Arc;
use std::time::Duration;

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

use super::MemoryStore;
use super::connections::Connections;
use super::server::Server;
use crate::network::{Link, NoAnswer};
use crate::rng::Rng;
use crate::world::Feature;

/// The server of a [`MemoryStore`] over a [`Link`].
#[derive(Clone)]
pub struct RemoteStore {
    server: Server,
    link: Link,
    /// The connections that this view's calls share; `None`: there are always enough.
    connections: Option<Connections>,
    /// Draws which releases arrive late; `None`: those that the link delays.
    late_releases: Option<Rng>,
}

/// The timeout of a client: longer than any statement may take.
const ANSWER_WITHIN: Duration = Duration::from_millis(2_500);
/// How many of a thousand releases arrive late where that is drawn, and how late.
const LATE_RELEASE_PERMILLE: u64 = 500;
const LATE_RELEASE_MS: (u64, u64) = (500, 15_000);

impl RemoteStore {
    /// `store`, reached over `link`.
    #[must_use]
    pub fn new(store: MemoryStore, link: Link) -> Self {
        let server = Server::new(store, link.clone());
        Self {
            server,
            link,
            connections: None,
            late_releases: None,
        }
    }

    /// Customers read over few connections, and what they read takes long.
    #[must_use]
    pub fn with_few_connections(self) -> Self {
        Self {
            connections: Some(Connections::of_engine()),
            ..self
        }
    }

    /// Many releases arrive long after their sender gave up on the answer.
    #[must_use]
    pub fn with_late_releases(self, rng: Rng) -> Self {
        Self {
            late_releases: Some(rng),
            ..self
        }
    }

    async fn request<T: Send + 'static>(
        &self,
        query: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let is_customer = self
            .connections
            .as_ref()
            .is_some_and(Connections::is_customer);
        let lost = |why| match why {
            NoAnswer::Refused if is_customer => {
                Err(StoreError::Busy("too many reads wait already".to_owned()))
            }
            NoAnswer::Refused | NoAnswer::Lost => {
                Err(StoreError::Unavailable(format!("no answer: {why:?}")))
            }
        };
        self.call(query).await.unwrap_or_else(lost)
    }

    async fn call<T: Send + 'static>(
        &self,
        query: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let _connection = match &self.connections {
            Some(connections) => Some(connections.take().await?),
            None => None,
        };
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.link.call(query));
        answer.await.unwrap_or(Err(NoAnswer::Lost))
    }
}

/// One verb: its arguments are copied into the network, and the verb runs at the server.
macro_rules! over_link {
    ($self:ident.$verb:ident($($argument:expr),*)) => {{
        let server = $self.server.clone();
        $self.request(async move { server.$verb($($argument),*).await }).await
    }};
}

/// One verb that is a single statement.
macro_rules! at_once {
    ($self:ident.$verb:ident($($argument:expr),*)) => {{
        let server = $self.server.clone();
        $self.request(async move { server.store().$verb($($argument),*).await }).await
    }};
}

#[async_trait]
impl Store for RemoteStore {
    fn for_customers(self: Arc<Self>) -> Arc<dyn Store> {
        let Some(connections) = &self.connections else {
            return self; // nothing here waits for a connection
        };
        Arc::new(Self {
            connections: Some(connections.for_customers()),
            ..(*self).clone()
        })
    }

    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        let (lease_request, lanes) = (lease_request.clone(), lanes.to_vec());
        over_link!(self.acquire(&lease_request, &lanes))
    }

    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let (lease_request, lease_grants) = (lease_request.clone(), lease_grants.to_vec());
        over_link!(self.renew(&lease_request, &lease_grants))
    }

    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError> {
        let (lease_request, lease_grants) = (lease_request.clone(), lease_grants.to_vec());
        if let Some(rng) = &self.late_releases
            && rng.permille(LATE_RELEASE_PERMILLE)
        {
            let (server, delay) = (
                self.server.clone(),
                rng.millis(LATE_RELEASE_MS.0, LATE_RELEASE_MS.1),
            );
            server.store().fire(Feature::LateReleases);
            // Detached: the statement lives in the network.
            drop(tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                drop(server.release(&lease_request, &lease_grants).await);
            }));
            return Err(StoreError::Unavailable("no answer: late".to_owned()));
        }
        over_link!(self.release(&lease_request, &lease_grants))
    }

    async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError> {
        let server = self.server.clone();
        let load = async move { Ok(server.load(key, lease_grant, watch_depth).await) };
        self.request(load).await
    }

    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError> {
        at_once!(self.load_backlog(lane, from, limit))
    }

    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError> {
        at_once!(self.load_queued(lane, limit))
    }

    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError> {
        let headers = headers.to_vec();
        at_once!(self.put_headers(chain, &headers))
    }

    async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome> {
        let (server, lanes) = (self.server.clone(), batches.len());
        let recorded = self.call(async move { server.commit(batches).await }).await;
        recorded.unwrap_or_else(|why| {
            let outcome = match why {
                NoAnswer::Refused => CommitOutcome::NotApplied("connection refused".to_owned()),
                NoAnswer::Lost => CommitOutcome::Unknown("the answer was lost".to_owned()),
            };
            vec![outcome; lanes]
        })
    }

    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError> {
        over_link!(self.regrant(lease_grant, grant))
    }

    async fn find_requests(
        &self,
        requests: &[(LaneKey, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let requests = requests.to_vec();
        at_once!(self.find_requests(&requests))
    }

    async fn queue_requests(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError> {
        over_link!(self.queue_requests(requests))
    }

    async fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
    ) -> Result<Vec<LaneWork>, StoreError> {
        let lease_request = lease_request.clone();
        at_once!(self.lanes_with_work(&lease_request))
    }

    async fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<UnwatchedLanes, StoreError> {
        let lease_request = lease_request.clone();
        at_once!(self.unwatched_lanes(&lease_request, after, limit))
    }

    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError> {
        let member = member.clone();
        at_once!(self.heartbeat(&member))
    }

    async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError> {
        over_link!(self.mark_reconciled(lease_grant, history))
    }

    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        over_link!(self.halt(lease_grant, &reason))
    }

    async fn suspect_loss(&self, history: History) -> Result<History, StoreError> {
        at_once!(self.suspect_loss(history))
    }

    async fn halt_lost_lane(
        &self,
        lane: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        over_link!(self.halt_lost_lane(lane, batch_seq, grant, &reason))
    }

    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError> {
        over_link!(self.accept_loss(lane))
    }

    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError> {
        let lanes = lanes.to_vec();
        over_link!(self.extend_feed(&lanes))
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        at_once!(self.members())
    }

    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError> {
        at_once!(self.tx(id))
    }

    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError> {
        let request_id = request_id.clone();
        at_once!(self.tx_by_request(lane, &request_id))
    }

    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError> {
        at_once!(self.tx_by_hash(hash))
    }

    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError> {
        let filter = filter.clone();
        at_once!(self.txs(&filter))
    }

    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError> {
        at_once!(self.tx_events(id))
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError> {
        let filter = filter.clone();
        at_once!(self.events(&filter))
    }

    async fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError> {
        let after = after.map(str::to_owned);
        at_once!(self.changed_txs(after.as_deref()))
    }

    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError> {
        let keys = keys.to_vec();
        at_once!(self.lanes(&keys))
    }
}
