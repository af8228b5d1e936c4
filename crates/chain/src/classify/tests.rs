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
            "Nonce too low. Expected nonce to be 3 but got 2. Note that transactions can't be queued when automining.",
            "Transaction nonce too low. Expected nonce to be at least 3 but got 2.",
            "the tx doesn't have the correct nonce. account has nonce of: 3 tx has nonce of: 2",
            "VM Exception while processing transaction: the tx doesn't have the correct nonce. account has nonce of: 41 tx has nonce of: 40 (vm hf=london -> block -> tx)",
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
            "Replacement transaction underpriced. A gasPrice/maxFeePerGas of at least 22 is necessary to replace the existing transaction with nonce 3.",
            "Replacement transaction underpriced. A gasPrice/maxPriorityFeePerGas of at least 22 is necessary to replace the existing transaction with nonce 3.",
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
            "Transaction gas price is 1, which is below the minimum of 5",
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
            "Transaction maxFeePerGas (9) is too low for the next block, which has a baseFeePerGas of 10",
            "Transaction gasPrice (9) is too low for the next block, which has a baseFeePerGas of 10",
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
            "queued sender dormant for too long",
        ],
    ),
    (
        Meaning::TooFarAhead,
        &[
            "nonce too high",
            "nonce too high: tx nonce 9, gapped nonce 5",
            "nonce too far in future",
            "Transaction nonce is too distant from current sender nonce",
            "nonce gap too large: maximum allowed 64",
            "Nonce too high. Expected nonce to be 3 but got 5. Note that transactions can't be queued when automining.",
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
            "Sender doesn't have enough funds to send tx. The max upfront cost is: 9 and the sender's balance is: 1.",
            "VM Exception while processing transaction: sender doesn't have enough funds to send tx. The upfront cost is: 9 and the sender's account only has: 1",
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
            "Transaction gas limit is 9 and exceeds block gas limit of 8",
            "Transaction requires at least 21000 gas but got 20000",
            "Transaction gas limit is 900000000 and exceeds transaction gas cap of 16777216",
            "transaction gas limit (20000000) is greater than the cap (16777216)",
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
            "rlp: value size exceeds available input length",
            "unexpected string",
            "Could not decode transaction: invalid RLP: remainder must be zero",
            "negative value",
            "transaction type not supported",
            "fork supporting this transaction type is not activated yet",
            "blobless blob transaction",
            "missing sidecar in blob transaction",
            "invalid kzg proof",
            "set code tx must have at least one authorization tuple",
            "max priority fee per gas higher than max fee per gas",
            "Trying to send a deployment transaction whose init code length is 50000. The max length allowed by EIP-3860 is 49152.",
            "maxPriorityFeePerGas (2) is bigger than maxFeePerGas (1)",
            "maxFeePerGas cannot be less than maxPriorityFeePerGas (The total must be the larger of the two)",
            "Invalid transaction type 9.",
        ],
    ),
    (
        Meaning::Identity,
        &[
            "invalid sender",
            "failed to recover sender",
            "Failed to recover the signer",
            "invalid transaction signature",
            "Invalid signature",
            "invalid chain id for signer: have 1 want 5",
            "Wrong chainId",
            "only replay-protected (EIP-155) transactions allowed over RPC",
            "Incompatible EIP-155 transaction, signed for another chain",
            "sender not an eoa: address 0xab, len(code): 5",
            "Trying to send an incompatible EIP-155 transaction, signed for another chain.",
            "Trying to send a raw transaction with an invalid chainId. The expected chainId is 31337",
            "Invalid chainId 5 provided, expected 31337 instead.",
            "Invalid chain id (5) for chain with id 31337.",
            "Incompatible EIP155-based V 37 and chain id 31337. See the Common parameter of the Transaction constructor to set the chain id.",
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
        ],
    ),
    (
        Meaning::Throttled,
        &[
            "Too Many Requests",
            "daily request count exceeded, request rate limited",
            "Your app has exceeded its compute units per second capacity.",
            "project ID request rate exceeded",
            "50/second request limit reached",
            "call rate limit exhausted, retry in 10s",
        ],
    ),
    (
        Meaning::Executed,
        &[
            // Whatever a contract says, it is not what the node says.
            "VM Exception while processing transaction: reverted with reason string 'insufficient funds'",
            "reverted with reason string 'nonce too low'",
            "VM Exception while processing transaction: revert already known",
            "VM Exception while processing transaction: revert",
            "Transaction reverted without a reason",
            "VM Exception while processing transaction: reverted with panic code 0x11 (Arithmetic operation underflowed or overflowed outside of an unchecked block)",
            "VM Exception while processing transaction: invalid opcode",
            "VM Exception while processing transaction: out of gas",
            "execution reverted: already known",
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
            Meaning::Shape => SendOutcome::Rejected(text(message)),
            Meaning::Gas | Meaning::Identity | Meaning::NodePolicy | Meaning::TypeConflict => {
                SendOutcome::Refused(text(message))
            }
            Meaning::PoolFull | Meaning::TooFarAhead => full(message, None),
            Meaning::AccountLimit => full(message, Some(16)),
            Meaning::Delegated => full(message, Some(1)),
            Meaning::NotReady | Meaning::Throttled => SendOutcome::Busy(text(message)),
            Meaning::Executed | Meaning::Forwarded | Meaning::Unknown => {
                SendOutcome::Unknown(text(message))
            }
        };
        assert_eq!(outcome(message), expected, "{message:?}");
    }
    for (message, most) in [
        ("nonce gap too large: maximum allowed 64", Some(64)),
        ("account limit exceeded: pooled 0 txs", None),
        ("account limit exceeded: pooled", None),
        (
            "account limit exceeded: pooled 99999999999999999999 txs",
            None,
        ),
        ("queued sender dormant for 3 hours", None),
    ] {
        assert_eq!(outcome(message), full(message, most));
    }
}

fn full(message: &str, most: Option<u64>) -> SendOutcome {
    SendOutcome::Full {
        text: message.to_owned(),
        most,
    }
}

#[test]
fn the_code_counts_only_where_the_text_says_nothing_or_two_things() {
    let with_code = |code, message| Complaint { code, message }.meaning();
    assert_eq!(with_code(-32005, "daily quota used up"), Meaning::Throttled);
    assert_eq!(with_code(429, "slow down"), Meaning::Throttled);
    assert_eq!(with_code(-32601, "no such method"), Meaning::NotReady);
    let underpriced = |code| with_code(code, "transaction underpriced");
    assert_eq!(underpriced(-32003), Meaning::ReplacementTooCheap, "ganache");
    assert_eq!(underpriced(-32000), Meaning::BelowMinimum);
    assert_eq!(with_code(-32005, "nonce too low"), Meaning::NonceUsed);
    assert_eq!(with_code(-32603, "Internal error"), Meaning::Unknown);
    assert_eq!(with_code(-32003, "transaction rejected"), Meaning::Unknown);
}
