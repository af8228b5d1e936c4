//! Who consumed a nonce: found in blocks, or not to be found.

use domain::lane::NonceConsumer;
use domain::{Address, EffectDigest, Header, Nonce, U256};
use engine::ports::{Chain, ChainError};
use serde_json::{Value, json};

use crate::fake::{Fake, Say, chain_of, nobody};
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

/// The transaction of this number, and what it did.
fn by(id: u64) -> NonceConsumer {
    NonceConsumer::By {
        hash: hash(id),
        effect_digest: EffectDigest::of(Some(Address::ZERO), U256::from(id), &[0xab]),
    }
}

/// A node that keeps states from a height on, in which nonces 6 and 7 are consumed in one block.
async fn node(states_from: u64, shows_transactions: bool) -> Fake {
    Fake::start(move |method, params| match method {
        "eth_getTransactionCount" => {
            let height = number(&params[1]);
            if height < states_from {
                return Say::Error(-32000, "missing trie node 0xab (path )");
            }
            Say::Result(json!(if height < HEIGHT { "0x6" } else { "0x8" }))
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
            Say::Result(found)
        }
        _ => Say::Result(Value::Null),
    })
    .await
}

#[tokio::test]
async fn the_transaction_is_found_by_halves() {
    for up_to in [HEIGHT, HEIGHT + 1, HEIGHT + 100, HEIGHT + 256] {
        let fake = node(0, true).await;
        let found = fake
            .chain()
            .find_consumer(ACCOUNT, Nonce(7), at(up_to))
            .await;
        assert_eq!(found, Ok(by(3)), "{up_to}");
        let calls = fake.methods().len();
        assert!(calls <= 14, "{calls} calls");
    }
    let fake = node(0, true).await;
    let ask = async |nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    assert_eq!(ask(6, 1000).await, Ok(by(2)));
    assert_eq!(ask(7, HEIGHT - 1).await, Ok(NonceConsumer::Nobody));
    assert_eq!(ask(8, 1000).await, Ok(NonceConsumer::Nobody));
    let asked = fake.methods().len();
    assert_eq!(ask(8, 1000).await, Ok(NonceConsumer::Nobody));
    assert_eq!(fake.methods().len(), asked + 2, "its block, and the count");
}

#[tokio::test]
async fn what_is_not_in_a_block_is_unseen() {
    let ask = async |fake: &Fake, nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    let fake = node(0, true).await;
    let found = Ok(by(3));
    assert_eq!(ask(&fake, 7, HEIGHT + 5_000).await, found, "long ago");
    let another = Header {
        hash: hash(9),
        ..at(1000)
    };
    let elsewhere = fake.chain().find_consumer(ACCOUNT, Nonce(7), another).await;
    assert!(elsewhere.is_err(), "it is on another branch");
    // Where there are no states, the blocks below are read.
    assert_eq!(ask(&node(HEIGHT, true).await, 7, 1000).await, Ok(by(3)));
    assert_eq!(ask(&node(990, true).await, 7, 1000).await, Ok(by(3)));
    assert_eq!(
        ask(&node(990, false).await, 7, 1000).await,
        Ok(NonceConsumer::Unseen)
    );
    // Consumed by an authorization: no transaction of the account.
    assert_eq!(
        ask(&node(0, false).await, 7, 1000).await,
        Ok(NonceConsumer::Unseen)
    );
}

#[tokio::test]
async fn that_it_cannot_be_seen_needs_two_of_them() {
    let (blind, sees) = (node(990, false).await, node(0, true).await);
    let other_blind = node(0, false).await;
    let disagrees = Fake::start(|method, params| match method {
        "eth_getBlockByNumber" => Say::Result(block(number(&params[0]))),
        _ => Say::Result(json!("0x7")),
    })
    .await;
    let wrong = Fake::start_bare(true, |_, _| Say::Result(json!("0x5"))).await;
    let ask = async |endpoints| {
        chain_of(endpoints)
            .find_consumer(ACCOUNT, Nonce(7), at(1000))
            .await
    };
    let found = Ok(by(3));
    assert_eq!(ask(vec![blind.url(), sees.url()]).await, found);
    assert_eq!(ask(vec![nobody().await, sees.url()]).await, found);
    let both = vec![blind.url(), other_blind.url()];
    assert_eq!(ask(both).await, Ok(NonceConsumer::Unseen));
    let alone = vec![blind.url(), wrong.url()];
    assert_eq!(ask(alone).await, Ok(NonceConsumer::Unseen));
    assert!(ask(vec![blind.url(), nobody().await]).await.is_err());
    let disagreement = ask(vec![blind.url(), disagrees.url()]).await;
    assert!(
        matches!(disagreement, Err(ChainError::Unusable(_))),
        "{disagreement:?}"
    );
}

#[tokio::test]
async fn a_node_without_old_states_shows_its_blocks() {
    let fake = node(2000, true).await;
    let ask = async |nonce, up_to| {
        fake.chain()
            .find_consumer(ACCOUNT, Nonce(nonce), at(up_to))
            .await
    };
    assert_eq!(ask(7, 1000).await, Ok(by(3)));
    assert_eq!(ask(6, 1000).await, Ok(by(2)));
    assert_eq!(
        ask(8, 1000).await,
        Ok(NonceConsumer::Nobody),
        "the account is at 8"
    );
    assert_eq!(
        ask(5, 1000).await,
        Ok(NonceConsumer::Unseen),
        "before the blocks that are read"
    );
    assert_eq!(
        ask(7, 200).await,
        Ok(NonceConsumer::Nobody),
        "all blocks, and none is of the account"
    );
    let nothing = ask(7, 800).await;
    assert!(
        matches!(nothing, Err(ChainError::Unusable(_))),
        "{nothing:?}"
    );
    let behind = Fake::start(|method, _| match method {
        "eth_getTransactionCount" => Say::Error(-32000, "header not found"),
        _ => Say::Result(Value::Null),
    })
    .await;
    let behind = behind
        .chain()
        .find_consumer(ACCOUNT, Nonce(7), at(1000))
        .await;
    assert!(matches!(behind, Err(ChainError::Unusable(_))), "{behind:?}");
}
