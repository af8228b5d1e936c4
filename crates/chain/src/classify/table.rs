//! Every text of other software that this crate matches, with its source. No other file compares foreign texts.
//!
//! Phrases are lower case, the most specific first. In [`WHOLE`] and [`PHRASES`] a match begins at the start of a
//! word: "unknown transaction" is not "known transaction".

use super::NodeErrorKind;

/// Erigon's short reasons for dropping a tx, and hardhat's for undecodable bytes. The whole message must match,
/// because other texts contain these words ("mined" is in "undetermined").
const WHOLE: &[(&str, NodeErrorKind)] = &[
    ("mined", NodeErrorKind::NonceTooLow),
    ("spammer", NodeErrorKind::PoolFull),
    ("underpriced", NodeErrorKind::BelowPoolMinimum),
    ("fee too low", NodeErrorKind::BelowPoolMinimum),
    ("intrinsicgas", NodeErrorKind::GasLimit),
    ("rlptoolong", NodeErrorKind::InvalidEncoding),
    ("input too short", NodeErrorKind::InvalidEncoding),
    ("leading zero", NodeErrorKind::InvalidEncoding),
    ("list length mismatch", NodeErrorKind::InvalidEncoding),
    ("non-canonical single byte", NodeErrorKind::InvalidEncoding),
    (
        "non-canonical size information",
        NodeErrorKind::InvalidEncoding,
    ),
    ("unexpected length", NodeErrorKind::InvalidEncoding),
    ("unexpected list", NodeErrorKind::InvalidEncoding),
    ("unexpected string", NodeErrorKind::InvalidEncoding),
];

/// Prefixes that erigon puts before its texts.
const ERIGON_PREFIXES: &[&str] = &[
    "already_exists:",
    "fee_too_low:",
    "invalid:",
    "internal_error:",
    "success:",
];

/// Groups and phrases, in matching order.
const PHRASES: &[(NodeErrorKind, &[&str])] = &[
    // Executed at once, and failed. First, because the text of a contract may follow.
    (
        NodeErrorKind::ExecutionFailed,
        &[
            "reverted with",            // hardhat
            "transaction reverted",     // hardhat
            "execution reverted",       // sequencers
            "transaction: revert",      // ganache: "VM Exception while processing …"
            "transaction: out of gas",  // ganache, hardhat
            "transaction: invalid opc", // ganache, hardhat
        ],
    ),
    // The same bytes are, or were, in the pool.
    (
        NodeErrorKind::AlreadyKnown,
        &[
            "already known",                  // geth, reth, nethermind, erigon
            "alreadyknown",                   // nethermind, old
            "known transaction",              // besu, hardhat
            "existing txn with same hash",    // erigon
            "transaction already imported",   // anvil
            "same hash was already imported", // openethereum
        ],
    ),
    // The nonce is consumed, by this or by another tx.
    (
        NodeErrorKind::NonceTooLow,
        &[
            "nonce too low",    // geth, reth, nethermind, erigon, besu, anvil, hardhat
            "nonce is too low", // openethereum
            "oldnonce",         // nethermind, old
            "tx doesn't have the correct nonce", // ganache (it keeps higher nonces)
        ],
    ),
    // Another tx with this nonce is in the pool. Before "transaction underpriced".
    (
        NodeErrorKind::ReplacementUnderpriced,
        &[
            "replacement transaction underpriced", // geth, reth, nethermind, erigon, anvil, hardhat
            "replacement penalty",                 // geth, blob pool
            "replacement",                         // besu
            "could not replace existing tx",       // erigon
        ],
    ),
    // The fee cap is below the base fee. geth and reth keep such txs, sequencers do not.
    (
        NodeErrorKind::BelowBaseFee,
        &[
            "max fee per gas less than block base fee", // geth, reth, anvil, nitro
            "gas price below current base fee",         // besu
            "max fee per blob gas less than block blob gas fee", // geth, reth
            "`blob_gas_price` is greater",              // anvil
            "is too low for the next block",            // hardhat
        ],
    ),
    // Below the pool's minimum fee.
    (
        NodeErrorKind::BelowPoolMinimum,
        &[
            "transaction underpriced",                         // geth, reth, nethermind
            "transaction gas price below minimum",             // geth
            "transaction priority fee below minimum required", // reth
            "gas price below configured minimum gas price",    // besu
            "which is below the minimum of",                   // hardhat
        ],
    ),
    // The pool is full. reth also returns this when one sender has more than 16 txs.
    (
        NodeErrorKind::PoolFull,
        &[
            "txpool is full",                              // geth, reth, erigon
            "sub-pool is full",                            // erigon
            "future transaction tries to replace pending", // geth
        ],
    ),
    // The pool's limit per account.
    (
        NodeErrorKind::AccountLimit,
        &[
            "account limit exceeded", // geth, blob pool
            "queued sender dormant",  // erigon
        ],
    ),
    // Too far ahead of the account's nonce.
    (
        NodeErrorKind::NonceTooHigh,
        &[
            "nonce too far in future",                        // nethermind
            "nonce too high", // nethermind, nitro, hardhat with automine
            "nonce is too distant from current sender nonce", // besu
            "nonce gap too large", // erigon
        ],
    ),
    // EIP-7702 delegation.
    (
        NodeErrorKind::Delegated,
        &[
            "in-flight transaction limit reached for delegated accounts", // geth, reth
            "gapped-nonce tx from delegated accounts",                    // geth, reth
            "authority already reserved",                                 // geth, reth, erigon
            "delegation nonce gap",                                       // nethermind
            "delegation authority has pending transaction",               // nethermind
        ],
    ),
    // Blob txs and other txs of one account exclude each other.
    (
        NodeErrorKind::TypeConflict,
        &[
            "address already reserved",                   // geth, reth
            "pending transaction type conflict",          // nethermind
            "can't replace blob-txn with a non-blob-txn", // erigon
        ],
    ),
    // The balance.
    (
        NodeErrorKind::InsufficientFunds,
        &[
            "insufficient funds",                   // geth, reth, nitro, anvil, erigon, besu
            "transaction overdraws from account",   // reth
            "upfront cost exceeds account balance", // besu
            "doesn't have enough funds",            // hardhat, ganache
        ],
    ),
    // The gas limit.
    (
        NodeErrorKind::GasLimit,
        &[
            "intrinsic gas too low",                    // geth, reth, anvil, nitro
            "intrinsic gas too high",                   // anvil
            "intrinsic gas exceeds gas limit",          // besu
            "insufficient gas for floor data gas cost", // geth, reth
            "exceeds block gas limit",                  // geth, reth, besu, hardhat
            "exceeds block's gas limit",                // reth
            "gas limit reached",                        // nethermind
            "gas limit too high",                       // geth, reth (EIP-7825)
            "gas limit is too high",                    // erigon
            "is greater than the cap",                  // anvil (EIP-7825)
            "exceeds transaction gas cap",              // hardhat (EIP-7825)
            "transaction requires at least",            // hardhat
        ],
    ),
    // Size and encoding. Admission checks both, so none of these is expected.
    (
        NodeErrorKind::InvalidEncoding,
        &[
            "oversized data",                 // geth, reth, op-geth, nitro
            "transaction too large",          // nethermind
            "max initcode size exceeded",     // geth, reth
            "initcode too large",             // erigon
            "rlp: ",                          // geth, erigon
            "could not decode transaction",   // ganache
            "failed to decode",               // reth, anvil
            "negative value",                 // geth, erigon
            "nonce has max value",            // geth
            "transaction type not supported", // geth, reth, op-geth
            "fork supporting this transaction type is not activated yet", // nethermind
            "max priority fee per gas higher than max fee per gas", // geth, reth, anvil
            "set code tx must have at least one authorization tuple", // geth
            "blobless blob transaction",      // geth
            "too many blobs",                 // geth, reth
            "init code length",               // hardhat
            "allowed as of eip-3860",         // ganache
            "is bigger than maxfeepergas",    // hardhat
            "cannot be less than maxpriorityfeepergas", // ganache
            "invalid transaction type",       // hardhat
            "sidecar",                        // geth, reth
            "kzg",                            // geth, reth, nethermind
        ],
    ),
    // The operator's policy. Before the phrases about senders.
    (
        NodeErrorKind::NodePolicy,
        &[
            "exceeds the configured cap",     // geth
            "transaction fee cap exceeded",   // besu
            "sender account not authorized",  // besu, permissioned
            "sender is not on the whitelist", // nitro
        ],
    ),
    // Wrong key or wrong chain: a misconfiguration of this node.
    (
        NodeErrorKind::InvalidSender,
        &[
            "invalid sender",                // geth, erigon
            "failed to recover the signer",  // anvil
            "failed to recover sender",      // reth
            "invalid transaction signature", // reth, anvil
            "invalid signature",             // besu
            "invalid chain id",              // geth, reth, anvil, nethermind
            "invalid chainid",               // hardhat
            "wrong chainid",                 // besu
            "only replay-protected",         // geth
            "incompatible eip-155",          // hardhat, anvil
            "incompatible eip155",           // ganache
            "sender not an eoa",             // geth, reth
        ],
    ),
    // Forwarded without a known result: the tx may be in flight.
    (
        NodeErrorKind::ForwardFailed,
        &[
            "failed to publish transaction to any of the forwarding targets", // nitro
        ],
    ),
    // The node accepts no txs at present, or never does.
    (
        NodeErrorKind::NotReady,
        &[
            "node is syncing",                                        // nethermind
            "mining has already started",                             // ganache
            "transaction pool not enabled",                           // besu
            "initial sync is still in progress",                      // besu
            "transaction indexing is in progress",                    // geth
            "sequencer temporarily not available",                    // nitro
            "publishing transactions not supported by this endpoint", // nitro
            "error getting sender state",                             // erigon
        ],
    ),
    // Gateways that limit the request rate.
    (
        NodeErrorKind::RateLimited,
        &[
            "too many requests",        // HTTP 429's own phrase, most gateways
            "rate limit",               // most gateways
            "rate exceeded",            // infura
            "request count exceeded",   // infura
            "compute units per second", // alchemy
            "exceeded the requests",    // others: "… per second limit"
            "request limit",            // quicknode
        ],
    ),
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
    let whole = WHOLE.iter().find(|(text, _)| *text == bare);
    let matches = |(_, phrases): &&(NodeErrorKind, &[&str])| {
        phrases
            .iter()
            .any(|phrase| has_phrase_at_word_start(message, phrase))
    };
    let by_phrase = || PHRASES.iter().find(matches).map(|(kind, _)| *kind);
    whole.map(|(_, kind)| *kind).or_else(by_phrase)
}

fn has_phrase_at_word_start(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
}

/// Every row of [`WHOLE`] and [`PHRASES`].
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, NodeErrorKind)> {
    let phrases = PHRASES
        .iter()
        .flat_map(|(kind, phrases)| phrases.iter().map(|phrase| (*phrase, *kind)));
    WHOLE.iter().copied().chain(phrases)
}
