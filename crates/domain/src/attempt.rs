//! One signed envelope for a tx at its nonce, and what nodes answered to it.

use alloy_primitives::{Address, B256, Bytes, U256};
use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::{ChainId, Fees, MonotonicTime, Nonce, Timestamp, TxId};

/// Why an attempt exists. The kind that is mined decides the result.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum AttemptKind {
    /// The first envelope of the payload.
    Original,
    /// The same payload with higher fees, or with more gas where it had too little.
    Bump,
    /// A self-transfer that takes the nonce from the payload.
    Cancel,
    /// Another payload at the same nonce.
    Replace,
    /// A no-op self-transfer at a nonce that no tx holds, so that the lane can go on.
    Filler,
}

impl AttemptKind {
    /// Every kind, in the order of their stored numbers: append only.
    pub const ALL: [Self; Self::COUNT] = *Self::VARIANTS.first_chunk().expect("all of them");

    /// Its name in SQL, JSON and docs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An envelope ready for the signer. Complete: signing adds nothing but the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedEnvelope {
    /// The tx it serves. (A filler serves a tx of Lanekeeper's own.)
    pub tx_id: TxId,
    /// Why it is made.
    pub kind: AttemptKind,
    /// The chain it is bound to.
    pub chain_id: ChainId,
    /// The account that signs.
    pub signer: Address,
    /// Its place in the account's order.
    pub nonce: Nonce,
    /// Recipient; `None` deploys.
    pub to: Option<Address>,
    /// Wei to move.
    pub value: U256,
    /// Call data or init code.
    pub data: Bytes,
    /// Gas limit.
    pub gas: u64,
    /// What it offers to pay.
    pub fees: Fees,
}

/// A signed envelope. Committed before its first byte leaves the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its hash on chain, known before it is sent.
    pub hash: B256,
    /// The tx it serves. (A filler serves a tx of Lanekeeper's own.)
    pub tx_id: TxId,
    /// Why it exists.
    pub kind: AttemptKind,
    /// Its place in the account's order. It stays, even when its tx gives the nonce up.
    pub nonce: Nonce,
    /// Gas limit.
    pub gas: u64,
    /// What it offers to pay.
    pub fees: Fees,
    /// The exact bytes that go to nodes.
    pub raw: Bytes,
    /// When it was signed.
    pub signed_at: Timestamp,
    /// When a node first confirmed that it has it.
    pub first_sent_at: Option<Timestamp>,
}

impl Attempt {
    /// Attempts of one tx at one nonce, the newest last: each pays more than those before it, and what is
    /// being cancelled is never offered again. Not by their times: several nodes have several clocks.
    #[must_use]
    pub fn order(&self) -> (bool, u128, Timestamp) {
        let is_cancel = self.kind == AttemptKind::Cancel;
        (is_cancel, self.fees.max_per_gas(), self.signed_at)
    }
}

/// Bytes on their way to the nodes, with the time until which they may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingEnvelope {
    /// Its place in the account's order: sends of a lane leave in this order.
    pub nonce: Nonce,
    /// Its hash.
    pub hash: B256,
    /// The exact bytes.
    pub raw: Bytes,
    /// Our other attempts at this nonce: what a node may hold instead.
    pub others: Vec<B256>,
    /// Whether every endpoint gets it at once: a no-op must arrive wherever the payload may be.
    pub to_all: bool,
}

/// The outcome of one send. "Unknown" is an outcome of its own and never a guess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// A node accepted it, or had it already.
    Accepted,
    /// The nonce is used: by one of our hashes, or by a foreign transaction. The chain must be queried.
    NonceTooLow,
    /// The fee is below what the pool accepts.
    Underpriced(String),
    /// Another attempt of ours at this nonce is in the pool, and this one does not pay enough to replace it.
    ReplacementUnderpriced(String),
    /// A node holds a transaction at this nonce that is none of ours.
    ForeignPending(String),
    /// The account cannot pay for it now.
    Underfunded(String),
    /// The node has no room for more of this account.
    Full {
        /// The node's error text.
        text: String,
        /// How many it holds of this account, where it is known.
        most: Option<u64>,
    },
    /// The node is busy, syncing or unreachable: try again, here or elsewhere.
    Busy(String),
    /// Refused for a reason that lies in the node's state or policy: it may be accepted later or elsewhere.
    Refused(String),
    /// No node will ever accept these bytes, and none may have accepted them.
    Rejected(String),
    /// The same, because their gas limit is below what the chain demands of any transaction like this.
    GasTooLow(String),
    /// The answer was lost or not understood; a node may or may not have it.
    Unknown(String),
    /// Not sent at all: the lease could not be trusted any more at this moment.
    NotSent(MonotonicTime),
}
