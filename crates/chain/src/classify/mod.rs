//! What nodes mean when they refuse a transaction. The only place that knows their words.
//!
//! Codes are not reliable (most clients answer −32000 for everything), so the text decides. What
//! the table does not know stays [`Meaning::Unknown`]: never success, never failure.

mod table;

use domain::SendOutcome;

/// What a complaint means: one variant for each row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    /// The node has these bytes already.
    Known,
    /// The account's nonce is past this one.
    NonceUsed,
    /// Another transaction at this nonce is in the pool, and ours pays too little to replace it.
    ReplacementTooCheap,
    /// The fee is below what the pool takes.
    BelowMinimum,
    /// The fee cap is below the base fee, and this node does not keep such transactions.
    BelowBaseFee,
    /// The pool has no room.
    PoolFull,
    /// The node holds no more, or nothing so far ahead, for this account.
    AccountLimit,
    /// The account is delegated (EIP-7702): the node holds very few transactions of it.
    Delegated,
    /// The account has transactions of another type in the pool.
    TypeConflict,
    /// The account cannot pay.
    Funds,
    /// The gas limit is too low or too high.
    Gas,
    /// The bytes are too large, or not what this chain takes.
    Shape,
    /// Wrong signature or wrong chain.
    Identity,
    /// The operator of this node does not want it: another endpoint may.
    NodePolicy,
    /// The node cannot take transactions now.
    NotReady,
    /// The node passed it on and does not know what came of it.
    Forwarded,
    /// Not in the table.
    Unknown,
}

/// An error object of JSON-RPC, as far as it tells anything.
#[derive(Clone, Copy, Debug)]
pub struct Complaint<'a> {
    /// The code; used only where the text says nothing.
    pub code: i64,
    /// The text.
    pub message: &'a str,
}

/// "Limit exceeded" of EIP-1474: what gateways answer when they throttle.
const CODE_LIMIT_EXCEEDED: i64 = -32005;
/// "Method not found": an endpoint that takes no transactions.
const CODE_METHOD_NOT_FOUND: i64 = -32601;

impl Complaint<'_> {
    /// Looks it up.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        let text = self.message.to_lowercase();
        match table::look_up(&text) {
            Some(meaning) => meaning,
            None if [CODE_LIMIT_EXCEEDED, CODE_METHOD_NOT_FOUND].contains(&self.code) => {
                Meaning::NotReady
            }
            None => Meaning::Unknown,
        }
    }

    /// What it means for the lane whose transaction was sent.
    #[must_use]
    pub fn send_outcome(&self) -> SendOutcome {
        let text = || self.message.to_owned();
        match self.meaning() {
            Meaning::Known => SendOutcome::Accepted,
            Meaning::NonceUsed => SendOutcome::NonceTooLow,
            Meaning::ReplacementTooCheap => SendOutcome::ReplacementUnderpriced(text()),
            Meaning::BelowMinimum | Meaning::BelowBaseFee => SendOutcome::Underpriced(text()),
            Meaning::Funds => SendOutcome::Underfunded(text()),
            Meaning::Gas | Meaning::Shape | Meaning::Identity => SendOutcome::Rejected(text()),
            Meaning::PoolFull
            | Meaning::AccountLimit
            | Meaning::Delegated
            | Meaning::TypeConflict
            | Meaning::NodePolicy
            | Meaning::NotReady => SendOutcome::Busy(text()),
            Meaning::Forwarded | Meaning::Unknown => SendOutcome::Unknown(text()),
        }
    }
}

#[cfg(test)]
mod tests;
