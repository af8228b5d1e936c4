//! What nodes say of transactions, and what it means.

use alloy_primitives::{U256, keccak256};
use domain::attempt::OutgoingEnvelope;
use domain::{Bytes, ChainId, Fees, Nonce, SendOutcome, UnsignedEnvelope};
use rig::evm::account;
use serde_json::json;

use crate::world::{GWEI, Make, World, fees, poor, sign, transfer};

/// The outcome without the node's words.
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
        SendOutcome::Unknown(_) => "unknown",
        SendOutcome::NotSent(_) => "not sent",
    }
}

/// Sends one after the other and compares; says everything that differs at once.
async fn compare(world: &World, cases: Vec<(&str, OutgoingEnvelope, &str)>) {
    let mut wrong = Vec::new();
    for (case, outgoing, expected) in cases {
        let outcome = world.send(&[outgoing]).await.remove(0);
        if outcome_label(&outcome) != expected {
            wrong.push(format!("{case}: expected {expected}, got {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{:?}: {wrong:#?}", world.make);
}

pub(crate) async fn complaints(make: Make) {
    let world = World::manual(make).await;
    at_one_nonce(&world).await;
    compare(&world, of_bytes(&world).await).await;
    compare(&world, of_state(&world).await).await;
}

/// Several transactions at one nonce: ours, another of ours, somebody else's.
async fn at_one_nonce(world: &World) {
    let nonce = world.account_nonces(account(1).0).await.latest.0;
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
    let beside = |item: &OutgoingEnvelope, other: &OutgoingEnvelope| OutgoingEnvelope {
        others: vec![other.hash],
        ..item.clone()
    };
    let cases = vec![
        ("first", first.clone(), "accepted"),
        ("the same again", first.clone(), "accepted"),
        ("over a foreign one", cheap.clone(), "foreign pending"),
        (
            "over one of ours",
            beside(&cheap, &first),
            "replacement underpriced",
        ),
        ("with a better price", beside(&better, &first), "accepted"),
    ];
    compare(world, cases).await;
    world.mine();
    let cases = vec![
        ("the mined one", better, "accepted"),
        ("the replaced one", first, "nonce too low"),
        ("one of somebody else", cheap, "nonce too low"),
    ];
    compare(world, cases).await;
}

/// What is wrong with the bytes themselves.
async fn of_bytes(world: &World) -> Vec<(&'static str, OutgoingEnvelope, &'static str)> {
    let nonce = world.account_nonces(account(2).0).await.latest;
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
            "refused",
        ),
        (
            "more gas than a block has",
            with(|unsigned| unsigned.gas = 31_000_000),
            "refused",
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
    // Ganache takes it, and would mine it.
    if world.make != Make::Ganache {
        cases.push(("a tip above the cap", with(tip_above_cap), "rejected"));
    }
    cases
}

/// What is wrong at present, and what only looks wrong.
async fn of_state(world: &World) -> Vec<(&'static str, OutgoingEnvelope, &'static str)> {
    let at = async |index: u32, ahead: u64| {
        let next = world.account_nonces(account(index).0).await.latest.0;
        transfer(index, next + ahead)
    };
    let legacy = Fees::Legacy {
        gas_price: 10 * GWEI,
    };
    let below_base = match world.make {
        Make::Anvil => "underpriced",
        // They keep it until the base fee has come down.
        Make::Hardhat | Make::Ganache | Make::DevChain => "accepted",
    };
    let oversized = match world.make {
        Make::DevChain => "rejected",
        Make::Anvil | Make::Hardhat | Make::Ganache => "accepted", // they have no limit
    };
    world.set("Balance", account(8).0, json!("0x1"));
    let penniless = UnsignedEnvelope {
        signer: poor(),
        nonce: Nonce(0),
        ..transfer(0, 0)
    };
    vec![
        (
            "an account that never had money",
            sign(&penniless),
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

pub(crate) async fn many(make: Make) {
    let world = World::manual(make).await;
    let sent = world.transfers(0, 300).await;
    let outcomes = world.send(&sent).await;
    let refused: Vec<_> = outcomes
        .iter()
        .filter(|outcome| **outcome != SendOutcome::Accepted)
        .collect();
    assert!(refused.is_empty(), "{make:?}: {refused:?}");
    let again = world.send(&sent).await;
    assert_eq!(again, outcomes, "{make:?}: all are known");
    world.mine();
    let mined = world.receipts(&sent).await;
    assert_eq!(mined.len(), sent.len(), "{make:?}");
}

/// Hardhat keeps nothing that it cannot mine at once, and answers with what came of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardhat_that_mines_at_once() {
    let world = World::instant(Make::Hardhat).await;
    let gap = world.transfers(1, 2).await.remove(1);
    compare(&world, vec![("a gap", gap, "full")]).await;
    let ten = world.transfers(2, 10).await;
    let outcomes = world.send(&ten).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 10], "in order");
    assert_eq!(world.receipts(&ten).await.len(), 10);

    let reverts = vec![0x60, 0x00, 0x60, 0x00, 0xfd]; // REVERT(0, 0)
    let failed = world.deploy(3, reverts.into()).await;
    let mined = world.receipts(&[failed]).await;
    assert!(!mined[0].succeeded, "mined, though it was called an error");
}
