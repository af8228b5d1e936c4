//! What goes into a lane and what comes out: its inputs, its writes and its effects.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{B256, U256};

use crate::{
    Attempt, ChainView, EffectDigest, Event, Fingerprint, Header, Inclusion, LaneKey, LeaseGrant,
    MonotonicTime, Nonce, Payload, RequestId, SendOutcome, Timestamp, Tx, TxId, UnsignedEnvelope,
    attempt::OutgoingEnvelope,
};

use super::OpenCost;

/// A request that passed admission: new to its lane, gas known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedRequest {
    /// The id that its tx will have.
    pub id: TxId,
    /// The client's idempotency key.
    pub request_id: RequestId,
    /// Digest of the payload as sent.
    pub fingerprint: Fingerprint,
    /// What is to be sent.
    pub payload: Payload,
    /// Gas limit: the request's own, or the estimate made at admission.
    pub gas: u64,
}

/// The account's nonces as an endpoint reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountNonces {
    /// Nonces below this are in blocks.
    pub latest: Nonce,
    /// Nonces below this are in blocks or in the node's pool.
    pub pending: Nonce,
}

/// The account's balance and nonce, of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountBalance {
    /// The block's height.
    pub block: u64,
    /// Nonces below this are mined up to that block.
    pub nonce: Nonce,
    /// In wei, after that block.
    pub balance: U256,
}

/// The account's nonces as all queried endpoints report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointNonces {
    /// Of the endpoint that is queried first.
    pub first: AccountNonces,
    /// Of another one, where it was queried.
    pub second: Option<AccountNonces>,
    /// Of a third one, where the other two contradict each other.
    pub third: Option<AccountNonces>,
    /// Which endpoints stand behind this.
    pub agreement: Agreement,
}

/// Which endpoints stand behind an answer; the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agreement {
    /// One of several, which may be behind the others.
    One,
    /// Every endpoint that is alive: the others have failed for a long time (`chain.deadEndpointAfter`). Enough to fill
    /// gaps, where a mistake costs a fee at most.
    Living,
    /// Two, or the only one that is configured.
    Quorum,
}

/// Which transaction consumed a nonce, in blocks that are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceConsumer {
    /// None: it is not consumed there.
    NotConsumed,
    /// This one.
    Transaction {
        /// Its hash.
        hash: B256,
        /// Its effect.
        effect_digest: EffectDigest,
    },
    /// It is consumed; no node can show by which transaction.
    Unattributed,
}

impl NonceConsumer {
    /// Its hash, when it is known.
    #[must_use]
    pub fn hash(self) -> Option<B256> {
        match self {
            Self::Transaction { hash, .. } => Some(hash),
            Self::NotConsumed | Self::Unattributed => None,
        }
    }
}

/// A nonce of the account that is consumed in a block, and what consumed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedNonce {
    /// The nonce.
    pub nonce: Nonce,
    /// The transaction; `None` where no endpoint can show it.
    pub transaction: Option<MinedTransaction>,
}

/// A transaction of the account in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinedTransaction {
    /// Its hash.
    pub hash: B256,
    /// What it does: recipient, value and data. (Its fees are left out.)
    pub payload: Payload,
}

/// A receipt with the header that proves where its block stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Where and how it was mined.
    pub inclusion: Inclusion,
    /// For a block older than the view: the headers from its block upwards, parent-linked. Empty
    /// for a block inside the view.
    pub above: Vec<Header>,
}

/// Everything that can happen to a lane. The set is closed.
#[derive(Clone, Debug)]
pub enum Input {
    /// A new request.
    Accept(AdmittedRequest),
    /// A page of the txs that wait in the store for a nonce, oldest first.
    Queued {
        /// The rows.
        txs: Vec<Tx>,
        /// Whether the store has more of them.
        more: bool,
    },
    /// A page of the txs in the store that have a nonce and wait for their signature, in nonce order.
    Backlog {
        /// The rows.
        txs: Vec<Tx>,
        /// Whether the store has more of them.
        more: bool,
    },
    /// The signer's answer.
    Signed(Attempt),
    /// The signer refused or failed.
    SigningFailed {
        /// For which nonce.
        nonce: Nonce,
        /// Why.
        reason: String,
        /// Whether trying again can help.
        retryable: bool,
    },
    /// What nodes answered to bytes that were sent.
    Sent {
        /// Which attempt.
        hash: B256,
        /// At which nonce.
        nonce: Nonce,
        /// What came of it.
        outcome: SendOutcome,
    },
    /// Receipts of our hashes, from blocks of the followed chain.
    Receipts(Vec<Receipt>),
    /// Why a mined attempt reverted.
    RevertReason {
        /// The attempt.
        tx_hash: B256,
        /// The reason, for people.
        reason: String,
    },
    /// The chain has a new head, perhaps after a reorg.
    Head(Arc<ChainView>),
    /// The answer to a query for the account's nonces.
    AccountNonces {
        /// The nonces.
        nonces: EndpointNonces,
        /// Whether the first endpoint's pending nonce counts its pool: that of some nodes does not.
        counts_pool: bool,
    },
    /// The answer to a query for the account's balance.
    Balance {
        /// The time before the query.
        queried_at: MonotonicTime,
        /// The balance; `None` when no endpoint answered.
        answer: Option<AccountBalance>,
    },
    /// Which transaction consumed a nonce of ours; with [`NonceConsumer::Unattributed`], no endpoint has a receipt of
    /// any attempt in `hashes`.
    Consumed {
        /// The nonce.
        nonce: Nonce,
        /// The height of the last block that was read. Whether that is final, the lane decides: it may have asked for
        /// another reason than it has now.
        up_to: u64,
        /// The consumer; `None` when no endpoint answered.
        by: Option<NonceConsumer>,
        /// Our attempts whose receipts were queried.
        hashes: Vec<B256>,
        /// Whether a tx of the store has that transaction as its attempt (read where nonces are reserved).
        is_named: bool,
    },
    /// Which transactions consumed nonces that no tx of the store holds, from the lowest that was queried upwards.
    NoncesAttributed {
        /// The height of the last block that was read.
        up_to: u64,
        /// What was found, in nonce order; empty when the first is not consumed up to that block, `None` when too few
        /// endpoints answered.
        found: Option<Vec<ConsumedNonce>>,
    },
    /// Finished txs whose block was reorged out, with their attempts.
    Finals(Vec<(Tx, Vec<Attempt>)>),
    /// Headers at heights below the view, as the node reports them.
    OldHeaders(Vec<Header>),
    /// Another node queued txs for this lane in the store.
    QueueChanged,
    /// Time has passed.
    Tick {
        /// A fresh id, in case the lane must make a tx of its own (a filler).
        fresh: TxId,
    },
    /// An operator pauses or resumes the lane.
    Pause(bool),
}

/// What must become durable, all or nothing, under the fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// New rows.
    pub inserts: Vec<Tx>,
    /// Changed rows, as their full new image. In no order: a nonce that one of them gives up, no other takes here.
    pub updates: Vec<Tx>,
    /// New attempts.
    pub attempts: Vec<Attempt>,
    /// Attempts that a node has accepted, and when.
    pub first_sent: Vec<(B256, Timestamp)>,
    /// Events, in order, without a hole.
    pub events: Vec<Event>,
    /// Txs that wait without a nonce from now on.
    pub queued_added: Vec<TxId>,
    /// Txs that wait no longer.
    pub queued_removed: Vec<TxId>,
    /// The lane's paused flag, when it changed.
    pub paused: Option<bool>,
}

/// What is to be done once the writes are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send these bytes to the nodes, in nonce order.
    Send(OutgoingEnvelope),
    /// Watch this hash, of a transaction made elsewhere.
    Watch(B256),
    /// Stop watching this hash.
    Unwatch(B256),
    /// Read the next txs that wait for their signature.
    LoadBacklog {
        /// From this nonce on.
        from: Nonce,
        /// The most rows.
        limit: u64,
    },
    /// Read the next txs that wait for a nonce.
    LoadQueued {
        /// The most rows.
        limit: u64,
    },
    /// Query the account's nonces.
    QueryChainNonces {
        /// Whether a second endpoint must agree.
        twice: bool,
        /// The lowest attempt that a node accepted: an endpoint that has it, and whose pending nonce is not above
        /// it, does not count its pool.
        taken: Option<(Nonce, B256)>,
    },
    /// Find the transaction that consumed a nonce, in blocks up to this one.
    FindConsumer {
        /// The nonce.
        nonce: Nonce,
        /// The last block to read.
        up_to: Header,
        /// Our attempts at it.
        hashes: Vec<B256>,
    },
    /// Query the account's balance.
    QueryBalance,
    /// Find the transactions that consumed these nonces, in blocks up to a final one.
    AttributeNonces {
        /// The nonces.
        nonces: Range<u64>,
        /// The final block.
        up_to: Header,
    },
    /// Fetch the receipts of these hashes.
    FetchReceipts(Vec<B256>),
    /// Fetch the headers at these heights, which are below the view.
    FetchHeaders(Vec<u64>),
    /// Read these finished txs again: their block was reorged out.
    LoadFinals(Vec<TxId>),
    /// Record that nothing of the lane that the store may have lost is open any more.
    MarkReconciled,
    /// Halt the lane, durably, until an operator accepts what it has lost; the reason, for people.
    Halt(String),
}

/// The result of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be committed.
    pub writes: Writes,
    /// Headers that these writes name: facts about the chain, stored before the commit.
    pub headers: Vec<Header>,
    /// Envelopes to sign: a local key signs before the commit, a remote one after it. Each answer comes back
    /// as an input.
    pub to_sign: Vec<UnsignedEnvelope>,
    /// To be done once the writes are durable.
    pub effects: Vec<Effect>,
}

/// A lane as the store has it, read after it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneImage {
    /// Which lane.
    pub key: LaneKey,
    /// The grant under which it is kept.
    pub lease_grant: LeaseGrant,
    /// The cursor: the next nonce that was never allocated.
    pub next_nonce: Nonce,
    /// The sequence number of the last event.
    pub event_seq: u64,
    /// How many batches became durable.
    pub batch_seq: u64,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Open txs that have attempts, with them, in nonce order.
    pub in_flight: Vec<(Tx, Vec<Attempt>)>,
    /// The lowest nonce of an open tx without an attempt.
    pub backlog_from: Option<Nonce>,
    /// The nonces that open txs hold, as ranges in order.
    pub held: Vec<Range<u64>>,
    /// Every nonce below this that is not held was consumed by a tx that is finished.
    pub consumed_below: Nonce,
    /// What else the store has about its open txs.
    pub open: OpenSummary,
    /// Rows about what is mined.
    pub mined: MinedRows,
}

/// The rows of a lane about what is mined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinedRows {
    /// Finished txs that may still be reorged out, in nonce order.
    pub finals: Vec<FinalTx>,
    /// Transactions on chain that no tx recorded ([`UNRECORDED_PREFIX`](super::UNRECORDED_PREFIX)), by request id; at most
    /// one more than [`UNRECORDED_MAX`](super::UNRECORDED_MAX).
    pub unrecorded: Vec<Tx>,
}

/// What the store has about the open txs of a lane, besides their rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSummary {
    /// How many wait for a nonce.
    pub queued: u64,
    /// What all of them can cost that a keeper has seen.
    pub cost: OpenCost,
    /// What the lowest unmined one waits for.
    pub head: Option<HeadWait>,
    /// The headers that were reported as confirmations of those in flight, of any branch.
    pub reported: Vec<Header>,
}

/// What the lane's lowest unmined tx waits for: part of the lane's row, so that it costs no row of a tx and every node
/// finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadWait {
    /// Its nonce.
    pub nonce: Nonce,
    /// How long it has been the head, as far as `lane.blockedTimeout` counts it.
    pub blocked_for: Duration,
    /// Why it is not mined, for people; `None` while nothing is wrong.
    pub reason: Option<String>,
}

impl HeadWait {
    /// What readers see of it.
    #[must_use]
    pub fn into_lane_wait(self) -> Option<LaneWait> {
        let Self { nonce, reason, .. } = self;
        reason.map(|reason| LaneWait { nonce, reason })
    }
}

/// Why a lane makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneWait {
    /// Its lowest unmined nonce.
    pub nonce: Nonce,
    /// The reason, for people.
    pub reason: String,
}

/// A block that holds a final result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedBlock {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
}

/// A finished tx and the block that made it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalTx {
    /// Its id.
    pub id: TxId,
    /// Its nonce, which it holds.
    pub nonce: Nonce,
    /// Height of its block.
    pub block_number: u64,
    /// Its block.
    pub block_hash: B256,
}
