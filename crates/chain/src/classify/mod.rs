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
    /// The node holds no more for this account.
    AccountLimit,
    /// The node holds nothing so far ahead of the account's nonce. Some hold nothing ahead at all.
    TooFarAhead,
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
    /// The endpoint wants fewer requests for a while.
    Throttled,
    /// The node ran it at once, and it failed: it may well be in a block.
    Executed,
    /// The node passed it on and does not know what came of it.
    Forwarded,
    /// Not in the table.
    Unknown,
}

/// An error object of JSON-RPC, as far as it tells anything.
#[derive(Clone, Copy, Debug)]
pub struct Complaint<'a> {
    /// The code; used only where the text says nothing or two things.
    pub code: i64,
    /// The text.
    pub message: &'a str,
}

/// "Limit exceeded" of EIP-1474, and HTTP's own number: what gateways answer when they throttle.
const CODES_THROTTLED: [i64; 2] = [-32005, 429];
/// ganache says "transaction underpriced", with this code, and only where another transaction holds
/// the place. Others say it, with other codes, of fees that are too low for the pool.
const GANACHE_REPLACEMENT: (i64, &str) = (-32003, "transaction underpriced");
/// "Method not found": an endpoint that takes no transactions.
const CODE_METHOD_NOT_FOUND: i64 = -32601;

impl Complaint<'_> {
    /// Looks it up.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        if (self.code, self.message) == GANACHE_REPLACEMENT {
            return Meaning::ReplacementTooCheap;
        }
        let text = self.message.to_lowercase();
        match table::look_up(&text) {
            Some(meaning) => meaning,
            None if CODES_THROTTLED.contains(&self.code) => Meaning::Throttled,
            None if self.code == CODE_METHOD_NOT_FOUND => Meaning::NotReady,
            None => Meaning::Unknown,
        }
    }

    /// What it means for the lane whose transaction was sent, as far as this node goes.
    ///
    /// Only what lies in the bytes themselves is a rejection. A gas limit, a signature or a chain id
    /// that one node refuses may be right for another, so that these never free a nonce.
    #[must_use]
    pub fn send_outcome(&self) -> SendOutcome {
        let text = self.message.to_owned();
        match self.meaning() {
            Meaning::Known => SendOutcome::Accepted,
            Meaning::NonceUsed => SendOutcome::NonceTooLow,
            Meaning::ReplacementTooCheap => SendOutcome::ReplacementUnderpriced(text),
            Meaning::BelowMinimum | Meaning::BelowBaseFee => SendOutcome::Underpriced(text),
            Meaning::Funds => SendOutcome::Underfunded(text),
            Meaning::PoolFull | Meaning::AccountLimit | Meaning::TooFarAhead => {
                let most = self.most();
                SendOutcome::Full { text, most }
            }
            Meaning::Delegated => SendOutcome::Full {
                text,
                most: Some(1),
            },
            Meaning::TypeConflict | Meaning::Gas | Meaning::Identity | Meaning::NodePolicy => {
                SendOutcome::Refused(text)
            }
            Meaning::Shape => SendOutcome::Rejected(text),
            Meaning::NotReady | Meaning::Throttled => SendOutcome::Busy(text),
            Meaning::Executed | Meaning::Forwarded | Meaning::Unknown => SendOutcome::Unknown(text),
        }
    }

    /// How many transactions of the account the node holds, where its text tells.
    fn most(&self) -> Option<u64> {
        const BEFORE_THE_NUMBER: [&str; 2] = [
            "pooled ",          // geth, blob pool
            "maximum allowed ", // erigon
        ];
        let text = self.message.to_lowercase();
        let after = BEFORE_THE_NUMBER
            .iter()
            .find_map(|words| Some(text.split_once(words)?.1))?;
        let end = after.find(|c: char| !c.is_ascii_digit());
        let number = after[..end.unwrap_or(after.len())].parse().ok();
        number.filter(|most| *most > 0) // a lane must be able to send something
    }
}

#[cfg(test)]
mod tests;
