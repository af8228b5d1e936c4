//! Sends over JSON-RPC: known outcomes, unknown outcomes, and envelopes that were certainly not sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake_node::{
    CHAIN, FakeNode, FakeReply, SendAll as _, chain_of, chain_with_timeout, unreachable_url,
};
use domain::attempt::OutgoingEnvelope;
use domain::{B256, Bytes, Nonce, SendOutcome};
use serde_json::{Value, json};

/// Bytes that contain their own hash, so that a fake node can return it.
pub(crate) fn outgoing(nonce: u64) -> OutgoingEnvelope {
    let hash = B256::left_padding_from(&nonce.to_be_bytes());
    OutgoingEnvelope {
        nonce: Nonce(nonce),
        hash,
        raw: Bytes::copy_from_slice(hash.as_slice()),
        others: Vec::new(),
        to_all: false,
    }
}

pub(crate) fn many(count: u64) -> Vec<OutgoingEnvelope> {
    (0..count).map(outgoing).collect()
}

pub(crate) fn accept(params: &Value) -> FakeReply {
    FakeReply::Result(params[0].clone())
}

/// A script for sends; the node has none of the transactions.
pub(crate) fn on_send(
    answer: impl Fn(&Value) -> FakeReply + Send + Sync + 'static,
) -> impl Fn(&str, &Value) -> FakeReply + Send + Sync + 'static {
    move |method, params| match method {
        "eth_sendRawTransaction" => answer(params),
        "eth_getTransactionCount" => FakeReply::Result(json!("0x0")),
        _ => FakeReply::Result(Value::Null),
    }
}

pub(crate) fn nonce_of(params: &Value) -> u64 {
    let raw = params[0].as_str().unwrap();
    u64::from_str_radix(&raw[raw.len() - 16..], 16).unwrap()
}

fn raws(items: &[OutgoingEnvelope]) -> Vec<String> {
    items.iter().map(|item| item.raw.to_string()).collect()
}

pub(crate) fn unknown(outcome: &SendOutcome) -> bool {
    matches!(outcome, SendOutcome::Unknown(_))
}

pub(crate) fn busy(outcome: &SendOutcome) -> bool {
    matches!(outcome, SendOutcome::Busy(_))
}

#[tokio::test]
async fn many_envelopes_are_sent_in_order_in_few_requests() {
    let fake = FakeNode::start(|_, params| accept(params)).await;
    let items = many(250);
    let outcomes = fake.chain().send_all(&items).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 250]);
    assert_eq!(fake.request_sizes(), [100, 100, 50]);
    assert_eq!(fake.raws(), raws(&items));
    assert_eq!(fake.chain().send_all(&[]).await, []);
}

#[tokio::test]
async fn large_envelopes_make_small_batches() {
    let fake = FakeNode::start(on_send(|_| FakeReply::Error(-32000, "nonce too low"))).await;
    let large = |nonce| OutgoingEnvelope {
        raw: Bytes::from(vec![7; 128 << 10]),
        ..outgoing(nonce)
    };
    let items: Vec<OutgoingEnvelope> = (0..10).map(large).collect();
    assert_eq!(
        fake.chain().send_all(&items).await,
        vec![SendOutcome::NonceTooLow; 10]
    );
    assert_eq!(
        fake.request_sizes(),
        [4, 4, 2, 10],
        "and whether it has them"
    );
}

#[tokio::test]
async fn each_envelope_gets_its_own_outcome() {
    let script = on_send(|params| match nonce_of(params) {
        0 => accept(params),
        1 => FakeReply::Error(-32000, "already known"),
        2 => FakeReply::Error(-32000, "nonce too low: next nonce 9, tx nonce 2"),
        3 => FakeReply::Error(-32000, "replacement transaction underpriced"),
        4 => FakeReply::Error(-32000, "transaction underpriced"),
        5 => FakeReply::Error(-32000, "intrinsic gas too low"),
        6 => FakeReply::Error(
            -32000,
            "oversized data: transaction size 200000, limit 131072",
        ),
        7 => FakeReply::Error(-32000, "an unknown error text"),
        8 => FakeReply::Skip,
        9 => FakeReply::Result(json!(B256::repeat_byte(9))),
        10 => FakeReply::Result(Value::Null),
        11 => FakeReply::Error(-32000, "node is syncing"),
        12 => FakeReply::Error(-32000, "insufficient funds for gas * price + value"),
        13 => FakeReply::Error(-32000, "account limit exceeded: pooled 16 txs"),
        _ => FakeReply::Error(-32000, "gapped-nonce tx from delegated accounts"),
    });
    let fake = FakeNode::start(script).await;
    let outcomes = fake.chain().send_all(&many(15)).await;
    assert_eq!(outcomes[0], SendOutcome::Accepted);
    assert_eq!(outcomes[1], SendOutcome::Accepted);
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(matches!(outcomes[3], SendOutcome::ForeignPending(_)));
    assert!(matches!(outcomes[4], SendOutcome::Underpriced(_)));
    assert!(matches!(outcomes[5], SendOutcome::GasTooLow(_)));
    assert!(matches!(outcomes[6], SendOutcome::Rejected(_)));
    assert!(outcomes[7..=10].iter().all(unknown), "{outcomes:?}");
    assert!(busy(&outcomes[11]));
    assert!(matches!(outcomes[12], SendOutcome::Underfunded(_)));
    let holds = |index: usize, number: u64| {
        let most = Some(number);
        matches!(&outcomes[index], SendOutcome::Full { most: stated, .. } if *stated == most)
    };
    assert!(holds(13, 16) && holds(14, 1), "{outcomes:?}");
}

#[tokio::test]
async fn ambiguous_errors_are_decided_by_the_nodes_txs() {
    // The node has the envelopes of nonces 0 to 4, and another attempt of the lane at 5 and 7.
    let older = |nonce: u64| B256::repeat_byte(0xb0 + u8::try_from(nonce).unwrap());
    let fake = FakeNode::start(move |method, params| match method {
        "eth_sendRawTransaction" => match nonce_of(params) {
            0 => FakeReply::Error(-32000, "nonce too low"),
            1 | 5 | 6 => FakeReply::Error(-32000, "replacement transaction underpriced"),
            2 | 7 | 8 => FakeReply::Error(-32000, "transaction underpriced"),
            3 => FakeReply::Error(-32000, "VM Exception while processing transaction: revert"),
            _ => FakeReply::Error(-32000, "an unknown error text"),
        },
        "eth_getTransactionCount" => FakeReply::Result(json!("0x0")),
        _ => {
            let hash: B256 = params[0].as_str().unwrap().parse().unwrap();
            let has =
                hash == older(5) || hash == older(7) || many(5).iter().any(|one| one.hash == hash);
            FakeReply::Result(if has {
                json!({ "hash": hash })
            } else {
                Value::Null
            })
        }
    })
    .await;
    let items: Vec<OutgoingEnvelope> = (0..10)
        .map(|nonce| OutgoingEnvelope {
            others: vec![older(nonce)],
            ..outgoing(nonce)
        })
        .collect();
    let outcomes = fake.chain().send_all(&items).await;
    assert_eq!(outcomes[..5], vec![SendOutcome::Accepted; 5]);
    assert!(matches!(
        outcomes[5],
        SendOutcome::ReplacementUnderpriced(_)
    ));
    assert!(matches!(outcomes[6], SendOutcome::ForeignPending(_)));
    assert!(matches!(
        outcomes[7],
        SendOutcome::ReplacementUnderpriced(_)
    ));
    assert!(matches!(outcomes[8], SendOutcome::Underpriced(_)));
    assert!(unknown(&outcomes[9]));
    // Ten for the envelopes themselves, and six for other attempts at ambiguous nonces; then the account's nonces.
    assert_eq!(fake.request_sizes(), [10, 16, 2]);
}

#[tokio::test]
async fn ambiguous_errors_without_pool_query_stay_unknown() {
    let fake = FakeNode::start(|method, params| match (method, params) {
        ("eth_sendRawTransaction", params) => match nonce_of(params) {
            0 => FakeReply::Error(-32000, "nonce too low"),
            1 => FakeReply::Error(-32000, "replacement transaction underpriced"),
            _ => FakeReply::Error(-32000, "transaction underpriced"),
        },
        _ => FakeReply::Error(-32603, "not now"),
    })
    .await;
    let outcomes = fake.chain().send_all(&many(3)).await;
    assert_eq!(outcomes[0], SendOutcome::NonceTooLow);
    assert!(outcomes[1..].iter().all(unknown), "{outcomes:?}");
}

#[tokio::test]
async fn lost_answer_is_unknown_and_not_sent_again() {
    for lost in [
        || FakeReply::Hangup,
        || FakeReply::raw(500, "oops"),
        || FakeReply::raw(502, ""),
        || FakeReply::raw(200, "garbage"),
    ] {
        for count in [1, 3] {
            let fake = FakeNode::start(move |_, _| lost()).await;
            let outcomes = fake.chain().send_all(&many(count)).await;
            assert!(outcomes.iter().all(unknown), "{outcomes:?}");
            assert_eq!(fake.raws(), raws(&many(count)));
        }
    }
    let fake = FakeNode::start(|_, _| FakeReply::NoAnswer).await;
    let chain = chain_with_timeout(vec![fake.url()], Duration::from_secs(1));
    let outcomes = chain.send_all(&many(150)).await;
    assert!(outcomes[..100].iter().all(unknown));
    assert!(
        outcomes[100..].iter().all(busy),
        "envelopes that were not tried are not unknown"
    );
    assert_eq!(fake.raws().len(), 100);
}

#[tokio::test]
async fn unsent_envelope_is_busy() {
    let chain = chain_of(vec![unreachable_url().await]);
    assert!(chain.send_all(&many(2)).await.iter().all(busy));
    for status in [429, 503, 403] {
        let fake = FakeNode::start(move |_, _| FakeReply::raw(status, "no")).await;
        assert!(fake.chain().send_all(&many(2)).await.iter().all(busy));
    }
    for silent in [
        || FakeReply::Hangup,
        || FakeReply::raw(200, "garbage"),
        || FakeReply::Error(-32603, "no"),
    ] {
        let fake = FakeNode::start_bare(true, move |_, _| silent()).await;
        let outcomes = fake.chain().send_all(&many(2)).await;
        assert!(
            outcomes.iter().all(busy),
            "only its chain id was queried: {outcomes:?}"
        );
        assert_eq!(fake.raws(), Vec::<String>::new());
    }
    let other = FakeNode::start_bare(true, |_, _| FakeReply::Result(json!("0x5"))).await;
    let outcomes = other.chain().send_all(&many(1)).await;
    assert!(matches!(&outcomes[0], SendOutcome::Busy(why) if why.contains("serves chain 5")));
    assert_eq!(other.raws(), Vec::<String>::new());
}

fn sorted(mut raws: Vec<String>) -> Vec<String> {
    raws.sort();
    raws
}

#[tokio::test]
async fn node_without_batches_gets_single_calls() {
    let fake = FakeNode::start_single(on_send(accept)).await;
    let chain = fake.chain();
    assert_eq!(
        chain.send_all(&many(5)).await,
        vec![SendOutcome::Accepted; 5]
    );
    assert_eq!(fake.request_sizes(), [5, 1, 1, 1, 1, 1]);
    assert_eq!(sorted(fake.raws()[5..].to_vec()), raws(&many(5)));
    assert_eq!(fake.count("eth_chainId"), 1);
    assert_eq!(
        chain.send_all(&many(2)).await,
        vec![SendOutcome::Accepted; 2]
    );
    assert_eq!(fake.request_sizes()[6..], [1, 1], "it is remembered");
}

#[tokio::test]
async fn single_calls_stop_after_a_terminal_error() {
    for stop in [
        || FakeReply::Hangup,
        || FakeReply::raw(429, "no"),
        || FakeReply::Error(-32000, "txpool is full"),
        || FakeReply::Error(-32000, "insufficient funds for gas * price + value"),
    ] {
        let fake = FakeNode::start_single(on_send(move |params| match nonce_of(params) {
            4 => stop(),
            _ => accept(params),
        }))
        .await;
        let items = many(200);
        let outcomes = fake.chain().send_all(&items).await;
        assert_ne!(outcomes[4], SendOutcome::Accepted);
        let sent = fake.raws()[100..].len(); // after the refused batch
        assert!((5..100).contains(&sent), "{sent}");
        for (item, outcome) in items.iter().zip(&outcomes) {
            let was_sent = fake.raws()[100..].contains(&item.raw.to_string());
            assert!(was_sent || busy(outcome), "{outcome:?} was not sent");
        }
        assert!(busy(&outcomes[199]));
    }
}

#[tokio::test]
async fn one_bad_envelope_does_not_block_the_others() {
    for accepts_batches in [true, false] {
        let script = |method: &str, params: &Value| match method {
            "eth_chainId" => FakeReply::Result(json!(format!("{:#x}", CHAIN.0))),
            _ if nonce_of(params) == 50 => FakeReply::Error(-32000, "oversized data"),
            _ => accept(params),
        };
        let fake = FakeNode::start_bare(accepts_batches, script).await;
        let mut outcomes = fake.chain().send_all(&many(100)).await;
        assert!(matches!(outcomes.remove(50), SendOutcome::Rejected(_)));
        assert_eq!(outcomes, vec![SendOutcome::Accepted; 99]);
    }
}

#[tokio::test]
async fn node_without_nonce_gaps_gets_envelopes_one_by_one() {
    // It accepts the next nonce only, with the error text of hardhat with automine.
    let next = Arc::new(AtomicU64::new(0));
    let at = next.clone();
    let fake = FakeNode::start_single(on_send(move |params| {
        let nonce = nonce_of(params);
        match at.compare_exchange(nonce, nonce + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => accept(params),
            Err(_) => FakeReply::Error(
                -32000,
                "Nonce too high. Expected nonce to be 0 but got 1. Note that transactions can't be queued when automining.",
            ),
        }
    }))
    .await;
    let chain = fake.chain();
    // The envelopes after the first are ahead of it in any order of arrival.
    next.store(1_000, Ordering::SeqCst);
    let outcomes = chain.send_all(&many(3)).await;
    assert!(
        outcomes
            .iter()
            .all(|one| matches!(one, SendOutcome::Full { .. }))
    );
    next.store(0, Ordering::SeqCst);
    assert_eq!(
        chain.send_all(&many(60)).await,
        vec![SendOutcome::Accepted; 60]
    );
}

#[tokio::test]
async fn batches_and_single_calls_are_both_measured_on_bursts() {
    let fake = FakeNode::start(on_send(accept)).await;
    let chain = fake.chain();
    for count in [40, 40] {
        let outcomes = chain.send_all(&many(count)).await;
        assert!(outcomes.iter().all(|one| *one == SendOutcome::Accepted));
    }
    assert_eq!(fake.request_sizes()[..2], [40, 1]);
    assert_eq!(fake.request_sizes().len(), 41);
}

#[tokio::test]
async fn batch_refused_as_too_large_is_sent_singly() {
    let first = Mutex::new(true);
    let fake = FakeNode::start(move |_, params| {
        if std::mem::take(&mut *first.lock().unwrap()) {
            return FakeReply::raw(413, "too large");
        }
        accept(params)
    })
    .await;
    assert_eq!(
        fake.chain().send_all(&many(2)).await,
        vec![SendOutcome::Accepted; 2]
    );
    assert_eq!(fake.request_sizes(), [2, 1, 1]);
}
