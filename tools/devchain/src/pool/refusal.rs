//! Why the pool refuses a tx, with geth's texts: clients distinguish these cases by text.

use alloy_primitives::U256;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    // About the bytes.
    #[error("{0}")]
    Undecodable(String),
    #[error("transaction type not supported")]
    TypeUnknown,
    #[error("transaction type not supported: tx type {0} not supported by this pool")]
    TypeNotPooled(u8),
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized { size: usize, limit: usize },
    #[error("max initcode size exceeded: code size {size}, limit {limit}")]
    InitcodeSize { size: usize, limit: usize },

    // About gas.
    #[error("transaction gas limit too high (cap: {cap}, tx: {gas})")]
    TxGasLimit { cap: u64, gas: u64 },
    #[error("exceeds block gas limit")]
    BlockGasLimit,
    #[error("intrinsic gas too low: gas {gas}, minimum needed {needed}")]
    IntrinsicGas { gas: u64, needed: u64 },
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {needed}")]
    FloorGas { gas: u64, needed: u64 },

    // About who signed.
    #[error("invalid sender: invalid chain id for signer: have {have} want {want}")]
    OtherChain { have: u64, want: u64 },
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    NotReplayProtected,
    #[error("invalid sender: invalid transaction v, r, s values")]
    Signature,
    #[error("sender not an eoa")]
    SenderHasCode,

    // About fees.
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFeeCap,
    #[error("transaction underpriced: gas tip cap {tip}, minimum needed {needed}")]
    Underpriced { tip: u128, needed: u128 },
    #[error("replacement transaction underpriced")]
    ReplacementUnderpriced,

    // About the account and the pool.
    #[error("already known")]
    AlreadyKnown,
    #[error("nonce has max value")]
    NonceMax,
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow { next: u64, nonce: u64 },
    #[error(
        "insufficient funds for gas * price + value: \
         balance {balance}, tx cost {cost}, overshot {}", .cost.saturating_sub(*.balance)
    )]
    Funds { balance: U256, cost: U256 },
    #[error(
        "insufficient funds for gas * price + value: balance {}, queued cost {}, tx cost {}, \
         overshot {}", .0.balance, .0.queued, .0.more, .0.overshot
    )]
    FundsQueued(Box<Overdraft>),
    #[error(
        "insufficient funds for gas * price + value: balance {}, queued cost {}, tx bumped {}, \
         overshot {}", .0.balance, .0.queued, .0.more, .0.overshot
    )]
    FundsBumped(Box<Overdraft>),
    #[error("txpool is full")]
    Full,
}

/// A balance that covers a sender's pending txs, but not one more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overdraft {
    pub(super) balance: U256,
    pub(super) queued: U256,
    pub(super) more: U256,
    pub(super) overshot: U256,
}

impl Overdraft {
    pub(super) fn check(balance: U256, queued: U256, more: U256) -> Result<(), Box<Self>> {
        let overshot = queued.saturating_add(more).saturating_sub(balance);
        if overshot.is_zero() {
            return Ok(());
        }
        Err(Box::new(Self {
            balance,
            queued,
            more,
            overshot,
        }))
    }
}
