//! Every text of other software that this crate matches, with its source. No other file compares foreign texts.
//!
//! Phrases are lower case, the most specific first. In [`WHOLE`] and [`PHRASES`] a match begins at the start of a
//! word: "unknown transaction" is not "known transaction".

use super::NodeErrorKind::{self, *};

/// Erigon's short reasons for dropping a tx, and hardhat's for undecodable bytes. The whole message must match,
/// because other texts contain these words ("mined" is in "undetermined").
const WHOLE: &[(NodeErrorKind, &str)] = &[
    (NonceTooLow, "mined"),
    (PoolFull, "spammer"),
    (BelowPoolMinimum, "underpriced"),
    (BelowPoolMinimum, "fee too low"),
    (GasTooLow, "intrinsicgas"),
    (InvalidEncoding, "rlptoolong"),
    (InvalidEncoding, "input too short"),
    (InvalidEncoding, "leading zero"),
    (InvalidEncoding, "list length mismatch"),
    (InvalidEncoding, "non-canonical single byte"),
    (InvalidEncoding, "non-canonical size information"),
    (InvalidEncoding, "unexpected length"),
    (InvalidEncoding, "unexpected list"),
    (InvalidEncoding, "unexpected string"),
];

/// Prefixes that erigon puts before its texts.
const ERIGON_PREFIXES: &[&str] = &[
    "already_exists:",
    "fee_too_low:",
    "invalid:",
    "internal_error:",
    "success:",
];

/// Phrases in matching order.
#[rustfmt::skip] // one phrase per line, with its source
const PHRASES: &[(NodeErrorKind, &str)] = &[
    // First, because the text of a contract may follow.
    (ExecutionFailed, "reverted with"),            // hardhat
    (ExecutionFailed, "transaction reverted"),     // hardhat
    (ExecutionFailed, "execution reverted"),       // sequencers
    (ExecutionFailed, "transaction: revert"),      // ganache: "VM Exception while processing …"
    (ExecutionFailed, "transaction: out of gas"),  // ganache, hardhat
    (ExecutionFailed, "transaction: invalid opc"), // ganache, hardhat
    (AlreadyKnown, "already known"),                  // geth, reth, nethermind, erigon
    (AlreadyKnown, "alreadyknown"),                   // nethermind, old
    (AlreadyKnown, "known transaction"),              // besu, hardhat
    (AlreadyKnown, "existing txn with same hash"),    // erigon
    (AlreadyKnown, "transaction already imported"),   // anvil
    (AlreadyKnown, "same hash was already imported"), // openethereum
    (NonceTooLow, "nonce too low"),                     // geth, reth, nethermind, erigon, besu, anvil, hardhat
    (NonceTooLow, "nonce is too low"),                  // openethereum
    (NonceTooLow, "oldnonce"),                          // nethermind, old
    (NonceTooLow, "tx doesn't have the correct nonce"), // ganache (it keeps higher nonces)
    // Before "transaction underpriced".
    (ReplacementUnderpriced, "replacement transaction underpriced"), // geth, reth, nethermind, erigon, anvil, hardhat
    (ReplacementUnderpriced, "replacement penalty"),                 // geth, blob pool
    (ReplacementUnderpriced, "replacement"),                         // besu
    (ReplacementUnderpriced, "could not replace existing tx"),       // erigon
    // geth and reth keep such txs, sequencers do not.
    (BelowBaseFee, "max fee per gas less than block base fee"),          // geth, reth, anvil, nitro
    (BelowBaseFee, "gas price below current base fee"),                  // besu
    (BelowBaseFee, "max fee per blob gas less than block blob gas fee"), // geth, reth
    (BelowBaseFee, "`blob_gas_price` is greater"),                       // anvil
    (BelowBaseFee, "is too low for the next block"),                     // hardhat
    (BelowPoolMinimum, "transaction underpriced"),                         // geth, reth, nethermind
    (BelowPoolMinimum, "transaction gas price below minimum"),             // geth
    (BelowPoolMinimum, "transaction priority fee below minimum required"), // reth
    (BelowPoolMinimum, "gas price below configured minimum gas price"),    // besu
    (BelowPoolMinimum, "which is below the minimum of"),                   // hardhat
    // reth also returns this when one sender has more than 16 txs.
    (PoolFull, "txpool is full"),                              // geth, reth, erigon
    (PoolFull, "sub-pool is full"),                            // erigon
    (PoolFull, "future transaction tries to replace pending"), // geth
    (AccountLimit, "account limit exceeded"), // geth, blob pool
    (AccountLimit, "queued sender dormant"),  // erigon
    (NonceTooHigh, "nonce too far in future"),                        // nethermind
    (NonceTooHigh, "nonce too high"),                                 // nethermind, nitro, hardhat with automine
    (NonceTooHigh, "nonce is too distant from current sender nonce"), // besu
    (NonceTooHigh, "nonce gap too large"),                            // erigon
    (Delegated, "in-flight transaction limit reached for delegated accounts"), // geth, reth
    (Delegated, "gapped-nonce tx from delegated accounts"),                    // geth, reth
    (Delegated, "authority already reserved"),                                 // geth, reth, erigon
    (Delegated, "delegation nonce gap"),                                       // nethermind
    (Delegated, "delegation authority has pending transaction"),               // nethermind
    // Blob txs and other txs of one account exclude each other.
    (TypeConflict, "address already reserved"),                   // geth, reth
    (TypeConflict, "pending transaction type conflict"),          // nethermind
    (TypeConflict, "can't replace blob-txn with a non-blob-txn"), // erigon
    (InsufficientFunds, "insufficient funds"),                   // geth, reth, nitro, anvil, erigon, besu
    (InsufficientFunds, "transaction overdraws from account"),   // reth
    (InsufficientFunds, "upfront cost exceeds account balance"), // besu
    (InsufficientFunds, "doesn't have enough funds"),            // hardhat, ganache
    (GasTooLow, "intrinsic gas too low"),                    // geth, reth, anvil, nitro
    (GasTooHigh, "intrinsic gas too high"),                  // anvil: than that of a block
    (GasTooLow, "intrinsic gas exceeds gas limit"),          // besu
    (GasTooLow, "insufficient gas for floor data gas cost"), // geth, reth
    (GasTooHigh, "exceeds block gas limit"),                 // geth, reth, besu, hardhat
    (GasTooHigh, "exceeds block's gas limit"),               // reth
    (GasTooHigh, "gas limit reached"),                       // nethermind
    (GasTooHigh, "gas limit too high"),                      // geth, reth (EIP-7825)
    (GasTooHigh, "gas limit is too high"),                   // erigon
    (GasTooHigh, "is greater than the cap"),                 // anvil (EIP-7825)
    (GasTooHigh, "exceeds transaction gas cap"),             // hardhat (EIP-7825)
    (GasTooLow, "transaction requires at least"),            // hardhat
    // Admission checks size and encoding, so none of these is expected.
    (InvalidEncoding, "oversized data"),                                             // geth, reth, op-geth, nitro
    (InvalidEncoding, "transaction too large"),                                      // nethermind
    (InvalidEncoding, "max initcode size exceeded"),                                 // geth, reth
    (InvalidEncoding, "initcode too large"),                                         // erigon
    (InvalidEncoding, "rlp: "),                                                      // geth, erigon
    (InvalidEncoding, "could not decode transaction"),                               // ganache
    (InvalidEncoding, "failed to decode"),                                           // reth, anvil
    (InvalidEncoding, "negative value"),                                             // geth, erigon
    (InvalidEncoding, "nonce has max value"),                                        // geth
    (InvalidEncoding, "transaction type not supported"),                             // geth, reth, op-geth
    (InvalidEncoding, "fork supporting this transaction type is not activated yet"), // nethermind
    (InvalidEncoding, "max priority fee per gas higher than max fee per gas"),       // geth, reth, anvil
    (InvalidEncoding, "set code tx must have at least one authorization tuple"),     // geth
    (InvalidEncoding, "blobless blob transaction"),                                  // geth
    (InvalidEncoding, "too many blobs"),                                             // geth, reth
    (InvalidEncoding, "init code length"),                                           // hardhat
    (InvalidEncoding, "allowed as of eip-3860"),                                     // ganache
    (InvalidEncoding, "is bigger than maxfeepergas"),                                // hardhat
    (InvalidEncoding, "cannot be less than maxpriorityfeepergas"),                   // ganache
    (InvalidEncoding, "invalid transaction type"),                                   // hardhat
    (InvalidEncoding, "sidecar"),                                                    // geth, reth
    (InvalidEncoding, "kzg"),                                                        // geth, reth, nethermind
    // Before the phrases about senders.
    (NodePolicy, "exceeds the configured cap"),     // geth
    (NodePolicy, "transaction fee cap exceeded"),   // besu
    (NodePolicy, "sender account not authorized"),  // besu, permissioned
    (NodePolicy, "sender is not on the whitelist"), // nitro
    // A misconfiguration of this node.
    (InvalidSender, "invalid sender"),                // geth, erigon
    (InvalidSender, "failed to recover the signer"),  // anvil
    (InvalidSender, "failed to recover sender"),      // reth
    (InvalidSender, "invalid transaction signature"), // reth, anvil
    (InvalidSender, "invalid signature"),             // besu
    (InvalidSender, "invalid chain id"),              // geth, reth, anvil, nethermind
    (InvalidSender, "invalid chainid"),               // hardhat
    (InvalidSender, "wrong chainid"),                 // besu
    (InvalidSender, "only replay-protected"),         // geth
    (InvalidSender, "incompatible eip-155"),          // hardhat, anvil
    (InvalidSender, "incompatible eip155"),           // ganache
    (InvalidSender, "sender not an eoa"),             // geth, reth
    (ForwardFailed, "failed to publish transaction to any of the forwarding targets"), // nitro
    // At present, or for ever.
    (NotReady, "node is syncing"),                                        // nethermind
    (NotReady, "mining has already started"),                             // ganache
    (NotReady, "transaction pool not enabled"),                           // besu
    (NotReady, "initial sync is still in progress"),                      // besu
    (NotReady, "transaction indexing is in progress"),                    // geth
    (NotReady, "sequencer temporarily not available"),                    // nitro
    (NotReady, "publishing transactions not supported by this endpoint"), // nitro
    (NotReady, "error getting sender state"),                             // erigon
    (RateLimited, "too many requests"),        // HTTP 429's own phrase, most gateways
    (RateLimited, "rate limit"),               // most gateways
    (RateLimited, "rate exceeded"),            // infura
    (RateLimited, "request count exceeded"),   // infura
    (RateLimited, "compute units per second"), // alchemy
    (RateLimited, "exceeded the requests"),    // others: "… per second limit"
    (RateLimited, "request limit"),            // quicknode
];

/// ganache returns this text, with this code, only where another tx has the nonce. Other nodes return it, with
/// other codes, for fees that are too low for the pool.
pub(super) const GANACHE_REPLACEMENT_UNDERPRICED: (i64, &str) = (-32003, "transaction underpriced");

/// The words before the number of txs per account, where a text states one.
pub(super) const BEFORE_ACCOUNT_LIMIT: &[&str] = &[
    "pooled ",          // geth, blob pool
    "maximum allowed ", // erigon
];

/// The node lacks the method.
pub(super) const MISSING_METHOD: &[&str] = &[
    "method not found",                // JSON-RPC's own phrase: reth, besu, anvil
    "does not exist/is not available", // geth, erigon
    "method not supported",            // gateways
    "unsupported method",              // alchemy
    "is not supported",                // hardhat, gateways
    "not implemented",                 // anvil, erigon
];

/// The node does not know the block.
pub(super) const UNKNOWN_BLOCK: &[&str] = &[
    "unknown block",             // geth
    "block not found",           // reth, erigon
    "header not found",          // geth
    "could not be found",        // nethermind
    "header for hash not found", // erigon, old geth
];

/// The endpoint does not accept the batch.
pub(super) const BATCH_REFUSED: &[&str] = &[
    "batch", // geth: "batch too large"; gateways: "batch requests are not supported"
];

/// An `eth_call` or `eth_estimateGas` ran and failed.
pub(super) const EXECUTION_FAILED: &[&str] = &[
    "revert",             // geth, reth, erigon, besu, anvil, hardhat, ganache
    "vm execution error", // openethereum
    "invalid opcode",     // geth, ganache
    "out of gas",         // geth, reth, ganache
];
/// The beginning of anvil's text for an execution that halted without a revert.
pub(super) const ANVIL_HALTED: &str = "evm error";

/// The words before the contract's own reason, in the node's spelling.
pub(super) const REVERT_PREFIXES: &[&str] = &[
    "execution reverted", // geth, reth, erigon, anvil
    "Execution reverted", // besu
];

/// eth-keystore: the MAC in the file does not match the password.
pub(super) const KEYSTORE_WRONG_PASSWORD: &str = "Mac Mismatch";

/// The kind of a lower-cased message; `None` when no row matches.
pub(super) fn find_kind(message: &str) -> Option<NodeErrorKind> {
    let bare = ERIGON_PREFIXES
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix))
        .unwrap_or(message)
        .trim();
    let whole = WHOLE.iter().find(|(_, text)| *text == bare);
    let by_phrase = || {
        let matches = |(_, phrase): &&(_, &str)| has_phrase_at_word_start(message, phrase);
        PHRASES.iter().find(matches)
    };
    whole.or_else(by_phrase).map(|(kind, _)| *kind)
}

fn has_phrase_at_word_start(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
}

/// Every row of [`WHOLE`] and [`PHRASES`].
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (NodeErrorKind, &'static str)> {
    WHOLE.iter().chain(PHRASES).copied()
}
