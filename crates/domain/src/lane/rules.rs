//! The rules of one lane, from the configuration, grouped by what they govern.

use std::time::Duration;

use super::AccountNonces;
use super::reservations::ReservationRules;
use crate::window::{MempoolDepth, Release, Window};
use crate::{FeeRules, Nonce};

/// The rules of one lane, from the configuration. Every default is that of the configuration file; a test of the
/// binary compares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneRules {
    /// How much of the lane may be in flight.
    pub capacity: CapacityRules,
    /// What may be offered.
    pub fee: FeeRules,
    /// When results are final, and what is reported on the way there.
    pub confirmations: ConfirmationRules,
    /// When and how the lane's head is sent again.
    pub resubmit: Resubmit,
    /// How the cursor follows the chain, and what happens to gaps and foreign use.
    pub nonce: NonceRules,
    /// After how long as its lane's head a tx ends that is not mined; `None` is never.
    pub blocked_timeout: Option<Duration>,
    /// Whether requests are refused that the account cannot pay for.
    pub balance: BalanceCheck,
    /// How its nonces are reserved when the key is held elsewhere; `None`: the lane signs and sends by itself.
    pub reservations: Option<ReservationRules>,
}

/// Whether requests are refused that the account cannot pay for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceCheck {
    /// Yes, by a balance that was queried after the request.
    #[default]
    Check,
    /// No: what cannot be paid for waits in the lane.
    Off,
}

/// How much of a lane may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityRules {
    /// How many nonces may be allocated and unresolved.
    pub window: Window,
    /// How many attempts may be in nodes' pools.
    pub mempool_depth: MempoolDepth,
}

impl Default for CapacityRules {
    fn default() -> Self {
        Self {
            window: Window {
                limit: None,
                releases: Release::Final,
            },
            mempool_depth: MempoolDepth::auto(),
        }
    }
}

/// When results are final, and what is reported on the way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmationRules {
    /// When a block's results are final.
    pub finality: Finality,
    /// How many blocks below the tip final results are still watched for reorgs.
    pub watch_depth: u64,
    /// Whether confirmations are reported at every block, or only the final result.
    pub emit_progress: bool,
    /// Whether receipts of everything in flight are fetched when a lane is loaded.
    pub fetch_receipt_upon_entry: bool,
    /// After how long without a receipt the chain is queried about a sent tx.
    pub stale_receipt_timeout: Duration,
}

impl Default for ConfirmationRules {
    fn default() -> Self {
        Self {
            finality: Finality::Depth(20),
            watch_depth: 64,
            emit_progress: false,
            fetch_receipt_upon_entry: false,
            stale_receipt_timeout: Duration::from_secs(60),
        }
    }
}

/// How the cursor follows the chain, and what happens to gaps and foreign use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceRules {
    /// Which of the chain's nonces is queried.
    pub chain_query: ChainQuery,
    /// How old the chain's nonce may get while the lane has work.
    pub chain_nonce_timeout: Duration,
    /// The farthest jump of the chain's nonce above the cursor that is accepted without an operator.
    pub max_chain_jump: u64,
    /// After how long a gap that blocks other txs is filled.
    pub gap_fill_after: Duration,
    /// What becomes of a tx whose nonce a foreign transaction has consumed.
    pub on_foreign_nonce: OnForeignNonce,
}

impl Default for NonceRules {
    fn default() -> Self {
        Self {
            chain_query: ChainQuery::Pending,
            chain_nonce_timeout: Duration::from_secs(30),
            max_chain_jump: 64,
            gap_fill_after: Duration::from_secs(15),
            on_foreign_nonce: OnForeignNonce::Requeue,
        }
    }
}

/// When a block's results are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// When this many headers stand on it: the finality depth.
    Depth(u64),
    /// When the chain itself marks it, by its `safe` or `finalized` block.
    Tag(FinalityTag),
}

/// A block that the chain itself marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalityTag {
    /// Unlikely to be reorged out.
    Safe,
    /// Never reorged out.
    Finalized,
}

/// A foreign transaction at one of our nonces counts only from this finality depth on, even where a smaller one
/// makes a result final.
pub const FOREIGN_FINALITY_DEPTH_MIN: u64 = 12;

/// Headers above a block older than the view that prove it final where the chain itself decides.
const TAG_PROOF_HEADERS: u64 = 64;

impl Finality {
    /// How many headers stand on a final block; 0 where the chain itself decides.
    #[must_use]
    pub fn depth(self) -> u64 {
        match self {
            Self::Depth(finality_depth) => finality_depth,
            Self::Tag(_) => 0,
        }
    }

    /// How many linked headers, from its own on, prove a block below the view final.
    #[must_use]
    pub fn proof_headers(self) -> u64 {
        match self {
            Self::Depth(finality_depth) => finality_depth.saturating_add(1),
            Self::Tag(_) => TAG_PROOF_HEADERS,
        }
    }
}

/// When and how the lane's head is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resubmit {
    /// After how long without being mined; `None` is never.
    pub interval: Option<Duration>,
    /// With the same bytes, or with higher fees.
    pub policy: ResubmitPolicy,
    /// After how many times a decision is needed; `None` is never.
    pub max_attempts: Option<u32>,
}

impl Default for Resubmit {
    fn default() -> Self {
        Self {
            interval: Some(Duration::from_secs(60)),
            policy: ResubmitPolicy::Rebroadcast,
            max_attempts: None,
        }
    }
}

/// What is sent when a tx is not mined in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResubmitPolicy {
    /// The same bytes.
    Rebroadcast,
    /// A new attempt at the same nonce with higher fees.
    Bump {
        /// The smallest raise.
        percent: u128,
        /// The most that a bump may offer per gas.
        max_fee: u128,
    },
}

/// What becomes of a tx whose nonce a foreign transaction has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnForeignNonce {
    /// It gets a new nonce, at the end.
    Requeue,
    /// It is STUCK until an operator decides.
    Hold,
}

/// Which of the chain's nonces of the account is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainQuery {
    /// With the transactions in the node's pool.
    Pending,
    /// Mined transactions only.
    Latest,
    /// None: the store's cursor alone decides.
    Off,
}

impl ChainQuery {
    /// The next nonce according to a report, with or without the node's pool.
    #[must_use]
    pub fn next_nonce(self, reported: AccountNonces) -> Nonce {
        match self {
            Self::Pending => reported.pending.max(reported.latest),
            Self::Latest | Self::Off => reported.latest,
        }
    }
}
