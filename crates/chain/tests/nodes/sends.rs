//! The error texts of nodes for sent txs, and their outcomes.

use alloy_primitives::{U256, keccak256};
use domain::attempt::OutgoingEnvelope;
use domain::{Bytes, ChainId, Fees, Nonce, SendOutcome, UnsignedEnvelope};
use rig::evm::account;
use serde_json::json;

use crate::fixture::{GWEI, NodeFixture, NodeSoftware, fees, sign, transfer, unfunded_account};

/// The outcome without the node's text.
fn outcome_label(outcome: &SendOutcome) -> &'static str {
    match outcome {
        SendOutcome::Accepted => "accepted",
        SendOutcome::NonceTooLow => "nonce too low",
        SendOutcome::Underpriced(_) => "underpriced",
        SendOutcome::ReplacementUnderpriced(_) => "replacement underpriced",
        SendOutcome::ForeignPending(_) => "foreign pending",
        SendOutcome::Underfunded(_) => "underfunded",
        SendOutcome::Full { .. } => "full",
        SendOutcome::Busy(_) => "busy",
        SendOutcome::Refused(_) => "refused",
        SendOutcome::Rejected(_) => "rejected",
        SendOutcome::GasTooLow(_) => "gas too low",
        SendOutcome::Unknown(_) => "unknown",
        SendOutcome::NotSent(_) => "not sent",
    }
}

/// Sends one after the other; reports all differences together.
async fn assert_outcomes(fixture: &NodeFixture, cases: Vec<(&str, OutgoingEnvelope, &str)>) {
    let mut wrong = Vec::new();
    for (case, outgoing, expected) in cases {
        let outcome = fixture.send(&[outgoing]).await.remove(0);
        if outcome_label(&outcome) != expected {
            wrong.push(format!("{case}: expected {expected}, got {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{:?}: {wrong:#?}", fixture.software);
}

pub(crate) async fn check_send_errors(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    at_one_nonce(&fixture).await;
    assert_outcomes(&fixture, invalid_bytes_cases(&fixture).await).await;
    assert_outcomes(&fixture, account_state_cases(&fixture).await).await;
}

/// Several txs with one nonce: the same tx, another of the lane, a foreign one.
async fn at_one_nonce(fixture: &NodeFixture) {
    let nonce = fixture.account_nonces(account(1).0).await.latest.0;
    let bid = |wei: u64, max_fee, tip| {
        sign(&UnsignedEnvelope {
            value: U256::from(wei),
            fees: fees(max_fee, tip),
            ..transfer(1, nonce)
        })
    };
    let first = bid(1, 10 * GWEI, GWEI);
    let cheap = bid(2, 10 * GWEI, GWEI);
    let better = bid(2, 12 * GWEI, 2 * GWEI);
    let with_other = |item: &OutgoingEnvelope, other: &OutgoingEnvelope| OutgoingEnvelope {
        others: vec![other.hash],
        ..item.clone()
    };
    let cases = vec![
        ("first", first.clone(), "accepted"),
        ("the same again", first.clone(), "accepted"),
        ("over a foreign one", cheap.clone(), "foreign pending"),
        (
            "over another of the lane",
            with_other(&cheap, &first),
            "replacement underpriced",
        ),
        (
            "with a better price",
            with_other(&better, &first),
            "accepted",
        ),
    ];
    assert_outcomes(fixture, cases).await;
    fixture.mine();
    let cases = vec![
        ("the mined one", better, "accepted"),
        ("the replaced one", first, "nonce too low"),
        ("a foreign one", cheap, "nonce too low"),
    ];
    assert_outcomes(fixture, cases).await;
}

/// Errors of the bytes themselves.
async fn invalid_bytes_cases(
    fixture: &NodeFixture,
) -> Vec<(&'static str, OutgoingEnvelope, &'static str)> {
    let nonce = fixture.account_nonces(account(2).0).await.latest;
    let good = transfer(2, nonce.0);
    let with = |change: fn(&mut UnsignedEnvelope)| {
        let mut unsigned = good.clone();
        change(&mut unsigned);
        sign(&unsigned)
    };
    let bytes = |raw: Vec<u8>| OutgoingEnvelope {
        nonce,
        hash: keccak256(&raw),
        raw: raw.into(),
        others: Vec::new(),
        to_all: false,
    };
    let whole = sign(&good);
    let cut = whole.raw[..60].to_vec();
    let mut forged = whole.raw.to_vec();
    let end = forged.len();
    forged[end - 32..].fill(0xff); // an s that no signature has
    let tip_above_cap = |unsigned: &mut UnsignedEnvelope| unsigned.fees = fees(GWEI, 2 * GWEI);
    let mut cases = vec![
        ("bytes that are none", bytes(vec![1, 2, 3]), "rejected"),
        ("bytes that end too early", bytes(cut), "rejected"),
        ("a broken signature", bytes(forged), "refused"),
        (
            "another chain",
            with(|unsigned| unsigned.chain_id = ChainId(5)),
            "refused",
        ),
        (
            "too little gas",
            with(|unsigned| unsigned.gas = 20_000),
            "gas too low",
        ),
        (
            "more gas than a block has",
            with(|unsigned| unsigned.gas = 31_000_000),
            "rejected",
        ),
        (
            "init code over the limit",
            with(|unsigned| {
                unsigned.to = None;
                unsigned.value = U256::ZERO;
                unsigned.gas = 10_000_000;
                unsigned.data = Bytes::from(vec![0; 50_000]);
            }),
            "rejected",
        ),
    ];
    // Ganache accepts and mines it.
    if fixture.software != NodeSoftware::Ganache {
        cases.push(("a tip above the cap", with(tip_above_cap), "rejected"));
    }
    cases
}

/// Errors that depend on the account's state, and txs that only seem wrong.
async fn account_state_cases(
    fixture: &NodeFixture,
) -> Vec<(&'static str, OutgoingEnvelope, &'static str)> {
    let at = async |index: u32, ahead: u64| {
        let next = fixture.account_nonces(account(index).0).await.latest.0;
        transfer(index, next + ahead)
    };
    let legacy = Fees::Legacy {
        gas_price: 10 * GWEI,
    };
    let below_base = match fixture.software {
        NodeSoftware::Anvil => "underpriced",
        // They keep it until the base fee falls.
        NodeSoftware::Hardhat | NodeSoftware::Ganache | NodeSoftware::DevChain => "accepted",
    };
    let oversized = match fixture.software {
        NodeSoftware::DevChain => "rejected",
        NodeSoftware::Anvil | NodeSoftware::Hardhat | NodeSoftware::Ganache => "accepted", // they have no limit
    };
    fixture.set("Balance", account(8).0, json!("0x1"));
    let unfunded = UnsignedEnvelope {
        signer: unfunded_account(),
        nonce: Nonce(0),
        ..transfer(0, 0)
    };
    vec![
        (
            "an account that never had money",
            sign(&unfunded),
            "underfunded",
        ),
        (
            "an account that has too little",
            sign(&at(8, 0).await),
            "underfunded",
        ),
        (
            "more than there is",
            sign(&UnsignedEnvelope {
                value: U256::MAX >> 8,
                ..at(4, 0).await
            }),
            "underfunded",
        ),
        ("a gap", sign(&at(3, 5).await), "accepted"),
        (
            "an old-fashioned price",
            sign(&UnsignedEnvelope {
                fees: legacy,
                ..at(5, 0).await
            }),
            "accepted",
        ),
        (
            "a cap below the base fee",
            sign(&UnsignedEnvelope {
                fees: fees(7, 1),
                ..at(6, 0).await
            }),
            below_base,
        ),
        (
            "130 KiB of data",
            sign(&UnsignedEnvelope {
                data: Bytes::from(vec![0; 130 << 10]),
                gas: 12_000_000,
                ..at(7, 0).await
            }),
            oversized,
        ),
    ]
}

pub(crate) async fn check_many_sends(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    let sent = fixture.transfers(0, 300).await;
    let outcomes = fixture.send(&sent).await;
    let refused: Vec<_> = outcomes
        .iter()
        .filter(|outcome| **outcome != SendOutcome::Accepted)
        .collect();
    assert!(refused.is_empty(), "{software:?}: {refused:?}");
    let again = fixture.send(&sent).await;
    assert_eq!(again, outcomes, "{software:?}: all are known");
    fixture.mine();
    let mined = fixture.receipts(&sent).await;
    assert_eq!(mined.len(), sent.len(), "{software:?}");
}

/// Hardhat with automine accepts no nonce gap, and returns the result of the execution.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardhat_with_automine_accepts_in_order_only() {
    let fixture = NodeFixture::instant(NodeSoftware::Hardhat).await;
    let gap = fixture.transfers(1, 2).await.remove(1);
    assert_outcomes(&fixture, vec![("a gap", gap, "full")]).await;
    let ten = fixture.transfers(2, 10).await;
    let outcomes = fixture.send(&ten).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 10], "in order");
    assert_eq!(fixture.receipts(&ten).await.len(), 10);

    let reverts = vec![0x60, 0x00, 0x60, 0x00, 0xfd]; // REVERT(0, 0)
    let failed = fixture.deploy(3, reverts.into()).await;
    let mined = fixture.receipts(&[failed]).await;
    assert!(
        !mined[0].succeeded,
        "mined, although the node returned an error"
    );
}
