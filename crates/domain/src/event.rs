//! The ordered record of what happened in a lane. Written by the gate with the state it describes.

use alloy_primitives::B256;
use strum::{EnumCount, IntoStaticStr, VariantNames};

use crate::{AttemptKind, NodeName, Nonce, Timestamp, Token, TxId};

/// One entry of a lane's event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place in the lane's event log: gapless, from 1.
    pub seq: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// The tx it is about; `None` for the lane itself.
    pub tx_id: Option<TxId>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantNames)]
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
        /// The header that the last report ended with: this list continues above it. `None`: it is complete.
        since: Option<B256>,
        /// Whether this replaces something that was reported before.
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
        /// Whether this replaces something that was reported before.
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
    /// Its block was reorged out.
    TxReorged {
        /// Height of the block that is gone.
        block_number: u64,
        /// The block that is gone.
        block_hash: B256,
        /// Whether it had been reported as final.
        after_final: bool,
    },
    /// Another keeper took the lane over.
    LaneFenced {
        /// The previous keeper.
        from: NodeName,
        /// The previous keeper's token.
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
    /// A foreign transaction has consumed its nonce: it waits for another one.
    TxRequeued {
        /// The nonce that it gave up.
        nonce: Nonce,
        /// The transaction that consumed it, where it was found.
        foreign: Option<B256>,
    },
    /// A foreign transaction is pending at a nonce of ours.
    LaneForeignPending {
        /// The nonce.
        nonce: Nonce,
    },
}

impl EventKind {
    /// The names of all kinds.
    pub const NAMES: [&'static str; Self::COUNT] =
        *Self::VARIANTS.first_chunk().expect("all of them");

    /// The tx's block and the newest counted header, for kinds that report confirmations.
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

    /// Its name in SQL, JSON and docs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.into()
    }
}
