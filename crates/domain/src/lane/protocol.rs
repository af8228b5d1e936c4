//! What goes into a lane and what comes out: its inputs, its writes and its effects.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;

use super::reserve::ReservationRules;
use crate::window::{Depth, Window};
use crate::{
    Attempt, ChainView, EffectDigest, Event, FeeRules, Fingerprint, Header, Inclusion, LaneKey,
    LeaseGrant, Nonce, Payload, RequestId, SendOutcome, Timestamp, Tx, TxId, UnsignedEnvelope,
    attempt::OutgoingEnvelope,
};

/// A request that passed the door: new to its lane, gas known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedRequest {
    /// The name it will have.
    pub id: TxId,
    /// The key of the business.
    pub request_id: RequestId,
    /// Digest of the payload as sent.
    pub fingerprint: Fingerprint,
    /// What was asked.
    pub payload: Payload,
    /// Gas limit: asked for, or estimated at the door.
    pub gas: u64,
}

/// What the chain says of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountNonces {
    /// Nonces below this are in blocks.
    pub latest: Nonce,
    /// Nonces below this are in blocks or in the node's pool.
    pub pending: Nonce,
}

/// What endpoints say of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointNonces {
    /// The endpoint that is asked first.
    pub first: AccountNonces,
    /// Another one, where it was asked.
    pub second: Option<AccountNonces>,
    /// Whether as many answered as a doubt needs: two, or the only one.
    pub is_complete: bool,
}

/// Whose transaction consumed a nonce, in blocks that are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceConsumer {
    /// Nobody's: it is not consumed there.
    Nobody,
    /// This one.
    By {
        /// Its hash.
        hash: B256,
        /// What it did.
        effect_digest: EffectDigest,
    },
    /// It is consumed; no node can show by which transaction.
    Unseen,
}

impl NonceConsumer {
    /// Its hash, when it is known.
    #[must_use]
    pub fn hash(self) -> Option<B256> {
        match self {
            Self::By { hash, .. } => Some(hash),
            Self::Nobody | Self::Unseen => None,
        }
    }
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
    /// Txs that wait in the store without a nonce, oldest first; `more` when there are others.
    Queued {
        /// The rows.
        txs: Vec<Tx>,
        /// Whether the store has more of them.
        more: bool,
    },
    /// Txs from the store that have a nonce and wait for their signature, in nonce order.
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
    /// What nodes said of bytes that were handed out.
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
    /// The chain moved on (or back).
    Head(Arc<ChainView>),
    /// What the chain says of the account.
    AccountNonces {
        /// The nonces.
        nonces: EndpointNonces,
        /// Whether the first endpoint's pending nonce counts what waits in its pool: some nodes' does not.
        counts_pool: bool,
    },
    /// Who consumed a nonce of ours at final depth; with [`NonceConsumer::Unseen`], no endpoint has a receipt
    /// of any attempt that was asked about.
    Consumed {
        /// The nonce.
        nonce: Nonce,
        /// Who; `None` when nobody answered.
        by: Option<NonceConsumer>,
        /// Our attempts that were asked about.
        hashes: Vec<B256>,
        /// Whether a tx of the store has that transaction as its attempt (asked where nonces are lent).
        is_named: bool,
    },
    /// Finished txs that a fork may have taken back, with their attempts.
    Finals(Vec<(Tx, Vec<Attempt>)>),
    /// What stands at heights below the view, as the node tells it.
    OldHeaders(Vec<Header>),
    /// Txs were put into the store for this lane.
    QueueChanged,
    /// Time has passed.
    Tick {
        /// A fresh name, in case the lane must make a tx of its own (a filler).
        fresh: TxId,
    },
    /// An operator stops or resumes the lane.
    Pause(bool),
}

/// What must become durable, all or nothing, under the fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// New rows.
    pub inserts: Vec<Tx>,
    /// Changed rows, as their full new image. In no order: what one of them leaves, no other takes in the same writes.
    pub updates: Vec<Tx>,
    /// New attempts.
    pub attempts: Vec<Attempt>,
    /// Attempts that a node has taken, and when.
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

/// What is to be done once the writes are durable (signing: before, see the gate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Have this signed; the answer comes back as an input.
    Sign(UnsignedEnvelope),
    /// Hand these bytes to the nodes, in nonce order.
    Send(OutgoingEnvelope),
    /// This hash, of a transaction made elsewhere, is to be watched.
    Watch(B256),
    /// This hash needs no watching any more.
    Unwatch(B256),
    /// Read the next txs that wait for their signature.
    LoadBacklog {
        /// From this nonce on.
        from: Nonce,
        /// At most so many.
        limit: u64,
    },
    /// Read the next txs that wait for a nonce.
    LoadQueued {
        /// At most so many.
        limit: u64,
    },
    /// Ask the chain for the account's nonces.
    QueryChainNonces {
        /// Whether a second endpoint must say so too.
        twice: bool,
        /// The lowest attempt that a node took: one that has it, and whose pending nonce is not above it,
        /// does not count its pool.
        taken: Option<(Nonce, B256)>,
    },
    /// Find out who consumed a nonce, in blocks up to a final one.
    FindConsumer {
        /// The nonce.
        nonce: Nonce,
        /// The final block.
        up_to: Header,
        /// Our attempts at it.
        hashes: Vec<B256>,
    },
    /// Ask the chain for receipts of these hashes.
    FetchReceipts(Vec<B256>),
    /// Ask the chain what stands at these heights, which are below the view.
    FetchHeaders(Vec<u64>),
    /// Read these finished txs again: a fork took their block back.
    LoadFinals(Vec<TxId>),
    /// Write down that nothing of the lane that the store may have lost is open any more.
    MarkReconciled,
}

/// What one step gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be committed.
    pub writes: Writes,
    /// Headers that these writes name: facts about the chain, stored before the commit.
    pub headers: Vec<Header>,
    /// To be done after that.
    pub effects: Vec<Effect>,
}

/// When a block's results are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// So many headers stand on it.
    Depth(u64),
    /// The chain itself says so, by its `safe` or `finalized` block.
    Tag(FinalityTag),
}

/// A block that the chain itself marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalityTag {
    /// Unlikely to be taken back.
    Safe,
    /// Never taken back.
    Finalized,
}

/// Another transaction at our nonce counts only this deep, even where less makes a result final.
pub const FOREIGN_DEPTH_MIN: u64 = 12;

/// How far below the view blocks are asked about.
pub const OLD_DEPTH_MAX: u64 = 1_024;

impl Finality {
    /// How many headers stand on a final block; 0 where the chain itself decides.
    #[must_use]
    pub fn depth(self) -> u64 {
        match self {
            Self::Depth(depth) => depth,
            Self::Tag(_) => 0,
        }
    }
}

/// When and how the lane's head is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resubmit {
    /// After how long without being mined; `None` is never.
    pub interval: Option<Duration>,
    /// With the same bytes, or with more money.
    pub policy: ResubmitPolicy,
    /// After how many times a decision is needed; `None` is never.
    pub max_attempts: Option<u32>,
}

/// What is sent when a tx waits too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResubmitPolicy {
    /// The same bytes.
    Rebroadcast,
    /// A new attempt at the same nonce that pays more.
    Bump {
        /// How much more, at least.
        percent: u128,
        /// The most that a bump may offer per gas.
        max_fee: u128,
    },
}

/// What becomes of a tx whose nonce somebody else has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnForeignNonce {
    /// It gets a new nonce, at the end.
    Requeue,
    /// It is STUCK until somebody decides.
    Hold,
}

/// How the chain's opinion of the account's nonce is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainQuery {
    /// With what waits in the node's pool.
    Pending,
    /// Mined only.
    Latest,
    /// Not at all: the store's cursor is all there is.
    Off,
}

/// The rules of one lane, from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRules {
    /// How many nonces may be dealt at once.
    pub window: Window,
    /// How many attempts may be out at once.
    pub depth: Depth,
    /// What may be offered.
    pub fee: FeeRules,
    /// When a block's results are final.
    pub finality: Finality,
    /// How deep finals are still watched for forks.
    pub watch_depth: u64,
    /// Whether confirmations are told on the way, or only at the end.
    pub emit_progress: bool,
    /// Whether receipts of everything that is out are asked for when a lane is read.
    pub fetch_receipt_upon_entry: bool,
    /// When and how the lane's head is sent again.
    pub resubmit: Resubmit,
    /// What becomes of a tx whose nonce somebody else has consumed.
    pub on_foreign_nonce: OnForeignNonce,
    /// How its nonces are lent, when the key is elsewhere; `None`: it sends by itself.
    pub lent: Option<ReservationRules>,
    /// After how long a gap that blocks others is filled.
    pub gap_fill_after: Duration,
    /// The farthest jump of the chain's nonce over our cursor that is taken without an operator.
    pub max_chain_jump: u64,
    /// How the chain is asked.
    pub chain_query: ChainQuery,
    /// How old the knowledge of the chain's nonce may get while the lane has work.
    pub chain_nonce_timeout: Duration,
    /// After how long without a receipt the chain is asked about a sent tx by itself.
    pub stale_receipt_timeout: Duration,
}

/// A lane as the store knows it, read after it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneImage {
    /// Which lane.
    pub key: LaneKey,
    /// The right under which it is held.
    pub lease_grant: LeaseGrant,
    /// The next nonce that was never dealt.
    pub next_nonce: Nonce,
    /// The sequence number of the last event.
    pub event_seq: u64,
    /// How many batches became durable.
    pub batch_seq: u64,
    /// Stopped by an operator.
    pub paused: bool,
    /// Open txs that have attempts, with them, in nonce order.
    pub in_flight: Vec<(Tx, Vec<Attempt>)>,
    /// The lowest nonce of an open tx without an attempt.
    pub backlog_from: Option<Nonce>,
    /// The nonces that open txs hold, as ranges in order.
    pub held: Vec<Range<u64>>,
    /// Every nonce below this that is not held was consumed by a tx that is finished.
    pub consumed_below: Nonce,
    /// How many txs wait for a nonce.
    pub queued: u64,
    /// Finished txs that a fork may still take back, in nonce order.
    pub finals: Vec<FinalTx>,
}

/// A finished tx and the block that made it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalTx {
    /// Its name.
    pub id: TxId,
    /// Height of its block.
    pub block_number: u64,
    /// Its block.
    pub block_hash: B256,
}
