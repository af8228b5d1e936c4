mod endpoints;

use alloy_primitives::U256;
use domain::{AttemptKind, Bytes, Fees, Timestamp, TxId, UnsignedEnvelope};
use engine::ports::Signer;
use uuid::Uuid;

use super::*;
use crate::rng::Rng;
use crate::wire::{Wire, WireFaults};

const CHAIN: ChainId = ChainId(31_337);
const GWEI: u128 = 1_000_000_000;

fn account() -> Address {
    Address::repeat_byte(0xaa)
}

/// An envelope at a nonce, offering so many gwei in both fee fields.
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
        .expect("one asked")
        .expect("it has the key");
    OutgoingEnvelope {
        nonce,
        hash: attempt.hash,
        raw: attempt.raw,
        others: Vec::new(),
    }
}

async fn send(chain: &dyn Chain, nonce: u64, gwei: u128) -> (B256, SendOutcome) {
    let outgoing = sign(envelope(nonce, gwei)).await;
    let mut outcomes = chain.send(std::slice::from_ref(&outgoing)).await;
    (outgoing.hash, outcomes.remove(0))
}

async fn account_nonces(chain: &dyn Chain) -> (u64, u64) {
    let asked = chain.account_nonces(account(), ChainQuery::Pending, Quorum::One);
    let nonces = asked.await.unwrap().first;
    (nonces.latest.0, nonces.pending.0)
}

#[tokio::test]
async fn nonces_are_mined_in_order_and_gaps_wait() {
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
async fn a_replacement_pays_ten_percent_more() {
    let chain = MemoryChain::new(CHAIN);
    let (first, _) = send(&chain, 0, 100).await;
    assert_eq!(
        send(&chain, 0, 100).await,
        (first, SendOutcome::Accepted),
        "known already"
    );
    let mut cheap = sign(envelope(0, 109)).await;
    let told = chain.send(std::slice::from_ref(&cheap)).await;
    assert!(
        matches!(told[..], [SendOutcome::ForeignPending(_)]),
        "{told:?}"
    );
    cheap.others = vec![first];
    let told = chain.send(&[cheap]).await;
    assert!(
        matches!(told[..], [SendOutcome::ReplacementUnderpriced(_)]),
        "{told:?}"
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
async fn what_a_node_refuses_is_refused_by_name() {
    let chain = MemoryChain::new(CHAIN);
    let bare = OutgoingEnvelope {
        nonce: Nonce(0),
        hash: B256::ZERO,
        raw: Bytes::from_static(b"x"),
        others: Vec::new(),
    };
    assert!(matches!(
        chain.send(&[bare]).await[..],
        [SendOutcome::Rejected(_)]
    ));
    chain.fund(account(), U256::from(10));
    assert!(matches!(
        send(&chain, 0, 5).await.1,
        SendOutcome::Underfunded(_)
    ));
    chain.fund(account(), U256::from(GWEI) * U256::from(10_000_000));
    chain.set_room(10, 2);
    assert_eq!(send(&chain, 1, 5).await.1, SendOutcome::Accepted);
    let full = |most| SendOutcome::Full {
        text: "txpool is full".to_owned(),
        most,
    };
    assert_eq!(send(&chain, 2, 5).await.1, full(None));
    chain.tell_room(true);
    assert_eq!(send(&chain, 2, 5).await.1, full(Some(2)));
    chain.set_fees(50 * GWEI, GWEI);
    send(&chain, 0, 5).await;
    chain.mine();
    assert_eq!(chain.mined(), [], "below the base fee it waits");
}

#[tokio::test]
async fn a_fork_gives_its_transactions_back() {
    let chain = MemoryChain::new(CHAIN);
    let mut hashes = Vec::new();
    for nonce in 0..3 {
        hashes.push(send(&chain, nonce, 5).await.0);
        chain.mine();
    }
    let old = chain.head();
    let fate = |tx: &ChainTx| match tx.envelope.nonce.0 {
        1 => Fate::Mined,
        _ => Fate::Dropped,
    };
    let dropped = chain.reorg(2, fate);
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
    assert_eq!(orphan, Some(old), "by hash also what fell out");
}

#[tokio::test]
async fn a_dropped_one_leaves_a_gap_and_reverts_are_mined_as_such() {
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
        chain.send(std::slice::from_ref(&outgoing)).await,
        [SendOutcome::Accepted]
    );
    chain.mine();
    let inclusion = &chain.receipts(&[outgoing.hash], Quorum::One).await.unwrap()[0];
    assert!(!inclusion.succeeded);
    assert!(chain.revert_reason(inclusion).await.unwrap().is_some());
    assert_eq!(account_nonces(&chain).await, (2, 2));
}

#[tokio::test]
async fn auto_mining_mines_what_was_sent() {
    let chain = MemoryChain::new(CHAIN).auto_mining();
    let (hash, _) = send(&chain, 0, 5).await;
    assert_eq!(chain.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lagging_node_sees_an_older_chain_and_may_lose_answers() {
    let chain = MemoryChain::new(CHAIN);
    let wire = Wire::new(Rng::new(1), WireFaults::healthy(3));
    let late = Staleness {
        permille: 1_000,
        heads_max: 1,
        ..Staleness::NONE
    };
    let view = RemoteChain::new(chain.clone(), wire.clone(), late);
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
    view.set(Staleness::NONE);
    assert_eq!(view.receipts(&[hash], Quorum::One).await.unwrap().len(), 1);
    wire.set(WireFaults {
        answer_lost: 1_000,
        ..WireFaults::NONE
    });
    assert!(matches!(send(&view, 1, 5).await.1, SendOutcome::Unknown(_)));
    assert_eq!(account_nonces(&chain).await, (1, 2), "taken all the same");
    assert!(view.header(BlockTag::Latest).await.is_err());
}
