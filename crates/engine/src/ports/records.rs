//! What readers get from the store: txs, lanes and events, with filters and pages.

use domain::lane::LaneWait;
use domain::lease::Lease;
use domain::{
    Address, Attempt, ChainId, Event, Header, LaneKey, NodeName, Nonce, Token, Tx, TxId, TxState,
};

/// A tx with all that belongs to it, for readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxRecord {
    /// Its lane.
    pub lane: LaneKey,
    /// The row.
    pub tx: Tx,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The headers from its block up to the newest counted one, parent-linked, oldest first.
    pub confirmations: Vec<Header>,
    /// Why its lane makes no progress, when it was read.
    pub lane_wait: Option<LaneWait>,
}

/// Which txs to list: newest first, or lane by lane ([`TxFilter::is_by_lane`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxFilter {
    /// Only of this chain.
    pub chain_id: Option<ChainId>,
    /// Only of this signer.
    pub signer: Option<Address>,
    /// Only in this state.
    pub state: Option<TxState>,
    /// Continue there.
    pub after: Option<TxCursor>,
    /// At most so many.
    pub limit: usize,
}

impl TxFilter {
    /// Whether the list goes lane by lane: the txs of one signer, and the txs in a state that is not final. Both are
    /// found by the keys of their lanes, where a list of all txs would be read to find few.
    #[must_use]
    pub fn is_by_lane(&self) -> bool {
        self.signer.is_some() || self.state.is_some_and(|state| !state.is_terminal())
    }

    /// Whether a cursor is a place in this list.
    #[must_use]
    pub fn has_place(&self, cursor: TxCursor) -> bool {
        match cursor {
            TxCursor::After(_) => !self.is_by_lane(),
            TxCursor::InLane(lane, _) => self.is_by_lane() && self.has_lane(lane),
        }
    }

    /// Whether txs of this lane are listed.
    #[must_use]
    pub fn has_lane(&self, lane: LaneKey) -> bool {
        self.chain_id.is_none_or(|id| id == lane.chain_id)
            && self.signer.is_none_or(|signer| signer == lane.signer)
    }
}

/// Where a list of txs continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxCursor {
    /// After this tx, towards older ones.
    After(TxId),
    /// In a list that goes lane by lane, in an order of the store: after this place of this lane.
    InLane(LaneKey, LanePlace),
}

/// A place among the txs of a lane. Those without a nonce come first, the newest first; then the others, the highest
/// nonce first. So a tx that gets its nonce while the list is read is not missed (it may be listed twice).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanePlace {
    /// At this tx, which has no nonce.
    WithoutNonce(TxId),
    /// At the tx with this nonce.
    WithNonce(Nonce),
}

impl LanePlace {
    /// Behind all txs of the lane.
    pub const END: Self = Self::WithNonce(Nonce(0));

    /// The place of a tx.
    #[must_use]
    pub fn of(id: TxId, nonce: Option<Nonce>) -> Self {
        nonce.map_or(Self::WithoutNonce(id), Self::WithNonce)
    }
}

/// A page of txs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPage {
    /// The txs, in the order of the list.
    pub txs: Vec<TxRecord>,
    /// Where the next page starts; `None` at the end. (A filtered page may be short, or empty, before it.)
    pub next: Option<TxCursor>,
}

/// A lane as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRecord {
    /// Which lane.
    pub key: LaneKey,
    /// Its lease, also when it has expired.
    pub lease: Option<Lease>,
    /// The next nonce that was never allocated.
    pub next_nonce: Nonce,
    /// How many commits it has.
    pub batch_seq: u64,
    /// Stopped by an operator.
    pub paused: bool,
    /// Why it takes no work until an operator decides.
    pub halted: Option<String>,
    /// Why it makes no progress, as its keeper last wrote it.
    pub wait: Option<LaneWait>,
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
            batch_seq: 0,
            paused: false,
            halted: None,
            wait: None,
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
    /// The node that wrote it.
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
    /// Only of these kinds, by name; empty is all.
    pub kinds: Vec<String>,
    /// At most so many.
    pub limit: usize,
}

/// A page of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// In feed order: per lane without a hole (before filtering).
    pub events: Vec<EventRecord>,
    /// The cursor after this page; at the end of the feed the one that was passed in.
    pub next: String,
}

/// A page of the feed, reduced to the txs that its events name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedTxs {
    /// In feed order.
    pub txs: Vec<TxId>,
    /// The cursor after this page; at the end of the feed the one that was passed in.
    pub next: String,
}
