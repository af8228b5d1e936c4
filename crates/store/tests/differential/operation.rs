//! One question to the port, or one thing that happens to a store: the same for all of them.

use std::time::Duration;

use domain::{B256, ChainId, GrantId, Header, LaneId, LaneKey, LeaseGrant, Nonce, RequestId, TxId};
use engine::ports::{EventFilter, LaneBatch, LeaseRequest, Member, QueuedRequest, TxFilter};

/// Lanes' ids in it are places in the universe; each store has its own.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Hold(Hold),
    Write(Write),
    Load(Load),
    Look(Look),
    Happen(Happen),
}

/// Who may write.
#[derive(Clone, Debug)]
pub(crate) enum Hold {
    Acquire(LeaseRequest, Vec<(LaneKey, GrantId)>),
    Renew(LeaseRequest, Vec<LeaseGrant>),
    Release(LeaseRequest, Vec<LeaseGrant>),
    Regrant(LeaseGrant, GrantId),
    Settle(LeaseGrant),
    Halt(LeaseGrant, String),
    AcceptLoss(LaneKey),
}

/// What is written.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Commit(Vec<LaneBatch>),
    Queue(Vec<QueuedRequest>),
    PutHeaders(ChainId, Vec<Header>),
    ExtendFeed(Vec<LaneId>),
    Heartbeat(Member),
}

/// What keepers read.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Image(LaneKey, LeaseGrant, u64),
    Backlog(LaneId, Nonce, usize),
    Queued(LaneId, usize),
    FindRequests(Vec<(LaneId, RequestId)>),
    LanesWithWork(LeaseRequest),
}

/// What people read.
#[derive(Clone, Debug)]
pub(crate) enum Look {
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

/// What happens around a store.
#[derive(Clone, Debug)]
pub(crate) enum Happen {
    /// Its clock moves on.
    Advance(Duration),
    /// A standby that has everything takes over: the history is another one.
    Promote,
}

/// Where to read on in the feed.
#[derive(Clone, Debug)]
pub(crate) enum After {
    Start,
    /// The n-th cursor that this sequence was told.
    Mark(usize),
    /// A text that is no cursor.
    Nonsense(&'static str),
}
