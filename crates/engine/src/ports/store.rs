//! The authority: leases, lanes, txs and events. Shaped by PostgreSQL; every backend runs one suite.
//!
//! Every critical write goes through [`Store::commit`], the gate. Unfenced are only [`Store::queue_requests`] (requests
//! without nonce or event), [`Store::put_headers`] (facts about the chain), [`Store::heartbeat`],
//! [`Store::suspect_loss`], [`Store::halt_lost_lane`] and [`Store::accept_loss`], which let lanes stop and go on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::lane::{AdmittedRequest, HeadWait, OpenCost, WatchedBlock};
use domain::lease::Lease;
pub use domain::lease::LeaseRequest;
use domain::{
    B256, ChainId, GrantId, Header, History, Incarnation, LaneId, LaneImage, LaneKey, LeaseGrant,
    NodeName, Nonce, RequestId, Timestamp, Token, Tx, TxId, Writes,
};
use thiserror::Error;

use super::{
    ChangedTxs, EventFilter, EventPage, EventRecord, LaneRecord, TxFilter, TxPage, TxRecord,
};

/// Why a call of the store failed. Nothing has happened, except where
/// [`CommitOutcome::Unknown`] or the verb's own documentation leave it open.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// Not reachable, or too busy.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Too many reads of customers wait already; certainly nothing happened. Only the view of
    /// [`Store::for_customers`] answers so.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// A stored row cannot be decoded.
    #[error("the store holds a row that cannot be decoded: {0}")]
    Corrupt(String),
    /// The call itself is invalid (a cursor of another store, for example).
    #[error("{0}")]
    Invalid(String),
    /// The lane takes no work until an operator decides; certainly nothing was written.
    #[error("the lane is halted: {0}")]
    Halted(String),
    /// The store's history changed, and the lane was not compared with its chain yet; certainly nothing was
    /// written. The next keeper compares it, so a repeat succeeds soon.
    #[error("the lane takes no requests until it is reconciled: {0}")]
    Unreconciled(String),
}

/// What came of the request for a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Granted, with a new grant. What the lane holds must be read *after* this, in another call.
    Granted {
        /// The grant that every write must carry from now on.
        lease_grant: LeaseGrant,
        /// The previous keeper, when the lane was taken over from another incarnation.
        previous_keeper: Option<NodeName>,
        /// The store's history, as of the grant.
        history: History,
        /// Whether that is still the history under which the lane was last reconciled. If not (a standby was promoted,
        /// a restore declared, or a loss suspected), its last commits may be lost: compare it with the chain, then
        /// [`Store::mark_reconciled`] it.
        is_reconciled: bool,
        /// Whether an operator has accepted the loss under that history, and the lane is not reconciled since.
        is_loss_accepted: bool,
    },
    /// Another node holds it.
    NotKeeper {
        /// The lease as it stands.
        lease: Lease,
        /// How long it lasts by the store's clock; zero when it is over.
        left: Duration,
    },
    /// It takes no work until an operator accepts its lost commits; the reason, for people.
    Halted(String),
    /// Another transaction held its rows: try again soon. Says nothing about ownership.
    Busy,
}

/// What came of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Extended from now.
    Renewed,
    /// Another transaction held its row: try again soon. Says nothing about ownership.
    Busy,
    /// Another node has taken the lane over, or the lease was released.
    Lost,
}

/// Everything that one lane writes in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBatch {
    /// Checked by the fence.
    pub lease_grant: LeaseGrant,
    /// The number of batches that memory knows of. It is part of the fence: a store that lost commits has
    /// another number. This batch is the next one, so a regrant can prove whether it landed.
    pub batch_seq_before: u64,
    /// The node that writes.
    pub node: NodeName,
    /// The time of the turn.
    pub at: Timestamp,
    /// The last event sequence number that memory knows; part of the fence too.
    pub event_seq_before: u64,
    /// The cursor after this batch.
    pub next_nonce: Nonce,
    /// After this batch no open tx has a nonce below this one; the cursor when none is open.
    pub floor_nonce: Nonce,
    /// What the open txs can cost after this batch.
    pub open_cost: OpenCost,
    /// What the lowest unmined tx waits for after this batch.
    pub head: Option<HeadWait>,
    /// The newest block with a final result of the lane that is to be watched for reorgs.
    pub newest_final: Option<WatchedBlock>,
    /// The rows: folded, at most one write per row.
    pub writes: Writes,
}

/// Which item of a batch could not be written, although this node keeps the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another tx of the lane has this request id (it was queued in the meantime).
    RequestId(RequestId),
    /// Another tx holds this nonce.
    Nonce(Nonce),
    /// A row that should be there is not, or a count is off.
    Rows(String),
}

/// What came of one lane's batch. A failure of one lane never fails the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Durable.
    Applied,
    /// Another node keeps the lane; nothing was written.
    Fenced,
    /// Nothing of this lane was written because of this item.
    Conflict(Conflict),
    /// Another transaction holds a row of this lane: certainly nothing was written, and no other lane waited for it.
    /// [`Store::regrant`] waits.
    Locked,
    /// The store was not reached or refused before it began: certainly nothing was written.
    NotApplied(String),
    /// It may have become durable or not, or may still: only [`Store::regrant`] proves which.
    Unknown(String),
}

/// What came of granting a lane anew to its present keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegrantOutcome {
    /// This node still keeps the lane, and no earlier batch can land any more.
    Held {
        /// The grant from now on.
        lease_grant: LeaseGrant,
        /// How many batches became durable.
        batch_seq: u64,
    },
    /// Another node keeps the lane.
    Fenced,
}

/// A request that is queued in the store by a node that does not keep its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest {
    /// The lane whose keeper is to take it.
    pub lane: LaneKey,
    /// The admitted request.
    pub request: AdmittedRequest,
    /// When it was accepted.
    pub at: Timestamp,
}

impl QueuedRequest {
    /// The row of it. No keeper has written it yet, so its token is 0.
    #[must_use]
    pub fn into_tx(self) -> Tx {
        Tx::created(self.request, Token(0), self.at)
    }
}

/// A lane that has work for a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneWork {
    /// Which lane.
    pub lane: LaneKey,
    /// Whether queued txs wait there for a nonce.
    pub has_queued: bool,
}

/// A lane with a final result that is to be watched for reorgs, and no live keeper that watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwatchedLane {
    /// Which lane.
    pub lane: LaneKey,
    /// The newest block with such a result.
    pub newest: WatchedBlock,
}

/// A page of such lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwatchedLanes {
    /// In the store's order.
    pub lanes: Vec<UnwatchedLane>,
    /// Where the next page starts; `None` at the end. (A page may be short, or empty, before it.)
    pub next: Option<LaneId>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeName,
    /// Its newest incarnation.
    pub incarnation: Incarnation,
    /// Where other nodes reach it.
    pub advertise: Option<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it sent its last heartbeat.
    pub seen_at: Timestamp,
    /// The count of its heartbeats: other nodes take it for silent when the count does not move.
    pub heartbeats: u64,
    /// Whether it drains.
    pub draining: bool,
}

/// What came of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatOutcome {
    /// Written.
    Recorded {
        /// The cluster's nodes, each in its newest incarnation, by name.
        members: Vec<Member>,
        /// The store's history: another one after a standby was promoted, a restore declared, or a loss suspected.
        history: History,
    },
    /// A newer incarnation has replaced this one: nothing was written, and this one must end.
    Replaced,
}

/// How far [`Store::accept_loss`] advances the count of a lane's commits: by more than a store can have lost.
pub const ACCEPTED_LOSS_GAP: u64 = 1_000_000_000;

/// The authority.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The same store for the reads of customers. Where reads share connections, these have their own and a bounded
    /// queue ([`StoreError::Busy`] beyond it), so that however many there are, none of the engine's waits for them.
    fn for_customers(self: Arc<Self>) -> Arc<dyn Store>;

    /// Acquires lanes by the store's clock, many at once (`domain::lease` has the rule). A lane that the store has
    /// never seen is created. Answers in the order given.
    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError>;

    /// Extends leases, skipping locked ones. Answers in the order given.
    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError>;

    /// Releases lanes, so that any node may acquire them at once. Grants that do not hold any more are ignored.
    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError>;

    /// Reads a lane that was granted. `None` when the grant does not hold any more. Its finals are
    /// those whose block lies at most `watch_depth` below the newest of them.
    async fn load(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        watch_depth: u64,
    ) -> Result<Option<LaneImage>, StoreError>;

    /// Reads txs with a nonce and without an attempt, from this nonce on, in nonce order.
    async fn load_backlog(
        &self,
        lane: LaneId,
        from: Nonce,
        limit: usize,
    ) -> Result<Vec<Tx>, StoreError>;

    /// Reads txs that wait for a nonce, oldest first.
    async fn load_queued(&self, lane: LaneId, limit: usize) -> Result<Vec<Tx>, StoreError>;

    /// Stores headers, before the first commit that names one. Unfenced, because they are facts
    /// about the chain that several nodes find at once; stored ones change nothing.
    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError>;

    /// The gate's write. Every batch is applied whole or not at all, and each on its own. Shared, because the caller
    /// goes on with the rest of a batch in which one item conflicts.
    async fn commit(&self, batches: Vec<Arc<LaneBatch>>) -> Vec<CommitOutcome>;

    /// Grants a lane anew to its present keeper: waits for, or kills, any batch in flight. The one
    /// way to resolve [`CommitOutcome::Unknown`].
    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError>;

    /// The txs that have these request ids, in the order given; `None` where there is none.
    async fn find_requests(
        &self,
        requests: &[(LaneKey, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError>;

    /// Queues requests for their lanes' keepers, without nonce or event, with a queue row each. A stored request id
    /// changes nothing. Answers with the txs that have the request ids. A new request is refused where its lane is
    /// halted, or may have lost commits and is not reconciled yet.
    async fn queue_requests(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError>;

    /// Lanes that have open txs or queue rows, and no live keeper other than this node: the lanes that a starting or
    /// surviving node adopts.
    async fn lanes_with_work(
        &self,
        lease_request: &LeaseRequest,
    ) -> Result<Vec<LaneWork>, StoreError>;

    /// Lanes with final results to watch, and no live keeper other than this node: behind this lane, in the store's
    /// order. At most `limit` lanes are examined, and never a finished tx.
    async fn unwatched_lanes(
        &self,
        lease_request: &LeaseRequest,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<UnwatchedLanes, StoreError>;

    /// Writes and counts a heartbeat. The first one of a new incarnation replaces the old incarnation.
    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError>;

    /// Records that a lane agreed with the chain under this history. `false`, and nothing changed, when the store is on
    /// another history by now, or the grant does not hold any more.
    async fn mark_reconciled(
        &self,
        lease_grant: LeaseGrant,
        history: History,
    ) -> Result<bool, StoreError>;

    /// Records that a lane has lost commits, and releases it: no node gets it, and nothing is queued for
    /// it, until an operator accepts the loss. `false`, and nothing changed, when the grant does not hold any more.
    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError>;

    /// Records that the store is older than what a node has seen of it: an undeclared restore. If it is still on this
    /// history, another one begins, so that every lane is unreconciled; the counts and grants of lanes stay. Returns the
    /// present history. It is another one than that in any case, so a repeat, or another node with the same finding,
    /// changes nothing.
    async fn suspect_loss(&self, history: History) -> Result<History, StoreError>;

    /// As [`Store::halt`], by a node that does not keep the lane and has seen `batch_seq` commits of it: where the store
    /// has fewer. The lane is created where it is missing; its present keeper is fenced by the new grant. Returns whether
    /// this call has halted it.
    async fn halt_lost_lane(
        &self,
        lane: LaneKey,
        batch_seq: u64,
        grant: GrantId,
        reason: &str,
    ) -> Result<bool, StoreError>;

    /// An operator accepts a halted lane's lost commits: it may be granted again, and does not halt for them. It is not
    /// reconciled by that: what the lost commits have sent is still to be found. Its commits are counted on from far above
    /// those that were lost ([`ACCEPTED_LOSS_GAP`]), so that no node that has seen those halts it again. Returns whether
    /// it was halted.
    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError>;

    /// Adds the events of these lanes to the feed of all lanes; without lanes: all events that are missing there
    /// because their keeper ended early. Stores that do it inside the gate do nothing here.
    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError>;

    /// The nodes of the cluster.
    async fn members(&self) -> Result<Vec<Member>, StoreError>;

    /// A tx by its id.
    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError>;

    /// A tx by its idempotency key.
    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError>;

    /// A tx by the hash of any of its attempts.
    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError>;

    /// A page of txs. A cursor of another list is [`StoreError::Invalid`].
    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError>;

    /// The events of one tx, oldest first.
    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError>;

    /// A page of the feed.
    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError>;

    /// The txs that the events after this cursor of the feed name, in feed order, a tx once per event; without a
    /// cursor none, and the end of the feed as the cursor. For a node that notifies its waiters.
    async fn changed_txs(&self, after: Option<&str>) -> Result<ChangedTxs, StoreError>;

    /// Those of these lanes that the store has.
    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError>;
}
