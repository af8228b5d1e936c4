use super::*;

fn meaning(message: &str) -> Meaning {
    Complaint {
        code: -32000,
        message,
    }
    .meaning()
}

/// Full texts as the clients write them, row by row.
const SAID: &[(Meaning, &[&str])] = &[
    (
        Meaning::Known,
        &[
            "already known",
            "Known transaction",
            "ALREADY_EXISTS: already known",
            "existing txn with same hash",
            "transaction already imported",
            "AlreadyKnown",
            "Transaction with the same hash was already imported.",
            "Known transaction: 0x5f0c…",
        ],
    ),
    (
        Meaning::NonceUsed,
        &[
            "nonce too low",
            "nonce too low: next nonce 7, tx nonce 3",
            "Nonce too low",
            "INTERNAL_ERROR: nonce too low",
            "Transaction nonce is too low. Try incrementing the nonce.",
            "OldNonce",
            "INTERNAL_ERROR: mined",
            "mined",
            "Nonce too low. Expected nonce to be 3 but got 2.",
        ],
    ),
    (
        Meaning::ReplacementTooCheap,
        &[
            "replacement transaction underpriced",
            "replacement transaction underpriced: new tx gas fee cap 5 < 6 queued + 100% replacement penalty",
            "Replacement transaction gas price too low",
            "could not replace existing tx",
            "INTERNAL_ERROR: replacement transaction underpriced",
        ],
    ),
    (
        Meaning::BelowMinimum,
        &[
            "transaction underpriced",
            "transaction underpriced: gas tip cap 0, minimum needed 1",
            "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
            "transaction priority fee below minimum required priority fee: 5",
            "FEE_TOO_LOW: underpriced",
            "fee too low",
            "Gas price below configured minimum gas price",
        ],
    ),
    (
        Meaning::BelowBaseFee,
        &[
            "max fee per gas less than block base fee",
            "max fee per gas less than block base fee: address 0xab, maxFeePerGas: 1, baseFee: 7",
            "Gas price below current base fee",
            "max fee per blob gas less than block blob gas fee",
            "Block `blob_gas_price` is greater than tx-specified `max_fee_per_blob_gas` after Cancun",
        ],
    ),
    (
        Meaning::PoolFull,
        &[
            "txpool is full",
            "pending sub-pool is full",
            "baseFee sub-pool is full",
            "queued sub-pool is full",
            "spammer",
            "blobs limit in txpool is full",
            "future transaction tries to replace pending",
        ],
    ),
    (
        Meaning::AccountLimit,
        &[
            "account limit exceeded: pooled 16 txs",
            "nonce too far in future",
            "nonce too high",
            "Transaction nonce is too distant from current sender nonce",
            "nonce gap too large: maximum allowed 64",
            "queued sender dormant for too long",
        ],
    ),
    (
        Meaning::Delegated,
        &[
            "in-flight transaction limit reached for delegated accounts",
            "gapped-nonce tx from delegated accounts",
            "authority already reserved",
            "delegation nonce gap",
            "delegation authority has pending transaction",
            "EIP-7702 transaction with authority already reserved",
        ],
    ),
    (
        Meaning::TypeConflict,
        &[
            "address already reserved",
            "pending transaction type conflict",
            "can't replace blob-txn with a non-blob-txn",
        ],
    ),
    (
        Meaning::Funds,
        &[
            "insufficient funds for gas * price + value",
            "insufficient funds for gas * price + value: balance 1, queued cost 2, tx cost 3, overshot 4",
            "transaction overdraws from account",
            "INTERNAL_ERROR: insufficient funds",
            "Upfront cost exceeds account balance",
            "insufficient funds for transfer",
        ],
    ),
    (
        Meaning::Gas,
        &[
            "intrinsic gas too low",
            "intrinsic gas too low: gas 20000, minimum needed 21000",
            "insufficient gas for floor data gas cost: gas 21000, minimum needed 30000",
            "IntrinsicGas",
            "Intrinsic gas exceeds gas limit",
            "exceeds block gas limit",
            "gas limit reached",
            "Transaction gas limit of 9 exceeds block gas limit of 8",
            "transaction gas limit too high (cap: 16777216, tx: 20000000)",
            "gas limit is too high",
        ],
    ),
    (
        Meaning::Shape,
        &[
            "oversized data: transaction size 200000, limit 131072",
            "transaction too large",
            "max initcode size exceeded: code size 50000, limit 49152",
            "RLPTooLong",
            "initcode too large",
            "failed to decode signed transaction",
            "negative value",
            "transaction type not supported",
            "fork supporting this transaction type is not activated yet",
            "blobless blob transaction",
            "missing sidecar in blob transaction",
            "invalid kzg proof",
            "set code tx must have at least one authorization tuple",
            "max priority fee per gas higher than max fee per gas",
        ],
    ),
    (
        Meaning::Identity,
        &[
            "invalid sender",
            "failed to recover sender",
            "invalid transaction signature",
            "Invalid signature",
            "invalid chain id for signer: have 1 want 5",
            "Wrong chainId",
            "only replay-protected (EIP-155) transactions allowed over RPC",
            "Incompatible EIP-155 transaction, signed for another chain",
            "sender not an eoa: address 0xab, len(code): 5",
        ],
    ),
    (
        Meaning::NodePolicy,
        &[
            "tx fee (2.00 ether) exceeds the configured cap (1.00 ether)",
            "Transaction fee cap exceeded",
            "Sender account not authorized to send transactions",
            "transaction sender is not on the whitelist",
        ],
    ),
    (
        Meaning::NotReady,
        &[
            "node is syncing",
            "Transaction pool not enabled, (Either txpool explicitly disabled, or node not yet in sync)",
            "Initial sync is still in progress",
            "transaction indexing is in progress",
            "sequencer temporarily not available",
            "publishing transactions not supported by this endpoint",
            "error getting sender state",
            "Too Many Requests",
        ],
    ),
    (
        Meaning::Forwarded,
        &["failed to publish transaction to any of the forwarding targets"],
    ),
    (
        Meaning::Unknown,
        &[
            "",
            "something nobody has ever said",
            // None of these may be taken for "known transaction", "mined" or "underpriced".
            "unknown transaction",
            "cannot be determined",
            "transaction was mined long ago, and something else",
            "internal error",
        ],
    ),
];

#[test]
fn every_row_is_read_as_the_client_means_it() {
    for (expected, texts) in SAID {
        for text in *texts {
            assert_eq!(meaning(text), *expected, "{text:?}");
        }
    }
}

#[test]
fn every_phrase_of_the_table_is_reached() {
    // A phrase that another one hides, because it stands before it, would never be found.
    for (phrase, expected) in table::rows() {
        assert_eq!(meaning(phrase), expected, "{phrase:?}");
    }
}

#[test]
fn classes_for_the_lane() {
    let outcome = |message: &str| {
        Complaint {
            code: -32000,
            message,
        }
        .send_outcome()
    };
    let text = |message: &str| message.to_owned();
    assert_eq!(outcome("already known"), SendOutcome::Accepted);
    assert_eq!(outcome("nonce too low"), SendOutcome::NonceTooLow);
    for (meaning, texts) in SAID {
        let message = texts[0];
        let expected = match meaning {
            Meaning::Known => SendOutcome::Accepted,
            Meaning::NonceUsed => SendOutcome::NonceTooLow,
            Meaning::ReplacementTooCheap => SendOutcome::ReplacementUnderpriced(text(message)),
            Meaning::BelowMinimum | Meaning::BelowBaseFee => {
                SendOutcome::Underpriced(text(message))
            }
            Meaning::Funds => SendOutcome::Underfunded(text(message)),
            Meaning::Gas | Meaning::Shape | Meaning::Identity => {
                SendOutcome::Rejected(text(message))
            }
            Meaning::PoolFull
            | Meaning::AccountLimit
            | Meaning::Delegated
            | Meaning::TypeConflict
            | Meaning::NodePolicy
            | Meaning::NotReady => SendOutcome::Busy(text(message)),
            Meaning::Forwarded | Meaning::Unknown => SendOutcome::Unknown(text(message)),
        };
        assert_eq!(outcome(message), expected, "{message:?}");
    }
}

#[test]
fn the_code_counts_only_where_the_text_says_nothing() {
    let with_code = |code, message| Complaint { code, message }.meaning();
    assert_eq!(
        with_code(-32005, "daily request count exceeded"),
        Meaning::NotReady
    );
    assert_eq!(with_code(-32601, "no such method"), Meaning::NotReady);
    assert_eq!(with_code(-32005, "nonce too low"), Meaning::NonceUsed);
    assert_eq!(with_code(-32603, "Internal error"), Meaning::Unknown);
    assert_eq!(with_code(-32003, "transaction rejected"), Meaning::Unknown);
}
