//! The table itself: lower-cased phrases, the most specific first, each with the clients that say
//! it. A phrase counts from the beginning of a word only: "unknown transaction" is not "known
//! transaction".

use super::Meaning;

/// Erigon's short words for why its pool dropped something, and hardhat's for bytes that it cannot
/// decode. Too short to be looked for inside other texts ("mined" is in "undetermined"), so the
/// whole message must be the word.
const WHOLE: &[(&str, Meaning)] = &[
    ("mined", Meaning::NonceUsed),
    ("spammer", Meaning::PoolFull),
    ("underpriced", Meaning::BelowMinimum),
    ("fee too low", Meaning::BelowMinimum),
    ("intrinsicgas", Meaning::Gas),
    ("rlptoolong", Meaning::Shape),
    ("input too short", Meaning::Shape),
    ("leading zero", Meaning::Shape),
    ("list length mismatch", Meaning::Shape),
    ("non-canonical single byte", Meaning::Shape),
    ("non-canonical size information", Meaning::Shape),
    ("unexpected length", Meaning::Shape),
    ("unexpected list", Meaning::Shape),
    ("unexpected string", Meaning::Shape),
];

/// Erigon puts one of these in front of its texts.
const ERIGON_PREFIXES: &[&str] = &[
    "already_exists:",
    "fee_too_low:",
    "invalid:",
    "internal_error:",
    "success:",
];

/// Groups and phrases in the order in which they are tried.
const PHRASES: &[(Meaning, &[&str])] = &[
    // Run at once, and failed. Before all others: the words of a contract may follow.
    (
        Meaning::Executed,
        &[
            "reverted with",            // hardhat
            "transaction reverted",     // hardhat
            "execution reverted",       // sequencers
            "transaction: revert",      // ganache: "VM Exception while processing …"
            "transaction: out of gas",  // ganache, hardhat
            "transaction: invalid opc", // ganache, hardhat
        ],
    ),
    // Known: the same bytes are, or were, in the pool.
    (
        Meaning::Known,
        &[
            "already known",                  // geth, reth, nethermind, erigon
            "alreadyknown",                   // nethermind, old
            "known transaction",              // besu, hardhat
            "existing txn with same hash",    // erigon
            "transaction already imported",   // anvil
            "same hash was already imported", // openethereum
        ],
    ),
    // The nonce is used: by us or by somebody else.
    (
        Meaning::NonceUsed,
        &[
            "nonce too low",    // geth, reth, nethermind, erigon, besu, anvil, hardhat
            "nonce is too low", // openethereum
            "oldnonce",         // nethermind, old
            "tx doesn't have the correct nonce", // ganache, which keeps what is ahead
        ],
    ),
    // Something else of this nonce is in the pool. Before "transaction underpriced".
    (
        Meaning::ReplacementTooCheap,
        &[
            "replacement transaction underpriced", // geth, reth, nethermind, erigon, anvil, hardhat
            "replacement penalty",                 // geth, blob pool
            "replacement",                         // besu
            "could not replace existing tx",       // erigon
        ],
    ),
    // The cap is below the base fee. geth and reth keep such transactions, sequencers do not.
    (
        Meaning::BelowBaseFee,
        &[
            "max fee per gas less than block base fee", // geth, reth, anvil, nitro
            "gas price below current base fee",         // besu
            "max fee per blob gas less than block blob gas fee", // geth, reth
            "`blob_gas_price` is greater",              // anvil
            "is too low for the next block",            // hardhat
        ],
    ),
    // Below what the pool takes.
    (
        Meaning::BelowMinimum,
        &[
            "transaction underpriced",                         // geth, reth, nethermind
            "transaction gas price below minimum",             // geth
            "transaction priority fee below minimum required", // reth
            "gas price below configured minimum gas price",    // besu
            "which is below the minimum of",                   // hardhat
        ],
    ),
    // No room in the pool. reth says so too when one sender has more than 16.
    (
        Meaning::PoolFull,
        &[
            "txpool is full",                              // geth, reth, erigon
            "sub-pool is full",                            // erigon
            "future transaction tries to replace pending", // geth
        ],
    ),
    // No room for this account.
    (
        Meaning::AccountLimit,
        &[
            "account limit exceeded", // geth, blob pool
            "queued sender dormant",  // erigon
        ],
    ),
    // Too far ahead of its nonce.
    (
        Meaning::TooFarAhead,
        &[
            "nonce too far in future",                        // nethermind
            "nonce too high", // nethermind, nitro, hardhat while it mines at once
            "nonce is too distant from current sender nonce", // besu
            "nonce gap too large", // erigon
        ],
    ),
    // EIP-7702 delegation.
    (
        Meaning::Delegated,
        &[
            "in-flight transaction limit reached for delegated accounts", // geth, reth
            "gapped-nonce tx from delegated accounts",                    // geth, reth
            "authority already reserved",                                 // geth, reth, erigon
            "delegation nonce gap",                                       // nethermind
            "delegation authority has pending transaction",               // nethermind
        ],
    ),
    // Blob and other transactions of one account exclude each other.
    (
        Meaning::TypeConflict,
        &[
            "address already reserved",                   // geth, reth
            "pending transaction type conflict",          // nethermind
            "can't replace blob-txn with a non-blob-txn", // erigon
        ],
    ),
    // Money.
    (
        Meaning::Funds,
        &[
            "insufficient funds",                   // geth, reth, nitro, anvil, erigon, besu
            "transaction overdraws from account",   // reth
            "upfront cost exceeds account balance", // besu
            "doesn't have enough funds",            // hardhat, ganache
        ],
    ),
    // Gas.
    (
        Meaning::Gas,
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
    // Size and form. Checked when a request is accepted, so none of these should ever be seen.
    (
        Meaning::Shape,
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
    // The operator's choice. Before the phrases on senders.
    (
        Meaning::NodePolicy,
        &[
            "exceeds the configured cap",     // geth
            "transaction fee cap exceeded",   // besu
            "sender account not authorized",  // besu, permissioned
            "sender is not on the whitelist", // nitro
        ],
    ),
    // Wrong key, wrong chain: our own misconfiguration.
    (
        Meaning::Identity,
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
    // Passed on, and the answer was lost: it may be out.
    (
        Meaning::Forwarded,
        &[
            "failed to publish transaction to any of the forwarding targets", // nitro
        ],
    ),
    // Cannot take transactions now, or not here.
    (
        Meaning::NotReady,
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
    // Gateways that want fewer requests.
    (
        Meaning::Throttled,
        &[
            "too many requests",
            "rate limit",
            "rate exceeded",
            "request count exceeded",   // infura
            "compute units per second", // alchemy
            "exceeded the requests",    // others: "… per second limit"
            "request limit",            // quicknode
        ],
    ),
];

/// The meaning of a lower-cased message; `None` when no row fits.
pub(super) fn look_up(message: &str) -> Option<Meaning> {
    let bare = ERIGON_PREFIXES
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix))
        .unwrap_or(message)
        .trim();
    let whole = WHOLE.iter().find(|(word, _)| *word == bare);
    let said =
        |(_, phrases): &&(Meaning, &[&str])| phrases.iter().any(|phrase| says(message, phrase));
    let by_phrase = || PHRASES.iter().find(said).map(|(meaning, _)| *meaning);
    whole.map(|(_, meaning)| *meaning).or_else(by_phrase)
}

/// Whether the phrase is in the text, from the beginning of a word on.
fn says(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
}

/// Every row, for the tests.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, Meaning)> {
    let phrases = PHRASES
        .iter()
        .flat_map(|(meaning, phrases)| phrases.iter().map(|phrase| (*phrase, *meaning)));
    WHOLE.iter().copied().chain(phrases)
}
