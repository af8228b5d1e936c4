//! The authority: leases, lanes, txs and events. Shaped by PostgreSQL; every backend runs one suite.
//!
//! Every critical write goes through [`Store::commit`]; the only unfenced one is [`Store::queue`].

use std::time::Duration;

use async_trait::async_trait;
use domain::lane::AdmittedRequest;
use domain::lease::Lease;
pub use domain::lease::LeaseRequest;
use domain::{
    Address, Attempt, B256, ChainId, Event, GrantId, Header, Incarnation, LaneId, LaneImage,
    LaneKey, LeaseGrant, NodeName, Nonce, RequestId, Timestamp, Token, Tx, TxId, TxState, Writes,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why the store gave no answer. Nothing of what was asked has happened, except where
/// [`CommitOutcome::Unknown`] says otherwise.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// Not reachable, or too busy.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// What it holds cannot be read.
    #[error("the store holds what cannot be read: {0}")]
    Corrupt(String),
    /// The question itself is wrong (a cursor of another store, for example).
    #[error("{0}")]
    Invalid(String),
    /// The lane takes no work until an operator decides; certainly nothing was written.
    #[error("the lane is halted: {0}")]
    Halted(String),
    /// The store's history changed, and the lane was not compared with its chain yet; certainly nothing was
    /// written. Whoever takes the lane compares it, so a repeat is taken soon.
    #[error("the lane takes nothing for a moment: {0}")]
    Unsettled(String),
}

/// What came of asking for a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Granted, with a new grant. What the lane holds must be read *after* this, in another call.
    Granted {
        /// What to show from now on.
        lease_grant: LeaseGrant,
        /// Who held it before, when it changed hands.
        previous_keeper: Option<NodeName>,
        /// Whether the store's history is still the one under which the lane was last settled. If not
        /// (a standby was promoted), its last commits may be gone: compare it with the chain, then
        /// [`Store::mark_reconciled`] it.
        is_reconciled: bool,
    },
    /// Another node holds it.
    NotKeeper {
        /// The lease as it stands.
        lease: Lease,
        /// How long it lasts by the store's clock; zero when it is over.
        left: Duration,
    },
    /// It takes no work until an operator accepts what it has lost; why, in words.
    Halted(String),
    /// Its rows were locked by somebody: try again soon. Says nothing about ownership.
    Busy,
}

/// What came of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Extended from now.
    Renewed,
    /// Its row was locked by somebody: try again soon. Says nothing about ownership.
    Busy,
    /// It is not ours any more.
    Lost,
}

/// Everything that one lane writes in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBatch {
    /// The right to write; checked by the fence.
    pub lease_grant: LeaseGrant,
    /// How many batches memory knows of. It is part of the fence: a store that lost commits has
    /// another number. This batch is the next one, so a lost answer can be asked for.
    pub batch_seq_before: u64,
    /// Who writes.
    pub node: NodeName,
    /// When.
    pub at: Timestamp,
    /// The last event sequence number that memory knows; part of the fence too.
    pub event_seq_before: u64,
    /// The cursor after this batch.
    pub next_nonce: Nonce,
    /// After this batch no open tx has a nonce below this one; the cursor when none is open.
    pub floor_nonce: Nonce,
    /// The rows: folded, at most one write per row.
    pub writes: Writes,
}

/// Which item of a batch could not be written, although the lane is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another tx of the lane has this request id (it was queued in the meantime).
    RequestId(RequestId),
    /// Another tx holds this nonce.
    Nonce(Nonce),
    /// A row that should be there is not, or a count is off.
    Rows(String),
}

/// What came of one lane's batch. One lane's trouble never fails its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Durable.
    Applied,
    /// The lane is not ours any more; nothing was written.
    Fenced,
    /// Nothing of this lane was written because of this item.
    Conflict(Conflict),
    /// Somebody holds a row of this lane: certainly nothing was written, and no other lane waited for it.
    /// [`Store::regrant`] waits.
    Locked,
    /// The store was not reached or refused before it began: certainly nothing was written.
    NotApplied(String),
    /// It may have become durable or not, or may still: only [`Store::regrant`] can tell.
    Unknown(String),
}

/// What came of granting a lane anew to its present keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegrantOutcome {
    /// Still ours. No earlier batch can land any more.
    Held {
        /// The right from now on.
        lease_grant: LeaseGrant,
        /// How many batches became durable.
        batch_seq: u64,
    },
    /// Not ours any more.
    Fenced,
}

/// A request that is put into the store by a node that is not keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest {
    /// Which lane.
    pub lane: LaneKey,
    /// What was asked.
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

/// A tx with all that belongs to it, for readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxRecord {
    /// Its lane.
    pub lane: LaneKey,
    /// The row.
    pub tx: Tx,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The headers from its block up to the newest counted one, parent-linked, oldest first.
    pub confirmations: Vec<Header>,
}

/// Which txs to list; newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxFilter {
    /// Only of this chain.
    pub chain_id: Option<ChainId>,
    /// Only of this signer.
    pub signer: Option<Address>,
    /// Only in this state.
    pub state: Option<TxState>,
    /// Continue after this tx (towards older ones).
    pub after: Option<TxId>,
    /// At most so many.
    pub limit: usize,
}

/// A page of txs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPage {
    /// The txs, newest first.
    pub txs: Vec<TxRecord>,
    /// Where the next page starts; `None` at the end. (A filtered page may be short before it.)
    pub next: Option<TxId>,
}

/// A lane as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRecord {
    /// Which lane.
    pub key: LaneKey,
    /// Who holds it, also when it has run out.
    pub lease: Option<Lease>,
    /// The next nonce that was never dealt.
    pub next_nonce: Nonce,
    /// Stopped by an operator.
    pub paused: bool,
    /// Why it takes no work until an operator decides.
    pub halted: Option<String>,
    /// Open txs with a nonce.
    pub in_flight: u64,
    /// Txs that wait for a nonce.
    pub queued: u64,
}

impl LaneRecord {
    /// A lane that was configured and never used.
    #[must_use]
    pub fn unused(key: LaneKey) -> Self {
        Self {
            key,
            lease: None,
            next_nonce: Nonce(0),
            paused: false,
            halted: None,
            in_flight: 0,
            queued: 0,
        }
    }
}

/// An event with what its row adds, for readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Its lane.
    pub lane: LaneKey,
    /// Who wrote it.
    pub node: NodeName,
    /// Under which token.
    pub token: Token,
    /// What happened.
    pub event: Event,
    /// For kinds that name a counted header: the headers from the tx's block up to it.
    pub confirmations: Vec<Header>,
    /// The feed's cursor after this event: reading on from here neither repeats nor skips.
    pub cursor: String,
}

/// Which events to read, in feed order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// An opaque cursor of this store; `None` starts with the oldest retained event.
    pub after: Option<String>,
    /// Only of this chain.
    pub chain_id: Option<ChainId>,
    /// Only of this signer.
    pub signer: Option<Address>,
    /// Only of these kinds, by their words; empty is all.
    pub kinds: Vec<String>,
    /// At most so many.
    pub limit: usize,
}

/// A page of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// In feed order: per lane without a hole (before filtering).
    pub events: Vec<EventRecord>,
    /// The cursor after this page; equal to the one asked with at the end of the feed.
    pub next: String,
}

/// A lane that somebody must take care of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which lane.
    pub lane: LaneKey,
    /// Whether txs wait there without a nonce.
    pub has_queued: bool,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeName,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Where other nodes reach it.
    pub advertise: Option<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last said that it lives.
    pub seen_at: Timestamp,
    /// How often it said so: a number that stands still is a node that does.
    pub heartbeats: u64,
    /// Whether it is on its way out.
    pub draining: bool,
}

/// What a heartbeat tells the node that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatOutcome {
    /// Written.
    Taken {
        /// The cluster's nodes, each in its newest life, by name.
        members: Vec<Member>,
        /// Which history of the store this is: another one after a standby was promoted.
        history: u64,
    },
    /// Another life of this node has replaced it: nothing was written, and this one must end.
    Replaced,
}

/// The authority.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Asks for lanes: the seeds' algorithm, by the store's clock, for many lanes at once. A lane
    /// that the store has never seen is made. Answers in the order asked.
    async fn acquire(
        &self,
        lease_request: &LeaseRequest,
        lanes: &[(LaneKey, GrantId)],
    ) -> Result<Vec<AcquireOutcome>, StoreError>;

    /// Extends leases, skipping locked ones. Answers in the order asked.
    async fn renew(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<Vec<RenewOutcome>, StoreError>;

    /// Gives lanes back, so that anyone may take them at once. Those that are not ours any more
    /// are left alone.
    async fn release(
        &self,
        lease_request: &LeaseRequest,
        lease_grants: &[LeaseGrant],
    ) -> Result<(), StoreError>;

    /// Reads a lane that was granted. `None` when the right does not hold any more. Its finals are
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

    /// Remembers headers, before the first commit that names one. Unfenced, because they are facts
    /// about the chain that several nodes find at once; known ones change nothing.
    async fn put_headers(&self, chain: ChainId, headers: &[Header]) -> Result<(), StoreError>;

    /// The gate. Every batch is applied whole or not at all, and each on its own.
    async fn commit(&self, batches: Vec<LaneBatch>) -> Vec<CommitOutcome>;

    /// Grants a lane anew to its present keeper: waits for, or kills, any batch under way. The one
    /// way to resolve [`CommitOutcome::Unknown`].
    async fn regrant(
        &self,
        lease_grant: LeaseGrant,
        grant: GrantId,
    ) -> Result<RegrantOutcome, StoreError>;

    /// Which of these request ids the lanes know already.
    async fn find_requests(
        &self,
        requests: &[(LaneId, RequestId)],
    ) -> Result<Vec<Option<Tx>>, StoreError>;

    /// The one unfenced write: puts requests into the store without nonce or event, with a wake
    /// row each. A known request id changes nothing. Answers with the tx that has the request id. What is
    /// new is refused where a lane is halted, or may have lost commits and is not settled yet.
    async fn queue(&self, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>, StoreError>;

    /// Lanes that have open work or wake rows, and no live keeper other than the asker: what a
    /// starting or surviving node must take care of.
    async fn lanes_with_work(&self, lease_request: &LeaseRequest) -> Result<Vec<Work>, StoreError>;

    /// Says that this node lives, and counts it. The first heartbeat of a new life replaces the old.
    async fn heartbeat(&self, member: &Member) -> Result<HeartbeatOutcome, StoreError>;

    /// Records that a lane agrees with the chain under the store's present history.
    async fn mark_reconciled(&self, lease_grant: LeaseGrant) -> Result<(), StoreError>;

    /// Records that a lane has lost commits, and gives it back: nobody gets it, and nothing is queued for
    /// it, until an operator accepts the loss. `false`, and nothing changed, when the right is over.
    async fn halt(&self, lease_grant: LeaseGrant, reason: &str) -> Result<bool, StoreError>;

    /// An operator accepts what a lane has lost: it is settled as it is. Whether it was halted.
    async fn accept_loss(&self, lane: LaneKey) -> Result<bool, StoreError>;

    /// Puts what these lanes wrote into the feed of all lanes; without lanes: whatever is missing there
    /// because a keeper ended before it said so. Stores that do it inside the gate do nothing here.
    async fn extend_feed(&self, lanes: &[LaneId]) -> Result<(), StoreError>;

    /// The nodes of the cluster.
    async fn members(&self) -> Result<Vec<Member>, StoreError>;

    /// A tx by its id.
    async fn tx(&self, id: TxId) -> Result<Option<TxRecord>, StoreError>;

    /// A tx by the key of the business.
    async fn tx_by_request(
        &self,
        lane: LaneKey,
        request_id: &RequestId,
    ) -> Result<Option<TxRecord>, StoreError>;

    /// A tx by the hash of any of its attempts.
    async fn tx_by_hash(&self, hash: B256) -> Result<Option<TxRecord>, StoreError>;

    /// A page of txs.
    async fn txs(&self, filter: &TxFilter) -> Result<TxPage, StoreError>;

    /// The events of one tx, oldest first.
    async fn tx_events(&self, id: TxId) -> Result<Option<Vec<EventRecord>>, StoreError>;

    /// A page of the feed.
    async fn events(&self, filter: &EventFilter) -> Result<EventPage, StoreError>;

    /// The lanes that the store knows among these.
    async fn lanes(&self, keys: &[LaneKey]) -> Result<Vec<LaneRecord>, StoreError>;
}
