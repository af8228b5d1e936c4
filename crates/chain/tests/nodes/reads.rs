//! Headers, receipts, nonces, fees, and consumers of nonces.

use std::time::Duration;

use domain::lane::NonceConsumer;
use domain::{Address, B256, EffectDigest, Inclusion, Nonce, SendOutcome, U256};
use engine::ports::{BlockTag, Chain, Quorum};
use rig::evm::account;
use serde_json::json;

use crate::fixture::{BOB, NodeFixture, NodeSoftware};

pub(crate) async fn check_reads(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    fixture.mine();
    let sent = fixture.transfers(0, 5).await;
    let before = fixture.account_nonces(account(0).0).await;
    let (first, rest) = sent.split_at(2);
    assert_accepted(&fixture, first).await;
    let pending = fixture.account_nonces(account(0).0).await.pending.0 - before.latest.0;
    // Ganache never counts its pool.
    assert_eq!(
        pending,
        if software == NodeSoftware::Ganache {
            0
        } else {
            2
        }
    );
    assert_eq!(fixture.receipts(&sent).await, [], "nothing is mined");
    fixture.mine();
    assert_accepted(&fixture, rest).await;
    fixture.mine();
    fixture.mine();
    let after = fixture.account_nonces(account(0).0).await;
    assert_eq!(after.latest.0 - before.latest.0, 5);
    assert_eq!(after.pending, after.latest);

    let head = headers(&fixture).await;
    receipts(&fixture, head, &sent).await;
    quote(&fixture).await;
}

async fn assert_accepted(fixture: &NodeFixture, outgoing: &[domain::attempt::OutgoingEnvelope]) {
    let outcomes = fixture.send(outgoing).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; outgoing.len()]);
}

/// Reads the headers in every way; returns the height of the head.
async fn headers(fixture: &NodeFixture) -> u64 {
    let chain = &fixture.chain;
    let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
    let walk = chain.headers(0, head.number + 3).await.unwrap();
    assert_eq!(walk.len() as u64, head.number + 1, "it ends with the head");
    assert_eq!(walk.last(), Some(&head));
    let is_linked = |pair: &[domain::Header]| {
        pair[1].parent_hash == pair[0].hash && pair[1].number == pair[0].number + 1
    };
    assert!(walk.windows(2).all(is_linked));
    for tag in [BlockTag::Number(head.number), BlockTag::Hash(head.hash)] {
        assert_eq!(chain.header(tag).await.unwrap(), Some(head));
    }
    let above = BlockTag::Number(head.number + 1);
    let unknown = BlockTag::Hash(B256::repeat_byte(9));
    for tag in [above, unknown] {
        assert_eq!(chain.header(tag).await.unwrap(), None, "{tag:?}");
    }
    for tag in [BlockTag::Safe, BlockTag::Finalized] {
        let marked = chain.header(tag).await.unwrap().unwrap();
        assert!(walk.contains(&marked), "{tag:?}");
    }
    head.number
}

/// The receipts by hash are those by block.
async fn receipts(fixture: &NodeFixture, head: u64, sent: &[domain::attempt::OutgoingEnvelope]) {
    let by_hash = fixture.receipts(sent).await;
    assert_eq!(by_hash.len(), sent.len());
    let is_good = |receipt: &Inclusion| receipt.succeeded && receipt.gas_used == 21_000;
    assert!(by_hash.iter().all(is_good), "{by_hash:?}");
    let mut by_block = Vec::new();
    for number in 0..=head {
        let header = fixture.chain.header(BlockTag::Number(number)).await;
        let block = header.unwrap().unwrap().hash;
        by_block.extend(
            fixture
                .chain
                .block_receipts(block, &|_| true)
                .await
                .unwrap()
                .unwrap(),
        );
    }
    assert_eq!(by_block, by_hash);
    let unknown = B256::repeat_byte(9);
    assert_eq!(
        fixture
            .chain
            .block_receipts(unknown, &|_| true)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        fixture
            .chain
            .receipts(&[unknown], Quorum::One)
            .await
            .unwrap(),
        []
    );
}

/// The quoted base fee is that of the next block.
async fn quote(fixture: &NodeFixture) {
    let head = fixture.chain.header(BlockTag::Latest).await.unwrap();
    let quote = fixture.chain.fee_quote(&head.unwrap()).await.unwrap();
    fixture.mine();
    let params = json!(["latest", false]);
    let block = fixture.rpc.call("eth_getBlockByNumber", params);
    let base_fee = block["baseFeePerGas"]
        .as_str()
        .unwrap()
        .trim_start_matches("0x");
    let base_fee = u128::from_str_radix(base_fee, 16).unwrap();
    assert_eq!(quote.base_fee, Some(base_fee));
    assert!(quote.tip > 0, "{quote:?}");
}

/// New blocks are announced over WebSocket.
pub(crate) async fn check_head_subscription(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    let listening = fixture.chain.wait_for_head();
    // The adapter does not report when the subscription is ready, so blocks are mined until one is announced.
    let mining = async {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        loop {
            pace.tick().await;
            fixture.mine();
        }
    };
    let announced = async {
        tokio::select! {
            () = listening => {}
            () = mining => {}
        }
    };
    let announced = tokio::time::timeout(Duration::from_secs(20), announced).await;
    announced.expect("a block is announced");
}

pub(crate) async fn check_consumers(software: NodeSoftware) {
    let fixture = NodeFixture::manual(software).await;
    let (alice, carol) = (account(1).0, account(2).0);
    let sent = fixture.transfers(1, 3).await;
    for item in &sent {
        assert_accepted(&fixture, std::slice::from_ref(item)).await;
        fixture.mine();
        fixture.mine();
    }
    let head = fixture.chain.header(BlockTag::Latest).await.unwrap();
    let head = head.unwrap().number;
    let consumer_of = async |account: Address, nonce: Nonce, up_to: u64| {
        let up_to = fixture.chain.header(BlockTag::Number(up_to)).await.unwrap();
        let found = fixture
            .chain
            .find_consumer(account, nonce, up_to.unwrap())
            .await;
        found.unwrap()
    };
    for item in &sent {
        let wei_to_bob = EffectDigest::of(Some(BOB), U256::ONE, &[]);
        let expected = NonceConsumer::Transaction {
            hash: item.hash,
            effect_digest: wei_to_bob,
        };
        assert_eq!(consumer_of(alice, item.nonce, head).await, expected);
    }
    let next = Nonce(sent[2].nonce.0 + 1);
    assert_eq!(
        consumer_of(alice, next, head).await,
        NonceConsumer::NotConsumed
    );
    // As of a block before the tx.
    assert_eq!(
        consumer_of(alice, sent[2].nonce, head - 2).await,
        NonceConsumer::NotConsumed
    );

    let nonce = fixture.account_nonces(carol).await.latest;
    let jumped = format!("{:#x}", nonce.0 + 2);
    fixture.set("Nonce", carol, json!(jumped));
    fixture.mine();
    let head = fixture.chain.header(BlockTag::Latest).await.unwrap();
    let head = head.unwrap().number;
    assert_eq!(
        consumer_of(carol, nonce, head).await,
        NonceConsumer::Unattributed
    );
}
