//! The ordered record of what happened in a lane. Written by the gate with the state it tells of.

use alloy_primitives::B256;

use crate::{AttemptKind, NodeName, Nonce, Timestamp, Token, TxId};

/// One step of a lane's story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place in the lane's story: gapless, from 1.
    pub seq: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// The tx it is about; `None` for the lane itself.
    pub tx_id: Option<TxId>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The request is durable.
    TxAccepted {
        /// When it got one at once.
        nonce: Option<Nonce>,
    },
    /// It got its nonce later than it was accepted.
    TxAllocated {
        /// The nonce.
        nonce: Nonce,
    },
    /// A node has its bytes.
    TxSubmitted {
        /// Which attempt.
        tx_hash: B256,
        /// At which nonce.
        nonce: Nonce,
    },
    /// It is in a block.
    TxReceiptUpdated {
        /// The attempt that was mined.
        tx_hash: B256,
        /// Height.
        block_number: u64,
        /// Block.
        block_hash: B256,
        /// Whether the execution succeeded.
        succeeded: bool,
    },
    /// More blocks stand on its block.
    TxConfirmations {
        /// Height of its block.
        block_number: u64,
        /// Its block.
        block_hash: B256,
        /// The newest counted header; the list is the walk from here to its block.
        counted: B256,
        /// How many headers stand on its block.
        count: u64,
        /// What was counted when this was last told: the list goes on above it. `None`: it is complete.
        since: Option<B256>,
        /// Whether something told before is replaced by this.
        new_fork: bool,
    },
    /// Final, with success.
    TxConfirmed {
        /// The attempt that was mined.
        tx_hash: B256,
        /// Height of its block.
        block_number: u64,
        /// Its block.
        block_hash: B256,
        /// The newest counted header.
        counted: B256,
        /// Whether something told before is replaced by this.
        new_fork: bool,
    },
    /// Final, without the effect.
    TxFailed {
        /// Why.
        reason: String,
    },
    /// Needs a decision.
    TxStuck {
        /// Why.
        reason: String,
    },
    /// Its block was taken back.
    TxReorged {
        /// Height of the block that is gone.
        block_number: u64,
        /// The block that is gone.
        block_hash: B256,
        /// Whether it had been told as final.
        after_final: bool,
    },
    /// The lane changed hands.
    LaneFenced {
        /// Who had it.
        from: NodeName,
        /// Under which token.
        token: Token,
    },
    /// A nonce was consumed by a transaction that is not ours.
    LaneForeignNonce {
        /// The nonce.
        nonce: Nonce,
        /// The transaction that consumed it, where it was found.
        tx_hash: Option<B256>,
    },
    /// It was claimed and sent again.
    TxResubmitted {
        /// Which attempt.
        tx_hash: B256,
        /// At which nonce.
        nonce: Nonce,
        /// Why that attempt exists.
        kind: AttemptKind,
        /// How often it was sent again, with this time.
        count: u32,
    },
    /// It has another attempt at its nonce.
    TxReplaced {
        /// The new attempt.
        tx_hash: B256,
        /// At which nonce.
        nonce: Nonce,
        /// Why it exists.
        kind: AttemptKind,
    },
    /// Somebody else's transaction has consumed its nonce: it waits for another one.
    TxRequeued {
        /// The nonce that it gave up.
        nonce: Nonce,
        /// The transaction that consumed it, where it was found.
        foreign: Option<B256>,
    },
    /// Somebody else's transaction waits in a node's pool at a nonce of ours.
    LaneForeignPending {
        /// The nonce.
        nonce: Nonce,
    },
}

impl EventKind {
    /// The words of all kinds.
    pub const NAMES: [&'static str; 15] = [
        "TxAccepted",
        "TxAllocated",
        "TxSubmitted",
        "TxReceiptUpdated",
        "TxConfirmations",
        "TxConfirmed",
        "TxFailed",
        "TxStuck",
        "TxReorged",
        "LaneFenced",
        "LaneForeignNonce",
        "TxResubmitted",
        "TxReplaced",
        "TxRequeued",
        "LaneForeignPending",
    ];

    /// The tx's block and the newest counted header, for kinds that tell of confirmations.
    #[must_use]
    pub fn counted(&self) -> Option<(B256, B256)> {
        match self {
            Self::TxConfirmations {
                block_hash,
                counted,
                ..
            }
            | Self::TxConfirmed {
                block_hash,
                counted,
                ..
            } => Some((*block_hash, *counted)),
            Self::TxAccepted { .. }
            | Self::TxAllocated { .. }
            | Self::TxSubmitted { .. }
            | Self::TxReceiptUpdated { .. }
            | Self::TxFailed { .. }
            | Self::TxStuck { .. }
            | Self::TxReorged { .. }
            | Self::LaneFenced { .. }
            | Self::LaneForeignNonce { .. }
            | Self::TxResubmitted { .. }
            | Self::TxReplaced { .. }
            | Self::TxRequeued { .. }
            | Self::LaneForeignPending { .. } => None,
        }
    }

    /// The word used in SQL, JSON and docs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TxAccepted { .. } => "TxAccepted",
            Self::TxAllocated { .. } => "TxAllocated",
            Self::TxSubmitted { .. } => "TxSubmitted",
            Self::TxReceiptUpdated { .. } => "TxReceiptUpdated",
            Self::TxConfirmations { .. } => "TxConfirmations",
            Self::TxConfirmed { .. } => "TxConfirmed",
            Self::TxFailed { .. } => "TxFailed",
            Self::TxStuck { .. } => "TxStuck",
            Self::TxReorged { .. } => "TxReorged",
            Self::LaneFenced { .. } => "LaneFenced",
            Self::LaneForeignNonce { .. } => "LaneForeignNonce",
            Self::TxResubmitted { .. } => "TxResubmitted",
            Self::TxReplaced { .. } => "TxReplaced",
            Self::TxRequeued { .. } => "TxRequeued",
            Self::LaneForeignPending { .. } => "LaneForeignPending",
        }
    }
}
