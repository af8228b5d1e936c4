//! Headers, receipts, nonces, fees, and who consumed a nonce.

use std::time::Duration;

use domain::lane::NonceConsumer;
use domain::{Address, B256, EffectDigest, Inclusion, Nonce, SendOutcome, U256};
use engine::ports::{BlockTag, Chain, Quorum};
use rig::evm::account;
use serde_json::json;

use crate::world::{BOB, Make, World};

pub(crate) async fn everything(make: Make) {
    let world = World::manual(make).await;
    world.mine();
    let sent = world.transfers(0, 5).await;
    let before = world.account_nonces(account(0).0).await;
    let (first, rest) = sent.split_at(2);
    accepted(&world, first).await;
    let pending = world.account_nonces(account(0).0).await.pending.0 - before.latest.0;
    // Ganache never counts its pool.
    assert_eq!(pending, if make == Make::Ganache { 0 } else { 2 });
    assert_eq!(world.receipts(&sent).await, [], "nothing is mined");
    world.mine();
    accepted(&world, rest).await;
    world.mine();
    world.mine();
    let after = world.account_nonces(account(0).0).await;
    assert_eq!(after.latest.0 - before.latest.0, 5);
    assert_eq!(after.pending, after.latest);

    let head = headers(&world).await;
    receipts(&world, head, &sent).await;
    quote(&world).await;
}

async fn accepted(world: &World, outgoing: &[domain::attempt::OutgoingEnvelope]) {
    let outcomes = world.send(outgoing).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; outgoing.len()]);
}

/// Walks the chain in every way, and gives the height of its head.
async fn headers(world: &World) -> u64 {
    let chain = &world.chain;
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
async fn receipts(world: &World, head: u64, sent: &[domain::attempt::OutgoingEnvelope]) {
    let by_hash = world.receipts(sent).await;
    assert_eq!(by_hash.len(), sent.len());
    let is_good = |receipt: &Inclusion| receipt.succeeded && receipt.gas_used == 21_000;
    assert!(by_hash.iter().all(is_good), "{by_hash:?}");
    let mut by_block = Vec::new();
    for number in 0..=head {
        let header = world.chain.header(BlockTag::Number(number)).await;
        let block = header.unwrap().unwrap().hash;
        by_block.extend(
            world
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
        world
            .chain
            .block_receipts(unknown, &|_| true)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        world.chain.receipts(&[unknown], Quorum::One).await.unwrap(),
        []
    );
}

/// The base fee is that of the block that comes next.
async fn quote(world: &World) {
    world.chain.header(BlockTag::Latest).await.unwrap();
    let quote = world.chain.fee_quote().await.unwrap();
    world.mine();
    let params = json!(["latest", false]);
    let block = world.rpc.call("eth_getBlockByNumber", params);
    let asked = block["baseFeePerGas"]
        .as_str()
        .unwrap()
        .trim_start_matches("0x");
    let asked = u128::from_str_radix(asked, 16).unwrap();
    assert_eq!(quote.base_fee, Some(asked));
    assert!(quote.tip > 0, "{quote:?}");
}

/// A node tells of a new block by itself, over WebSocket.
pub(crate) async fn announcements(make: Make) {
    let world = World::manual(make).await;
    let listening = world.chain.wait_for_head();
    // Nobody says when the subscription stands, so blocks are made until one is told of.
    let mining = async {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        loop {
            pace.tick().await;
            world.mine();
        }
    };
    let told = async {
        tokio::select! {
            () = listening => {}
            () = mining => {}
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    told.expect("a block is announced");
}

pub(crate) async fn consumers(make: Make) {
    let world = World::manual(make).await;
    let (alice, carol) = (account(1).0, account(2).0);
    let sent = world.transfers(1, 3).await;
    for item in &sent {
        accepted(&world, std::slice::from_ref(item)).await;
        world.mine();
        world.mine();
    }
    let head = world.chain.header(BlockTag::Latest).await.unwrap();
    let head = head.unwrap().number;
    let who = async |account: Address, nonce: Nonce, up_to: u64| {
        let up_to = world.chain.header(BlockTag::Number(up_to)).await.unwrap();
        let found = world
            .chain
            .find_consumer(account, nonce, up_to.unwrap())
            .await;
        found.unwrap()
    };
    for item in &sent {
        let wei_to_bob = EffectDigest::of(Some(BOB), U256::ONE, &[]);
        let by = NonceConsumer::By {
            hash: item.hash,
            effect_digest: wei_to_bob,
        };
        assert_eq!(who(alice, item.nonce, head).await, by);
    }
    let next = Nonce(sent[2].nonce.0 + 1);
    assert_eq!(who(alice, next, head).await, NonceConsumer::Nobody);
    // As of a block in which it was not there yet.
    assert_eq!(
        who(alice, sent[2].nonce, head - 2).await,
        NonceConsumer::Nobody
    );

    let nonce = world.account_nonces(carol).await.latest;
    let jumped = format!("{:#x}", nonce.0 + 2);
    world.set("Nonce", carol, json!(jumped));
    world.mine();
    let head = world.chain.header(BlockTag::Latest).await.unwrap();
    let head = head.unwrap().number;
    assert_eq!(who(carol, nonce, head).await, NonceConsumer::Unseen);
}
