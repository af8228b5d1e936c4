//! Several endpoints of one chain: dead, behind, slow to have things, and put right again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chain::rpc::RpcChain;
use domain::lane::ChainQuery;
use domain::{Address, B256};
use engine::ports::{BlockTag, Chain, ChainError, Quorum};
use serde_json::{Value, json};

use crate::fake::{Fake, Say, chain_of, eventually, nobody, pass};
use crate::reads::{block, hash, receipt};

fn at(number: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(number))
}

async fn latest(chain: &RpcChain) -> u64 {
    let header = chain.header(BlockTag::Latest).await.unwrap();
    header.unwrap().number
}

#[tokio::test]
async fn reads_leave_a_dead_endpoint_alone_and_come_back_when_it_is_as_far() {
    let (first_head, second_head) = (at(7), at(8));
    let works = Arc::new(AtomicBool::new(false));
    let switch = works.clone();
    let broken = move |_: &str, _: &Value| {
        (!switch.load(Ordering::SeqCst)).then(|| Say::raw(200, "garbage"))
    };
    let first = Fake::start_at(&first_head, broken).await;
    let second = Fake::start_at(&second_head, |_, _| None).await;
    let chain = chain_of(vec![first.url(), nobody().await, second.url()]);
    for _ in 0..5 {
        assert_eq!(latest(&chain).await, 8);
    }
    // Asked once, and looked at once; then it is left alone for a while.
    eventually("a look", async || first.count("eth_chainId") == 2).await;
    for _ in 0..5 {
        assert_eq!(latest(&chain).await, 8);
    }
    assert_eq!(first.count("eth_chainId"), 2);

    // It answers again, but is a block behind: that is no reason to go back. Time passes in steps
    // that are shorter than a request may take.
    works.store(true, Ordering::SeqCst);
    let step = Duration::from_secs(5);
    eventually("a look", async || {
        pass(step).await;
        assert_eq!(latest(&chain).await, 8, "no jump back");
        first.count("eth_blockNumber") > 0
    })
    .await;
    first_head.store(9, Ordering::SeqCst);
    eventually("going back", async || {
        pass(step).await;
        latest(&chain).await == 9
    })
    .await;
    let asked = second.methods().len();
    assert_eq!(latest(&chain).await, 9);
    assert_eq!(second.methods().len(), asked);
}

#[tokio::test]
async fn one_that_is_behind_is_asked_last_and_looked_at_rarely() {
    let (behind_head, head) = (at(80), at(100));
    let behind = Fake::start_at(&behind_head, |_, _| None).await;
    let ahead = Fake::start_at(&head, |_, _| None).await;
    let chain = chain_of(vec![behind.url(), ahead.url()]);
    // The first is used until the other one was seen.
    eventually("the better head", async || latest(&chain).await == 100).await;
    let asked = behind.methods().len();
    for _ in 0..20 {
        assert_eq!(latest(&chain).await, 100);
    }
    assert_eq!(behind.methods().len(), asked);
    let looks = behind.count("eth_blockNumber");
    assert!(looks <= 1, "{looks}");

    // It is better than nothing.
    let chain = chain_of(vec![behind.url()]);
    assert_eq!(latest(&chain).await, 80);
    let chain = chain_of(vec![behind.url(), nobody().await]);
    assert_eq!(latest(&chain).await, 80);
}

#[tokio::test]
async fn all_behind_what_was_once_shown_is_no_error() {
    let (first_head, second_head) = (at(50), at(50));
    let first = Fake::start_at(&first_head, |_, _| None).await;
    let second = Fake::start_at(&second_head, |_, _| None).await;
    let chain = chain_of(vec![first.url(), second.url()]);
    assert_eq!(latest(&chain).await, 50);
    eventually("a look", async || second.count("eth_blockNumber") == 1).await;
    first_head.store(20, Ordering::SeqCst);
    second_head.store(21, Ordering::SeqCst);
    assert_eq!(latest(&chain).await, 21, "the newest that there is");
}

#[tokio::test]
async fn what_one_lacks_is_asked_of_the_others() {
    let head = at(10);
    let lacks = Fake::start_at(&head, |method, params| {
        (method == "eth_getBlockByNumber" && params[0] == "0x3").then(|| Say::Result(block(3)))
    })
    .await;
    let has = Fake::start_at(&head, |method, params| match method {
        "eth_getBlockByHash" => Some(Say::Result(block(9))),
        "eth_getBlockReceipts" => Some(Say::Result(json!([receipt(hash(100), hash(9))]))),
        "eth_getBlockByNumber" if params[0] != "latest" => {
            let number = u64::from_str_radix(&params[0].as_str()?[2..], 16).unwrap();
            Some(Say::Result(if number < 6 {
                block(number)
            } else {
                Value::Null
            }))
        }
        _ => None,
    })
    .await;
    let chain = chain_of(vec![lacks.url(), has.url()]);
    assert!(
        chain
            .header(BlockTag::Hash(hash(9)))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        chain
            .block_receipts(hash(9), &|_| true)
            .await
            .unwrap()
            .unwrap()
            .len(),
        1
    );
    let numbers = async |from, count| -> Vec<u64> {
        let headers = chain.headers(from, count).await.unwrap();
        headers.iter().map(|header| header.number).collect()
    };
    assert_eq!(numbers(3, 2).await, [3, 4], "the longer list");
    assert_eq!(numbers(3, 9).await, [3, 4, 5]);
    let asked = has.methods().len();
    assert_eq!(numbers(3, 1).await, [3]);
    assert_eq!(has.methods().len(), asked, "the first has all of it");

    // Nobody has it; that one of them is dead does not matter.
    let chain = chain_of(vec![lacks.url(), nobody().await]);
    assert_eq!(chain.header(BlockTag::Hash(hash(9))).await.unwrap(), None);
    assert_eq!(
        chain.block_receipts(hash(9), &|_| true).await.unwrap(),
        None
    );
    assert_eq!(chain.headers(7, 2).await.unwrap(), []);
    let chain = chain_of(vec![nobody().await]);
    assert!(chain.header(BlockTag::Hash(hash(9))).await.is_err());
}

#[tokio::test]
async fn one_that_is_behind_is_not_asked_for_what_others_lack() {
    let (behind_head, head) = (at(80), at(100));
    let behind = Fake::start_at(&behind_head, |_, _| None).await;
    let ahead = Fake::start_at(&head, |_, _| None).await;
    let chain = chain_of(vec![ahead.url(), behind.url()]);
    assert_eq!(latest(&chain).await, 100);
    eventually("a look", async || behind.count("eth_blockNumber") == 1).await;
    eventually("what the look has shown", async || {
        let asked = behind.methods().len();
        assert_eq!(chain.header(BlockTag::Hash(hash(9))).await.unwrap(), None);
        behind.methods().len() == asked
    })
    .await;
}

#[tokio::test]
async fn safe_and_finalized_have_their_tags() {
    let fake = Fake::start(|_, params| match params[0].as_str().unwrap() {
        "safe" => Say::Result(block(8)),
        "finalized" => Say::Result(block(7)),
        _ => Say::Result(block(9)),
    })
    .await;
    let chain = fake.chain();
    let number = async |tag| chain.header(tag).await.unwrap().unwrap().number;
    assert_eq!(number(BlockTag::Safe).await, 8);
    assert_eq!(number(BlockTag::Finalized).await, 7);
    let none = Fake::start(|_, _| Say::Error(-39001, "finalized block not found")).await;
    let finalized = none.chain().header(BlockTag::Finalized).await;
    assert_eq!(finalized.unwrap(), None);
}

#[tokio::test]
async fn receipts_come_from_whoever_has_them() {
    let with = |hashes: &'static [u64]| {
        Fake::start(move |_, params| {
            let tx: B256 = params[0].as_str().unwrap().parse().unwrap();
            let has = hashes.iter().any(|one| hash(*one) == tx);
            Say::Result(if has {
                receipt(tx, hash(9))
            } else {
                Value::Null
            })
        })
    };
    let (first, second) = (with(&[1, 3]).await, with(&[2, 3]).await);
    let chain = chain_of(vec![first.url(), nobody().await, second.url()]);
    let found = chain
        .receipts(&[hash(4), hash(3), hash(2), hash(1)], Quorum::One)
        .await
        .unwrap();
    let hashes: Vec<B256> = found.iter().map(|one| one.tx_hash).collect();
    assert_eq!(hashes, [hash(3), hash(2), hash(1)]);
    assert_eq!(second.methods().len(), 2, "only for what the first lacks");
    assert_eq!(chain.receipts(&[], Quorum::One).await.unwrap(), []);
    let dead = chain_of(vec![nobody().await]);
    assert!(matches!(
        dead.receipts(&[hash(1)], Quorum::One).await,
        Err(ChainError::Unreachable(_))
    ));
}

async fn with_nonce(count: &'static str) -> Fake {
    Fake::start(move |_, _| Say::Result(json!(count))).await
}

#[tokio::test]
async fn a_second_witness_must_answer_where_there_is_one() {
    let (three, five) = (with_nonce("0x3").await, with_nonce("0x5").await);
    let other_chain = Fake::start_bare(true, |_, _| Say::Result(json!("0x5"))).await;
    let ask = async |endpoints, quorum| {
        let chain = chain_of(endpoints);
        let nonces = chain
            .account_nonces(Address::ZERO, ChainQuery::Latest, quorum)
            .await?;
        let second = nonces.second.map(|second| second.latest.0);
        Ok::<_, ChainError>((nonces.first.latest.0, second, nonces.is_complete))
    };
    let both = || vec![three.url(), five.url()];
    assert_eq!(ask(both(), Quorum::Two).await, Ok((3, Some(5), true)));
    assert_eq!(ask(both(), Quorum::One).await, Ok((3, None, false)));
    let one = || vec![three.url()];
    assert_eq!(ask(one(), Quorum::Two).await, Ok((3, None, true)));
    assert_eq!(ask(one(), Quorum::One).await, Ok((3, None, true)));

    let (dead, wrong) = (nobody().await, other_chain.url());
    let with_dead = vec![dead.clone(), three.url()];
    assert_eq!(
        ask(with_dead.clone(), Quorum::One).await,
        Ok((3, None, false))
    );
    assert!(ask(with_dead, Quorum::Two).await.is_err());
    let third = vec![dead.clone(), three.url(), five.url()];
    assert_eq!(ask(third, Quorum::Two).await, Ok((3, Some(5), true)));
    let with_wrong = vec![wrong.clone(), three.url()];
    assert_eq!(ask(with_wrong, Quorum::Two).await, Ok((3, None, true)));
    assert!(ask(vec![wrong], Quorum::Two).await.is_err());
    assert_eq!(three.count("eth_getTransactionCount"), 8);
}
