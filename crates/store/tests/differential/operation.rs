//! One question to the port, or one thing that happens to a store: the same for all of them.

use std::time::Duration;

use domain::{B256, ChainId, GrantId, Header, LaneId, LaneKey, LeaseGrant, Nonce, RequestId, TxId};
use engine::ports::{EventFilter, LaneBatch, LeaseRequest, Member, QueuedRequest, TxFilter};

/// Lanes' ids in it are places in the universe; each store has its own.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    LeaseCall(LeaseCall),
    Write(Write),
    Load(Load),
    ReadCall(ReadCall),
    Incident(Incident),
}

/// Leases and grants.
#[derive(Clone, Debug)]
pub(crate) enum LeaseCall {
    Acquire(LeaseRequest, Vec<(LaneKey, GrantId)>),
    Renew(LeaseRequest, Vec<LeaseGrant>),
    Release(LeaseRequest, Vec<LeaseGrant>),
    Regrant(LeaseGrant, GrantId),
    MarkReconciled(LeaseGrant),
    Halt(LeaseGrant, String),
    AcceptLoss(LaneKey),
}

/// Writes.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Commit(Vec<LaneBatch>),
    Queue(Vec<QueuedRequest>),
    PutHeaders(ChainId, Vec<Header>),
    ExtendFeed(Vec<LaneId>),
    Heartbeat(Member),
}

/// Reads of keepers.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Image(LaneKey, LeaseGrant, u64),
    Backlog(LaneId, Nonce, usize),
    Queued(LaneId, usize),
    FindRequests(Vec<(LaneKey, RequestId)>),
    LanesWithWork(LeaseRequest),
}

/// Reads of the API.
#[derive(Clone, Debug)]
pub(crate) enum ReadCall {
    Members,
    Tx(TxId),
    TxByRequest(LaneKey, RequestId),
    TxByHash(B256),
    Txs(TxFilter),
    TxEvents(TxId),
    /// The filter's own cursor is left out.
    Events(After, EventFilter),
    Lanes(Vec<LaneKey>),
}

/// Events around a store.
#[derive(Clone, Debug)]
pub(crate) enum Incident {
    /// Its clock moves on.
    Advance(Duration),
    /// A standby with all commits is promoted: the timeline changes.
    Promote,
}

/// Where to read on in the feed.
#[derive(Clone, Debug)]
pub(crate) enum After {
    Start,
    /// The n-th cursor that was returned in this sequence.
    Mark(usize),
    /// A text that is no cursor.
    Nonsense(&'static str),
}
