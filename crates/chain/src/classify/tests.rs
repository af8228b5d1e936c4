use super::*;

fn error(message: &str) -> RpcError<'_> {
    RpcError {
        code: -32000,
        message,
    }
}

fn kind(message: &str) -> NodeErrorKind {
    error(message).kind()
}

/// Complete texts as the clients write them, by kind.
const NODE_TEXTS: &[(NodeErrorKind, &[&str])] = &[
    (
        NodeErrorKind::AlreadyKnown,
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
        NodeErrorKind::NonceTooLow,
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
        NodeErrorKind::ReplacementUnderpriced,
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
        NodeErrorKind::BelowPoolMinimum,
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
        NodeErrorKind::BelowBaseFee,
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
        NodeErrorKind::PoolFull,
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
        NodeErrorKind::AccountLimit,
        &[
            "account limit exceeded: pooled 16 txs",
            "queued sender dormant for too long",
        ],
    ),
    (
        NodeErrorKind::NonceTooHigh,
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
        NodeErrorKind::Delegated,
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
        NodeErrorKind::TypeConflict,
        &[
            "address already reserved",
            "pending transaction type conflict",
            "can't replace blob-txn with a non-blob-txn",
        ],
    ),
    (
        NodeErrorKind::InsufficientFunds,
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
        NodeErrorKind::GasTooLow,
        &[
            "intrinsic gas too low",
            "intrinsic gas too low: gas 20000, minimum needed 21000",
            "insufficient gas for floor data gas cost: gas 21000, minimum needed 30000",
            "IntrinsicGas",
            "Intrinsic gas exceeds gas limit",
            "Transaction requires at least 21000 gas but got 20000",
        ],
    ),
    (
        NodeErrorKind::GasTooHigh,
        &[
            "intrinsic gas too high -- tx.gas_limit > env.block.gas_limit",
            "exceeds block gas limit",
            "gas limit reached",
            "Transaction gas limit of 9 exceeds block gas limit of 8",
            "transaction gas limit too high (cap: 16777216, tx: 20000000)",
            "gas limit is too high",
            "Transaction gas limit is 9 and exceeds block gas limit of 8",
            "Transaction gas limit is 900000000 and exceeds transaction gas cap of 16777216",
            "transaction gas limit (20000000) is greater than the cap (16777216)",
        ],
    ),
    (
        NodeErrorKind::InvalidEncoding,
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
        NodeErrorKind::InvalidSender,
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
        NodeErrorKind::NodePolicy,
        &[
            "tx fee (2.00 ether) exceeds the configured cap (1.00 ether)",
            "Transaction fee cap exceeded",
            "Sender account not authorized to send transactions",
            "transaction sender is not on the whitelist",
        ],
    ),
    (
        NodeErrorKind::NotReady,
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
        NodeErrorKind::RateLimited,
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
        NodeErrorKind::ExecutionFailed,
        &[
            // The text of a contract is not the text of the node.
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
        NodeErrorKind::ForwardFailed,
        &["failed to publish transaction to any of the forwarding targets"],
    ),
    (
        NodeErrorKind::Unknown,
        &[
            "",
            "a text that no node sends",
            // None of these may match "known transaction", "mined" or "underpriced".
            "unknown transaction",
            "cannot be determined",
            "transaction was mined long ago, and something else",
            "internal error",
        ],
    ),
];

#[test]
fn complete_node_texts_have_their_kind() {
    for (expected, texts) in NODE_TEXTS {
        for text in *texts {
            assert_eq!(kind(text), *expected, "{text:?}");
        }
    }
}

#[test]
fn no_phrase_is_hidden_by_an_earlier_one() {
    for (expected, phrase) in table::rows() {
        assert_eq!(kind(phrase), expected, "{phrase:?}");
    }
}

#[test]
fn every_kind_has_its_send_outcome() {
    let outcome = |message: &str| error(message).send_outcome();
    let text = |message: &str| message.to_owned();
    assert_eq!(outcome("already known"), SendOutcome::Accepted);
    assert_eq!(outcome("nonce too low"), SendOutcome::NonceTooLow);
    for (kind, texts) in NODE_TEXTS {
        let message = texts[0];
        let expected = match kind {
            NodeErrorKind::AlreadyKnown => SendOutcome::Accepted,
            NodeErrorKind::NonceTooLow => SendOutcome::NonceTooLow,
            NodeErrorKind::ReplacementUnderpriced => {
                SendOutcome::ReplacementUnderpriced(text(message))
            }
            NodeErrorKind::BelowPoolMinimum | NodeErrorKind::BelowBaseFee => {
                SendOutcome::Underpriced(text(message))
            }
            NodeErrorKind::InsufficientFunds => SendOutcome::Underfunded(text(message)),
            NodeErrorKind::InvalidEncoding | NodeErrorKind::GasTooHigh => {
                SendOutcome::Rejected(text(message))
            }
            NodeErrorKind::GasTooLow => SendOutcome::GasTooLow(text(message)),
            NodeErrorKind::InvalidSender
            | NodeErrorKind::NodePolicy
            | NodeErrorKind::TypeConflict => SendOutcome::Refused(text(message)),
            NodeErrorKind::PoolFull | NodeErrorKind::NonceTooHigh => full(message, None),
            NodeErrorKind::AccountLimit => full(message, Some(16)),
            NodeErrorKind::Delegated => full(message, Some(1)),
            NodeErrorKind::NotReady | NodeErrorKind::RateLimited => {
                SendOutcome::Busy(text(message))
            }
            NodeErrorKind::ExecutionFailed
            | NodeErrorKind::ForwardFailed
            | NodeErrorKind::Unknown => SendOutcome::Unknown(text(message)),
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
fn code_decides_only_for_unknown_or_ambiguous_text() {
    let with_code = |code, message| RpcError { code, message }.kind();
    assert_eq!(
        with_code(-32005, "daily quota used up"),
        NodeErrorKind::RateLimited
    );
    assert_eq!(with_code(429, "slow down"), NodeErrorKind::RateLimited);
    assert_eq!(with_code(-32601, "no such method"), NodeErrorKind::NotReady);
    let underpriced = |code| with_code(code, "transaction underpriced");
    assert_eq!(
        underpriced(-32003),
        NodeErrorKind::ReplacementUnderpriced,
        "ganache"
    );
    assert_eq!(underpriced(-32000), NodeErrorKind::BelowPoolMinimum);
    assert_eq!(
        with_code(-32005, "nonce too low"),
        NodeErrorKind::NonceTooLow
    );
    assert_eq!(with_code(-32603, "Internal error"), NodeErrorKind::Unknown);
    assert_eq!(
        with_code(-32003, "transaction rejected"),
        NodeErrorKind::Unknown
    );
}

#[test]
fn errors_of_reads_and_dry_runs_are_recognized() {
    for text in [
        "the method eth_x does not exist/is not available",
        "Method not found",
        "Method eth_x is not supported",
    ] {
        assert!(error(text).is_missing_method(), "{text}");
    }
    for code in [CODE_METHOD_NOT_FOUND, CODE_INVALID_PARAMS] {
        assert!(RpcError { code, message: "" }.is_missing_method());
    }
    for text in [
        "header not found",
        "Unknown block",
        "Block 7 could not be found",
    ] {
        assert!(error(text).is_unknown_block(), "{text}");
    }
    assert!(error("Batch too large").is_batch_refusal());
    for text in [
        "EVM error InvalidFEOpcode",
        "Out of gas",
        "VM execution error.",
    ] {
        assert!(error(text).is_execution_failure(), "{text}");
    }
    assert!(!error("an EVM error").is_execution_failure());
    assert_eq!(
        error("Execution reverted: no").without_revert_prefix(),
        ": no"
    );
    for text in ["", "nonce too low", "internal error"] {
        let error = error(text);
        assert!(
            !error.is_missing_method() && !error.is_unknown_block(),
            "{text}"
        );
        assert!(
            !error.is_batch_refusal() && !error.is_execution_failure(),
            "{text}"
        );
    }
}

/// The calls that compare a text with a literal.
const COMPARISONS: &[&str] = &[
    ".contains(\"",
    ".starts_with(\"",
    ".ends_with(\"",
    ".strip_prefix(\"",
    ".strip_suffix(\"",
    ".split_once(\"",
    ".find(\"",
    ".matches(\"",
    "== \"",
];

/// Literals that are part of a format or a protocol and not a text for people.
const FORMATS: &[&str] = &["0x", "localhost"];

#[test]
fn foreign_texts_are_matched_in_the_table_only() {
    let mut strays = Vec::new();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("table.rs") && !path.ends_with("tests.rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let (code, _) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
                let found = code.lines().filter(|line| compares_a_foreign_text(line));
                strays.extend(found.map(|line| format!("{}: {}", path.display(), line.trim())));
            }
        }
    }
    assert!(
        strays.is_empty(),
        "move these texts to classify/table.rs: {strays:#?}"
    );
    assert!(compares_a_foreign_text(
        r#"if text.contains("nonce too low") {"#
    ));
    assert!(!compares_a_foreign_text(
        r#"let digits = text.strip_prefix("0x");"#
    ));
}

fn compares_a_foreign_text(line: &str) -> bool {
    COMPARISONS.iter().any(|comparison| {
        let literal = |(_, after): (&str, &str)| after.split('"').next().map(str::to_owned);
        let literal = line.split_once(comparison).and_then(literal);
        literal.is_some_and(|literal| !FORMATS.contains(&literal.as_str()))
    })
}
