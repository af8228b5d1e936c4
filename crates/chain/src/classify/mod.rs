//! Classification of node errors: what a JSON-RPC error means for the request that caused it.
//!
//! Error codes are not reliable (most clients return −32000 for everything), so the text decides. A text that
//! `table.rs` does not contain is [`NodeErrorKind::Unknown`]: neither success nor failure.

mod table;

use domain::SendOutcome;

/// The meaning of a node error: one variant for each group of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeErrorKind {
    /// The node has these bytes already.
    AlreadyKnown,
    /// The account's nonce is past this one.
    NonceTooLow,
    /// Another tx with this nonce is in the pool, and the new one pays too little to replace it.
    ReplacementUnderpriced,
    /// The fee is below the pool's minimum.
    BelowPoolMinimum,
    /// The fee cap is below the base fee, and this node does not keep such txs.
    BelowBaseFee,
    /// The pool is full.
    PoolFull,
    /// The pool accepts no more txs of this account.
    AccountLimit,
    /// The nonce is too far ahead of the account's. Some nodes accept no gap at all.
    NonceTooHigh,
    /// The account is delegated (EIP-7702): the pool accepts very few of its txs.
    Delegated,
    /// The account has txs of another type in the pool.
    TypeConflict,
    /// The account's balance does not cover the tx.
    InsufficientFunds,
    /// The gas limit is below what the chain demands of these bytes.
    GasTooLow,
    /// The gas limit is above that of a block or of one transaction.
    GasTooHigh,
    /// The bytes are too large or not a tx of this chain.
    InvalidEncoding,
    /// Wrong signature or wrong chain id.
    InvalidSender,
    /// The operator of this node excludes the tx; another endpoint may accept it.
    NodePolicy,
    /// The node cannot accept txs at present.
    NotReady,
    /// The endpoint limits the request rate.
    RateLimited,
    /// The node executed the tx at once and it failed, so it may be in a block.
    ExecutionFailed,
    /// The node forwarded the tx and does not know the result.
    ForwardFailed,
    /// The text is not in the table.
    Unknown,
}

/// The part of a JSON-RPC error object that classification uses.
#[derive(Clone, Copy, Debug)]
pub struct RpcError<'a> {
    /// Used only where the text is unknown or ambiguous.
    pub code: i64,
    /// The text as the node sent it.
    pub message: &'a str,
}

/// "Limit exceeded" of EIP-1474, and the HTTP status that gateways copy into the error.
const CODES_RATE_LIMITED: [i64; 2] = [-32005, 429];
/// "Method not found" of JSON-RPC: an endpoint without `eth_sendRawTransaction`.
const CODE_METHOD_NOT_FOUND: i64 = -32601;
/// "Invalid params" of JSON-RPC: the method does not accept these parameters.
const CODE_INVALID_PARAMS: i64 = -32602;
/// Geth's code for a reverted execution.
const CODE_REVERTED: i64 = 3;

impl RpcError<'_> {
    /// Looks the error up in the table.
    #[must_use]
    pub fn kind(&self) -> NodeErrorKind {
        if (self.code, self.message) == table::GANACHE_REPLACEMENT_UNDERPRICED {
            return NodeErrorKind::ReplacementUnderpriced;
        }
        match table::find_kind(&self.message.to_lowercase()) {
            Some(kind) => kind,
            None if CODES_RATE_LIMITED.contains(&self.code) => NodeErrorKind::RateLimited,
            None if self.code == CODE_METHOD_NOT_FOUND => NodeErrorKind::NotReady,
            None => NodeErrorKind::Unknown,
        }
    }

    /// What the error means for the lane whose tx was sent, as far as this node can tell.
    ///
    /// Only what follows from the bytes and the rules of the chain is a rejection, and it counts when all endpoints
    /// repeat it. A wrong signature or chain id lies in the configuration of this node, and what an operator excludes
    /// may be accepted elsewhere, so those errors never free a nonce.
    #[must_use]
    pub fn send_outcome(&self) -> SendOutcome {
        let text = self.message.to_owned();
        match self.kind() {
            NodeErrorKind::AlreadyKnown => SendOutcome::Accepted,
            NodeErrorKind::NonceTooLow => SendOutcome::NonceTooLow,
            NodeErrorKind::ReplacementUnderpriced => SendOutcome::ReplacementUnderpriced(text),
            NodeErrorKind::BelowPoolMinimum | NodeErrorKind::BelowBaseFee => {
                SendOutcome::Underpriced(text)
            }
            NodeErrorKind::InsufficientFunds => SendOutcome::Underfunded(text),
            NodeErrorKind::PoolFull | NodeErrorKind::AccountLimit | NodeErrorKind::NonceTooHigh => {
                let most = self.stated_limit();
                SendOutcome::Full { text, most }
            }
            NodeErrorKind::Delegated => SendOutcome::Full {
                text,
                most: Some(1),
            },
            NodeErrorKind::TypeConflict
            | NodeErrorKind::InvalidSender
            | NodeErrorKind::NodePolicy => SendOutcome::Refused(text),
            NodeErrorKind::InvalidEncoding | NodeErrorKind::GasTooHigh => {
                SendOutcome::Rejected(text)
            }
            NodeErrorKind::GasTooLow => SendOutcome::GasTooLow(text),
            NodeErrorKind::NotReady | NodeErrorKind::RateLimited => SendOutcome::Busy(text),
            NodeErrorKind::ExecutionFailed
            | NodeErrorKind::ForwardFailed
            | NodeErrorKind::Unknown => SendOutcome::Unknown(text),
        }
    }

    /// How many txs of the account the node accepts, if the text states it.
    fn stated_limit(&self) -> Option<u64> {
        let text = self.message.to_lowercase();
        let after = table::BEFORE_ACCOUNT_LIMIT
            .iter()
            .find_map(|phrase| Some(text.split_once(phrase)?.1))?;
        let end = after.find(|c: char| !c.is_ascii_digit());
        let number = after[..end.unwrap_or(after.len())].parse().ok();
        number.filter(|most| *most > 0) // a lane must be able to send something
    }

    /// Whether the node lacks the method, or does not accept these parameters.
    pub(crate) fn is_missing_method(&self) -> bool {
        [CODE_METHOD_NOT_FOUND, CODE_INVALID_PARAMS].contains(&self.code)
            || self.contains_any(table::MISSING_METHOD)
    }

    /// Whether the node does not know the requested block.
    pub(crate) fn is_unknown_block(&self) -> bool {
        self.contains_any(table::UNKNOWN_BLOCK)
    }

    /// Whether the error refers to the whole batch and not to one call in it.
    pub(crate) fn is_batch_refusal(&self) -> bool {
        self.contains_any(table::BATCH_REFUSED)
    }

    /// Whether an `eth_call` or `eth_estimateGas` ran and failed.
    pub(crate) fn is_execution_failure(&self) -> bool {
        self.code == CODE_REVERTED
            || self.contains_any(table::EXECUTION_FAILED)
            || self.message.to_lowercase().starts_with(table::ANVIL_HALTED)
    }

    /// The message without the words that every reverted execution carries.
    pub(crate) fn without_revert_prefix(&self) -> &str {
        table::REVERT_PREFIXES
            .iter()
            .find_map(|prefix| self.message.strip_prefix(prefix))
            .unwrap_or(self.message)
    }

    fn contains_any(&self, phrases: &[&str]) -> bool {
        let text = self.message.to_lowercase();
        phrases.iter().any(|phrase| text.contains(phrase))
    }
}

/// Whether the error of the keystore library means that the password is wrong.
pub(crate) fn is_wrong_keystore_password(message: &str) -> bool {
    message == table::KEYSTORE_WRONG_PASSWORD
}

#[cfg(test)]
mod tests;
