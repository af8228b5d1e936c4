mod endpoints;

use std::time::Duration;

use alloy_primitives::U256;
use domain::{AttemptKind, Bytes, Fees, Timestamp, TxId, UnsignedEnvelope};
use engine::ports::Signer;
use uuid::Uuid;

use super::*;
use crate::network::{Link, LinkFaults};
use crate::rng::Rng;

const CHAIN: ChainId = ChainId(31_337);
const GWEI: u128 = 1_000_000_000;

fn account() -> Address {
    Address::repeat_byte(0xaa)
}

/// An envelope at a nonce, offering `gwei` in both fee fields.
fn envelope(nonce: u64, gwei: u128) -> UnsignedEnvelope {
    UnsignedEnvelope {
        tx_id: TxId(Uuid::from_u128(u128::from(nonce) + 1)),
        kind: AttemptKind::Original,
        chain_id: CHAIN,
        signer: account(),
        nonce: Nonce(nonce),
        to: Some(Address::repeat_byte(0xbb)),
        value: U256::from(7),
        data: Bytes::new(),
        gas: 21_000,
        fees: Fees::Eip1559 {
            max_fee: gwei * GWEI,
            max_priority_fee: gwei * GWEI,
        },
    }
}

async fn sign(envelope: UnsignedEnvelope) -> OutgoingEnvelope {
    let nonce = envelope.nonce;
    let signed = MemorySigner::new(vec![account()])
        .sign(vec![envelope], Timestamp(1))
        .await;
    let attempt = signed
        .into_iter()
        .next()
        .expect("one envelope")
        .expect("it has the key");
    OutgoingEnvelope {
        nonce,
        hash: attempt.hash,
        raw: attempt.raw,
        others: Vec::new(),
        to_all: false,
    }
}

/// Sends while there is time enough.
async fn send_all(chain: &dyn Chain, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
    let trust = || Duration::from_secs(60);
    chain.send(account(), outgoing, &trust).await
}

async fn send(chain: &dyn Chain, nonce: u64, gwei: u128) -> (B256, SendOutcome) {
    let outgoing = sign(envelope(nonce, gwei)).await;
    let mut outcomes = send_all(chain, std::slice::from_ref(&outgoing)).await;
    (outgoing.hash, outcomes.remove(0))
}

async fn account_nonces(chain: &dyn Chain) -> (u64, u64) {
    let nonces = chain.account_nonces(account(), ChainQuery::Pending, Quorum::One);
    let nonces = nonces.await.unwrap().first;
    (nonces.latest.0, nonces.pending.0)
}

#[tokio::test]
async fn nonces_are_mined_in_order_and_gaps_block() {
    let chain = MemoryChain::new(CHAIN);
    let (second, outcome) = send(&chain, 1, 5).await;
    assert_eq!(outcome, SendOutcome::Accepted);
    assert_eq!(account_nonces(&chain).await, (0, 0));
    chain.mine();
    assert_eq!(chain.mined(), [], "nonce 0 is missing");
    let (first, _) = send(&chain, 0, 5).await;
    assert_eq!(account_nonces(&chain).await, (0, 2));
    let header = chain.mine();
    assert_eq!(account_nonces(&chain).await, (2, 2));
    let receipts = chain
        .block_receipts(header.hash, &|_| true)
        .await
        .unwrap()
        .expect("a known block");
    assert_eq!(
        receipts.iter().map(|r| r.tx_hash).collect::<Vec<_>>(),
        [first, second]
    );
    assert!(receipts.iter().all(|r| r.succeeded && r.block_number == 2));
    assert_eq!(send(&chain, 0, 5).await.1, SendOutcome::NonceTooLow);
}

#[tokio::test]
async fn replacement_pays_ten_percent_more() {
    let chain = MemoryChain::new(CHAIN);
    let (first, _) = send(&chain, 0, 100).await;
    assert_eq!(
        send(&chain, 0, 100).await,
        (first, SendOutcome::Accepted),
        "known already"
    );
    let mut cheap = sign(envelope(0, 109)).await;
    let recorded = send_all(&chain, std::slice::from_ref(&cheap)).await;
    assert!(
        matches!(recorded[..], [SendOutcome::ForeignPending(_)]),
        "{recorded:?}"
    );
    cheap.others = vec![first];
    let recorded = send_all(&chain, &[cheap]).await;
    assert!(
        matches!(recorded[..], [SendOutcome::ReplacementUnderpriced(_)]),
        "{recorded:?}"
    );
    let (second, outcome) = send(&chain, 0, 110).await;
    assert_eq!(outcome, SendOutcome::Accepted);
    chain.mine();
    let mined = chain.receipts(&[first, second], Quorum::One).await.unwrap();
    assert_eq!(
        mined.iter().map(|r| r.tx_hash).collect::<Vec<_>>(),
        [second]
    );
}

#[tokio::test]
async fn refusals_have_specific_outcomes() {
    let chain = MemoryChain::new(CHAIN);
    let bare = OutgoingEnvelope {
        nonce: Nonce(0),
        hash: B256::ZERO,
        raw: Bytes::from_static(b"x"),
        others: Vec::new(),
        to_all: false,
    };
    assert!(matches!(
        send_all(&chain, &[bare]).await[..],
        [SendOutcome::Rejected(_)]
    ));
    chain.fund(account(), U256::from(10));
    assert!(matches!(
        send(&chain, 0, 5).await.1,
        SendOutcome::Underfunded(_)
    ));
    chain.fund(account(), U256::from(GWEI) * U256::from(10_000_000));
    chain.set_capacity(10, 2);
    assert_eq!(send(&chain, 1, 5).await.1, SendOutcome::Accepted);
    let full = |most| SendOutcome::Full {
        text: "txpool is full".to_owned(),
        most,
    };
    assert_eq!(send(&chain, 2, 5).await.1, full(None));
    chain.set_reports_depth(true);
    assert_eq!(send(&chain, 2, 5).await.1, full(Some(2)));
    chain.set_fees(50 * GWEI, GWEI);
    send(&chain, 0, 5).await;
    chain.mine();
    assert_eq!(chain.mined(), [], "below the base fee it waits");
}

#[tokio::test]
async fn reorged_out_transactions_are_pending_again() {
    let chain = MemoryChain::new(CHAIN);
    let mut hashes = Vec::new();
    for nonce in 0..3 {
        hashes.push(send(&chain, nonce, 5).await.0);
        chain.mine();
    }
    let old = chain.head();
    let placement = |tx: &ChainTx| match tx.envelope.nonce.0 {
        1 => ReorgPlacement::Mined,
        _ => ReorgPlacement::Dropped,
    };
    let dropped = chain.reorg(2, placement);
    assert_eq!(dropped.iter().map(|h| h.number).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(chain.head().number, 4, "the new branch is longer");
    assert_eq!(account_nonces(&chain).await, (2, 2));
    let mined = chain.receipts(&hashes, Quorum::One).await.unwrap();
    assert_eq!(
        mined.iter().map(|r| r.tx_hash).collect::<Vec<_>>(),
        hashes[..2]
    );
    assert!(!mined.iter().any(|r| r.block_hash == old.hash));
    let branch = chain.headers(0, 10).await.unwrap();
    assert_eq!(branch.len(), 5);
    assert!(
        branch
            .windows(2)
            .all(|pair| pair[1].parent_hash == pair[0].hash)
    );
    let orphan = chain.header(BlockTag::Hash(old.hash)).await.unwrap();
    assert_eq!(orphan, Some(old), "a reorged-out header is found by hash");
}

#[tokio::test]
async fn dropped_tx_leaves_a_gap_and_reverts_are_mined() {
    let chain = MemoryChain::new(CHAIN);
    let (first, _) = send(&chain, 0, 5).await;
    send(&chain, 1, 5).await;
    assert!(chain.drop_tx(first) && !chain.drop_tx(first));
    chain.mine();
    assert_eq!(account_nonces(&chain).await, (0, 0));
    let failing = UnsignedEnvelope {
        data: REVERTS.into(),
        gas: 100_000,
        ..envelope(0, 6)
    };
    let outgoing = sign(failing).await;
    assert_eq!(
        send_all(&chain, std::slice::from_ref(&outgoing)).await,
        [SendOutcome::Accepted]
    );
    chain.mine();
    let inclusion = &chain.receipts(&[outgoing.hash], Quorum::One).await.unwrap()[0];
    assert!(!inclusion.succeeded);
    assert!(chain.revert_reason(inclusion).await.unwrap().is_some());
    assert_eq!(account_nonces(&chain).await, (2, 2));
}

#[tokio::test]
async fn auto_mining_mines_every_send() {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let (hash, _) = send(&chain, 0, 5).await;
    assert_eq!(chain.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lagging_endpoint_shows_an_older_chain() {
    let chain = MemoryChain::new(CHAIN);
    let link = Link::new(Rng::new(1), LinkFaults::healthy(3));
    let late = Staleness {
        permille: 1_000,
        heads_max: 1,
        ..Staleness::NONE
    };
    let view = RemoteChain::new(chain.clone(), link.clone(), late);
    let (hash, _) = send(&chain, 0, 5).await;
    chain.mine();
    let header = chain.head();
    assert_eq!(view.receipts(&[hash], Quorum::One).await, Ok(Vec::new()));
    assert_eq!(
        view.header(BlockTag::Latest).await.unwrap().unwrap().number,
        0
    );
    assert_eq!(
        view.header(BlockTag::Hash(header.hash)).await,
        Ok(None),
        "not seen yet"
    );
    view.set_staleness(Staleness::NONE);
    assert_eq!(view.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
    link.set_faults(LinkFaults {
        response_lost: 1_000,
        ..LinkFaults::NONE
    });
    assert!(matches!(send(&view, 1, 5).await.1, SendOutcome::Unknown(_)));
    assert_eq!(
        account_nonces(&chain).await,
        (1, 2),
        "accepted although the answer was lost"
    );
    assert!(view.header(BlockTag::Latest).await.is_err());
}
