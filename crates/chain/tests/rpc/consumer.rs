//! The search for the tx that consumed a nonce.

use domain::lane::NonceConsumer;
use domain::{Address, EffectDigest, Header, Nonce, U256};
use engine::ports::{Chain, ChainError};
use serde_json::{Value, json};

use crate::fake_node::{FakeNode, FakeReply, chain_of, unreachable_url};
use crate::reads::{block, hash};

const ACCOUNT: Address = Address::repeat_byte(0xaa);
/// Where nonce 7 is consumed.
const HEIGHT: u64 = 905;

fn number(text: &Value) -> u64 {
    u64::from_str_radix(&text.as_str().unwrap()[2..], 16).unwrap()
}

/// The header that all nodes here have at a height.
pub(crate) fn at(number: u64) -> Header {
    let block = block(number);
    let field = |name: &str| block[name].as_str().unwrap().parse().unwrap();
    Header {
        number,
        hash: field("hash"),
        parent_hash: field("parentHash"),
        timestamp: 0,
    }
}

/// The tx with this id, as a consumer.
fn consumed_by(id: u64) -> NonceConsumer {
    NonceConsumer::Transaction {
        hash: hash(id),
        effect_digest: EffectDigest::of(Some(Address::ZERO), U256::from(id), &[0xab]),
    }
}

/// A node that keeps states from a height on, in which nonces 6 and 7 are consumed in one block.
async fn node(states_from: u64, shows_transactions: bool) -> FakeNode {
    FakeNode::start(move |method, params| match method {
        "eth_getTransactionCount" => {
            let height = number(&params[1]);
            if height < states_from {
                return FakeReply::Error(-32000, "missing trie node 0xab (path )");
            }
            FakeReply::Result(json!(if height < HEIGHT { "0x6" } else { "0x8" }))
        }
        "eth_getBlockByNumber" => {
            let mut found = block(number(&params[0]));
            let tx = |of: Address, nonce: &str, id| {
                json!({
                    "hash": hash(id), "from": of, "nonce": nonce, "type": "0x2",
                    "to": Address::ZERO, "value": format!("{id:#x}"), "input": "0xab",
                })
            };
            found["transactions"] = json!([
                { "type": "0x7e", "strange": true },
                tx(Address::ZERO, "0x7", 1),
                tx(ACCOUNT, "0x6", 2),
                tx(ACCOUNT, "0x7", 3),
            ]);
            if number(&params[0]) != HEIGHT || !shows_transactions {
                found["transactions"] = json!([]);
            }
            FakeReply::Result(found)
        }
        // Nodes keep the transactions of blocks whose states they have pruned.
        "eth_getTransactionByHash" if params[0] == json!(hash(3)) => FakeReply::Result(json!({
            "hash": hash(3), "from": ACCOUNT, "nonce": "0x7", "type": "0x2",
            "to": Address::ZERO, "value": "0x3", "input": "0xab",
            "blockNumber": format!("{HEIGHT:#x}"), "blockHash": hash(HEIGHT),
        })),
        _ => FakeReply::Result(Value::Null),
    })
    .await
}

#[tokio::test]
async fn endpoint_without_old_states_confirms_by_hash_what_another_one_found() {
    let (archive, full) = (node(0, true).await, node(990, false).await);
    let query = async |endpoints, nonces| {
        let chain = chain_of(endpoints);
        let found = chain.find_consumers(ACCOUNT, nonces, at(1000)).await?;
        let shown = found.into_iter().map(|one| Some(one.transaction?.hash));
        Ok::<_, ChainError>(shown.collect::<Vec<_>>())
    };
    let found = Ok(vec![Some(hash(3))]);
    assert_eq!(query(vec![archive.url(), full.url()], 7..8).await, found);
    assert_eq!(query(vec![full.url(), archive.url()], 7..8).await, found);
    let unseen = Ok(vec![None]);
    let other = node(990, false).await;
    assert_eq!(query(vec![full.url(), other.url()], 7..8).await, unseen);
    // The transaction at nonce 6 it does not have.
    assert_eq!(query(vec![archive.url(), full.url()], 6..8).await, unseen);
}

#[tokio::test]
async fn consumer_is_found_by_binary_search() {
    for up_to in [HEIGHT, HEIGHT + 1, HEIGHT + 100, HEIGHT + 256] {
        let fake = node(0, true).await;
        let found = fake
            .chain()
            .find_consumer(ACCOUNT, Nonce(7), at(up_to))
            .await;
        assert_eq!(found, Ok(consumed_by(3)), "{up_to}");
        let calls = fake.methods().len();
        assert!(calls <= 14, "{calls} calls");
    }
    let fake = node(0, true).await;
    let query = async |nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    assert_eq!(query(6, 1000).await, Ok(consumed_by(2)));
    assert_eq!(query(7, HEIGHT - 1).await, Ok(NonceConsumer::NotConsumed));
    assert_eq!(query(8, 1000).await, Ok(NonceConsumer::NotConsumed));
    let calls_before = fake.methods().len();
    assert_eq!(query(8, 1000).await, Ok(NonceConsumer::NotConsumed));
    assert_eq!(
        fake.methods().len(),
        calls_before + 2,
        "its block, and the count"
    );
}

#[tokio::test]
async fn consumer_without_tx_in_a_block_is_unseen() {
    let query = async |fake: &FakeNode, nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    let fake = node(0, true).await;
    let found = Ok(consumed_by(3));
    assert_eq!(query(&fake, 7, HEIGHT + 5_000).await, found, "long ago");
    let another = Header {
        hash: hash(9),
        ..at(1000)
    };
    let elsewhere = fake.chain().find_consumer(ACCOUNT, Nonce(7), another).await;
    assert!(elsewhere.is_err(), "it is on another branch");
    // Where there are no states, the blocks below are read.
    assert_eq!(
        query(&node(HEIGHT, true).await, 7, 1000).await,
        Ok(consumed_by(3))
    );
    assert_eq!(
        query(&node(990, true).await, 7, 1000).await,
        Ok(consumed_by(3))
    );
    assert_eq!(
        query(&node(990, false).await, 7, 1000).await,
        Ok(NonceConsumer::Unattributed)
    );
    // Consumed by an authorization: no transaction of the account.
    assert_eq!(
        query(&node(0, false).await, 7, 1000).await,
        Ok(NonceConsumer::Unattributed)
    );
}

#[tokio::test]
async fn unseen_consumer_needs_two_endpoints() {
    let (without_tx, with_tx) = (node(990, false).await, node(0, true).await);
    let other_without_tx = node(0, false).await;
    let disagrees = FakeNode::start(|method, params| match method {
        "eth_getBlockByNumber" => FakeReply::Result(block(number(&params[0]))),
        _ => FakeReply::Result(json!("0x7")),
    })
    .await;
    let wrong = FakeNode::start_bare(true, |_, _| FakeReply::Result(json!("0x5"))).await;
    let query = async |endpoints| {
        chain_of(endpoints)
            .find_consumer(ACCOUNT, Nonce(7), at(1000))
            .await
    };
    let found = Ok(consumed_by(3));
    assert_eq!(query(vec![without_tx.url(), with_tx.url()]).await, found);
    assert_eq!(
        query(vec![unreachable_url().await, with_tx.url()]).await,
        found
    );
    let both = vec![without_tx.url(), other_without_tx.url()];
    assert_eq!(query(both).await, Ok(NonceConsumer::Unattributed));
    let alone = vec![without_tx.url(), wrong.url()];
    assert_eq!(query(alone).await, Ok(NonceConsumer::Unattributed));
    assert!(
        query(vec![without_tx.url(), unreachable_url().await])
            .await
            .is_err()
    );
    let disagreement = query(vec![without_tx.url(), disagrees.url()]).await;
    assert!(
        matches!(disagreement, Err(ChainError::Unusable(_))),
        "{disagreement:?}"
    );
}

#[tokio::test]
async fn node_without_old_states_is_searched_by_blocks() {
    let fake = node(2000, true).await;
    let query = async |nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    assert_eq!(query(7, 1000).await, Ok(consumed_by(3)));
    assert_eq!(query(6, 1000).await, Ok(consumed_by(2)));
    assert_eq!(
        query(8, 1000).await,
        Ok(NonceConsumer::NotConsumed),
        "the account is at 8"
    );
    assert_eq!(
        query(5, 1000).await,
        Ok(NonceConsumer::Unattributed),
        "before the blocks that are read"
    );
    assert_eq!(
        query(7, 200).await,
        Ok(NonceConsumer::NotConsumed),
        "all blocks, and none is of the account"
    );
    let nothing = query(7, 800).await;
    assert!(
        matches!(nothing, Err(ChainError::Unusable(_))),
        "{nothing:?}"
    );
    let behind = FakeNode::start(|method, _| match method {
        "eth_getTransactionCount" => FakeReply::Error(-32000, "header not found"),
        _ => FakeReply::Result(Value::Null),
    })
    .await;
    let behind = behind
        .chain()
        .find_consumer(ACCOUNT, Nonce(7), at(1000))
        .await;
    assert!(matches!(behind, Err(ChainError::Unusable(_))), "{behind:?}");
}
