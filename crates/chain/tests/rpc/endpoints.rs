//! Several endpoints of one chain: failed, behind, incomplete, and repaired.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chain::rpc::{RpcChain, RpcChainConfig};
use domain::lane::{AccountNonces, Agreement, ChainQuery};
use domain::{Address, B256};
use engine::ports::{BlockTag, Chain, ChainError, Quorum};
use serde_json::{Value, json};

use crate::fake_node::{
    CHAIN, FakeNode, FakeReply, advance_time, chain_of, unreachable_url, wait_until,
};
use crate::reads::{block, hash, receipt};

fn at(number: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(number))
}

async fn latest(chain: &RpcChain) -> u64 {
    let header = chain.header(BlockTag::Latest).await.unwrap();
    header.unwrap().number
}

#[tokio::test]
async fn failed_endpoint_is_used_again_when_it_has_caught_up() {
    let (first_head, second_head) = (at(7), at(8));
    let works = Arc::new(AtomicBool::new(false));
    let switch = works.clone();
    let broken = move |_: &str, _: &Value| {
        (!switch.load(Ordering::SeqCst)).then(|| FakeReply::raw(200, "garbage"))
    };
    let first = FakeNode::start_at(&first_head, broken).await;
    let second = FakeNode::start_at(&second_head, |_, _| None).await;
    let chain = chain_of(vec![first.url(), unreachable_url().await, second.url()]);
    for _ in 0..5 {
        assert_eq!(latest(&chain).await, 8);
    }
    // Queried once and polled once; then not again for a while.
    wait_until("a poll", async || first.count("eth_chainId") == 2).await;
    for _ in 0..5 {
        assert_eq!(latest(&chain).await, 8);
    }
    assert_eq!(first.count("eth_chainId"), 2);

    // It answers again but is a block behind, so it is not used. Time advances in steps that are shorter than the
    // request timeout.
    works.store(true, Ordering::SeqCst);
    let step = Duration::from_secs(5);
    wait_until("a poll", async || {
        advance_time(step).await;
        assert_eq!(latest(&chain).await, 8, "no jump back");
        first.count("eth_blockNumber") > 0
    })
    .await;
    first_head.store(9, Ordering::SeqCst);
    wait_until("the return to the first endpoint", async || {
        advance_time(step).await;
        latest(&chain).await == 9
    })
    .await;
    let calls_before = second.methods().len();
    assert_eq!(latest(&chain).await, 9);
    assert_eq!(second.methods().len(), calls_before);
}

#[tokio::test]
async fn endpoint_behind_is_queried_last_and_polled_rarely() {
    let (behind_head, head) = (at(80), at(100));
    let behind = FakeNode::start_at(&behind_head, |_, _| None).await;
    let ahead = FakeNode::start_at(&head, |_, _| None).await;
    let chain = chain_of(vec![behind.url(), ahead.url()]);
    // The first is used until the other one's head is known.
    wait_until("the better head", async || latest(&chain).await == 100).await;
    let calls_before = behind.methods().len();
    for _ in 0..20 {
        assert_eq!(latest(&chain).await, 100);
    }
    assert_eq!(behind.methods().len(), calls_before);
    let polls = behind.count("eth_blockNumber");
    assert!(polls <= 1, "{polls}");

    // An endpoint behind is better than none.
    let chain = chain_of(vec![behind.url()]);
    assert_eq!(latest(&chain).await, 80);
    let chain = chain_of(vec![behind.url(), unreachable_url().await]);
    assert_eq!(latest(&chain).await, 80);
}

#[tokio::test]
async fn newest_head_is_used_if_all_endpoints_are_behind() {
    let (first_head, second_head) = (at(50), at(50));
    let first = FakeNode::start_at(&first_head, |_, _| None).await;
    let second = FakeNode::start_at(&second_head, |_, _| None).await;
    let chain = chain_of(vec![first.url(), second.url()]);
    assert_eq!(latest(&chain).await, 50);
    wait_until("a poll", async || second.count("eth_blockNumber") == 1).await;
    first_head.store(20, Ordering::SeqCst);
    second_head.store(21, Ordering::SeqCst);
    assert_eq!(latest(&chain).await, 21, "the newest that there is");
}

#[tokio::test]
async fn missing_results_are_queried_from_other_endpoints() {
    let head = at(10);
    let lacks = FakeNode::start_at(&head, |method, params| {
        (method == "eth_getBlockByNumber" && params[0] == "0x3")
            .then(|| FakeReply::Result(block(3)))
    })
    .await;
    let has = FakeNode::start_at(&head, |method, params| match method {
        "eth_getBlockByHash" => Some(FakeReply::Result(block(9))),
        "eth_getBlockReceipts" => Some(FakeReply::Result(json!([receipt(hash(100), hash(9))]))),
        "eth_getBlockByNumber" if params[0] != "latest" => {
            let number = u64::from_str_radix(&params[0].as_str()?[2..], 16).unwrap();
            Some(FakeReply::Result(if number < 6 {
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
    let calls_before = has.methods().len();
    assert_eq!(numbers(3, 1).await, [3]);
    assert_eq!(has.methods().len(), calls_before, "the first has all of it");

    // No endpoint has it; an unreachable one does not matter.
    let chain = chain_of(vec![lacks.url(), unreachable_url().await]);
    assert_eq!(chain.header(BlockTag::Hash(hash(9))).await.unwrap(), None);
    assert_eq!(
        chain.block_receipts(hash(9), &|_| true).await.unwrap(),
        None
    );
    assert_eq!(chain.headers(7, 2).await.unwrap(), []);
    let chain = chain_of(vec![unreachable_url().await]);
    assert!(chain.header(BlockTag::Hash(hash(9))).await.is_err());
}

#[tokio::test]
async fn endpoint_behind_is_not_queried_for_missing_results() {
    let (behind_head, head) = (at(80), at(100));
    let behind = FakeNode::start_at(&behind_head, |_, _| None).await;
    let ahead = FakeNode::start_at(&head, |_, _| None).await;
    let chain = chain_of(vec![ahead.url(), behind.url()]);
    assert_eq!(latest(&chain).await, 100);
    wait_until("a poll", async || behind.count("eth_blockNumber") == 1).await;
    wait_until("the result of the poll", async || {
        let calls_before = behind.methods().len();
        assert_eq!(chain.header(BlockTag::Hash(hash(9))).await.unwrap(), None);
        behind.methods().len() == calls_before
    })
    .await;
}

#[tokio::test]
async fn safe_and_finalized_use_their_tags() {
    let fake = FakeNode::start(|_, params| match params[0].as_str().unwrap() {
        "safe" => FakeReply::Result(block(8)),
        "finalized" => FakeReply::Result(block(7)),
        _ => FakeReply::Result(block(9)),
    })
    .await;
    let chain = fake.chain();
    let number = async |tag| chain.header(tag).await.unwrap().unwrap().number;
    assert_eq!(number(BlockTag::Safe).await, 8);
    assert_eq!(number(BlockTag::Finalized).await, 7);
    let none = FakeNode::start(|_, _| FakeReply::Error(-39001, "finalized block not found")).await;
    let finalized = none.chain().header(BlockTag::Finalized).await;
    assert_eq!(finalized.unwrap(), None);
}

#[tokio::test]
async fn receipts_are_collected_from_all_endpoints() {
    let with = |hashes: &'static [u64]| {
        FakeNode::start(move |_, params| {
            let tx: B256 = params[0].as_str().unwrap().parse().unwrap();
            let has = hashes.iter().any(|one| hash(*one) == tx);
            FakeReply::Result(if has {
                receipt(tx, hash(9))
            } else {
                Value::Null
            })
        })
    };
    let (first, second) = (with(&[1, 3]).await, with(&[2, 3]).await);
    let chain = chain_of(vec![first.url(), unreachable_url().await, second.url()]);
    let found = chain
        .receipts(&[hash(4), hash(3), hash(2), hash(1)], Quorum::One)
        .await
        .unwrap();
    let hashes: Vec<B256> = found.iter().map(|one| one.tx_hash).collect();
    assert_eq!(hashes, [hash(3), hash(2), hash(1)]);
    assert_eq!(second.methods().len(), 2, "only for what the first lacks");
    assert_eq!(chain.receipts(&[], Quorum::One).await.unwrap(), []);
    let dead = chain_of(vec![unreachable_url().await]);
    assert!(matches!(
        dead.receipts(&[hash(1)], Quorum::One).await,
        Err(ChainError::Unreachable(_))
    ));
}

async fn with_nonce(count: &'static str) -> FakeNode {
    FakeNode::start(move |_, _| FakeReply::Result(json!(count))).await
}

#[tokio::test]
async fn third_endpoint_is_queried_when_two_contradict_each_other() {
    let (nine, three, four) = (
        with_nonce("0x9").await,
        with_nonce("0x3").await,
        with_nonce("0x4").await,
    );
    let query = async |endpoints| {
        let chain = chain_of(endpoints);
        let nonces = chain
            .account_nonces(Address::ZERO, ChainQuery::Latest, Quorum::Two)
            .await
            .unwrap();
        assert!(nonces.is_complete());
        let of = |nonces: AccountNonces| nonces.latest.0;
        (
            of(nonces.first),
            nonces.second.map(of),
            nonces.third.map(of),
        )
    };
    let all = vec![nine.url(), three.url(), four.url()];
    assert_eq!(query(all).await, (9, Some(3), Some(4)));
    let agreeing = vec![three.url(), three.url(), four.url()];
    assert_eq!(query(agreeing).await, (3, Some(3), None));
    let with_dead = vec![nine.url(), three.url(), unreachable_url().await];
    assert_eq!(query(with_dead).await, (9, Some(3), None));
}

#[tokio::test]
async fn quorum_of_two_needs_the_second_endpoint() {
    let (three, five) = (with_nonce("0x3").await, with_nonce("0x5").await);
    let other_chain = FakeNode::start_bare(true, |_, _| FakeReply::Result(json!("0x5"))).await;
    let query = async |endpoints, quorum| {
        let chain = chain_of(endpoints);
        let nonces = chain
            .account_nonces(Address::ZERO, ChainQuery::Latest, quorum)
            .await?;
        let second = nonces.second.map(|second| second.latest.0);
        Ok::<_, ChainError>((nonces.first.latest.0, second, nonces.is_complete()))
    };
    let both = || vec![three.url(), five.url()];
    assert_eq!(query(both(), Quorum::Two).await, Ok((3, Some(5), true)));
    assert_eq!(query(both(), Quorum::One).await, Ok((3, None, false)));
    let one = || vec![three.url()];
    assert_eq!(query(one(), Quorum::Two).await, Ok((3, None, true)));
    assert_eq!(query(one(), Quorum::One).await, Ok((3, None, true)));

    let (dead, wrong) = (unreachable_url().await, other_chain.url());
    let with_dead = vec![dead.clone(), three.url()];
    assert_eq!(
        query(with_dead.clone(), Quorum::One).await,
        Ok((3, None, false))
    );
    assert!(query(with_dead, Quorum::Two).await.is_err());
    let third = vec![dead.clone(), three.url(), five.url()];
    assert_eq!(query(third, Quorum::Two).await, Ok((3, Some(5), true)));
    let with_wrong = vec![wrong.clone(), three.url()];
    assert_eq!(query(with_wrong, Quorum::Two).await, Ok((3, None, true)));
    assert!(query(vec![wrong], Quorum::Two).await.is_err());
    assert_eq!(three.count("eth_getTransactionCount"), 8);
}

#[tokio::test]
async fn living_endpoint_answers_alone_only_after_the_others_are_dead() {
    let three = with_nonce("0x3").await;
    let endpoints = vec![unreachable_url().await, three.url()];
    for (dead_after, expected) in [
        (Duration::from_secs(60), None),
        (Duration::ZERO, Some(Agreement::Living)),
    ] {
        let chain = RpcChain::new(RpcChainConfig {
            dead_endpoint_after: dead_after,
            ..RpcChainConfig::new(CHAIN, endpoints.clone())
        });
        let nonces = chain
            .unwrap()
            .account_nonces(Address::ZERO, ChainQuery::Latest, Quorum::Two)
            .await;
        assert_eq!(nonces.ok().map(|nonces| nonces.agreement), expected);
    }
}
