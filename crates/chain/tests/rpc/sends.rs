//! Sends over JSON-RPC: what is known, what is unknown, and what certainly did not leave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::{CHAIN, Fake, Say, chain_of, chain_with_timeout, nobody};
use domain::attempt::OutgoingEnvelope;
use domain::{B256, Bytes, Nonce, SendOutcome};
use engine::ports::Chain;
use serde_json::{Value, json};

/// Bytes that name their own hash, so that a fake can answer with it.
pub(crate) fn outgoing(nonce: u64) -> OutgoingEnvelope {
    let hash = B256::left_padding_from(&nonce.to_be_bytes());
    OutgoingEnvelope {
        nonce: Nonce(nonce),
        hash,
        raw: Bytes::copy_from_slice(hash.as_slice()),
        others: Vec::new(),
    }
}

pub(crate) fn many(count: u64) -> Vec<OutgoingEnvelope> {
    (0..count).map(outgoing).collect()
}

pub(crate) fn take(params: &Value) -> Say {
    Say::Result(params[0].clone())
}

/// A script for sends; the node has none of the transactions.
pub(crate) fn on_send(
    answer: impl Fn(&Value) -> Say + Send + Sync + 'static,
) -> impl Fn(&str, &Value) -> Say + Send + Sync + 'static {
    move |method, params| match method {
        "eth_sendRawTransaction" => answer(params),
        _ => Say::Result(Value::Null),
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
async fn many_leave_in_order_in_few_requests() {
    let fake = Fake::start(|_, params| take(params)).await;
    let items = many(250);
    let outcomes = fake.chain().send(&items).await;
    assert_eq!(outcomes, vec![SendOutcome::Accepted; 250]);
    assert_eq!(fake.request_sizes(), [100, 100, 50]);
    assert_eq!(fake.raws(), raws(&items));
    assert_eq!(fake.chain().send(&[]).await, []);
}

#[tokio::test]
async fn large_bytes_make_small_batches() {
    let fake = Fake::start(on_send(|_| Say::Error(-32000, "nonce too low"))).await;
    let large = |nonce| OutgoingEnvelope {
        raw: Bytes::from(vec![7; 128 << 10]),
        ..outgoing(nonce)
    };
    let items: Vec<OutgoingEnvelope> = (0..10).map(large).collect();
    assert_eq!(
        fake.chain().send(&items).await,
        vec![SendOutcome::NonceTooLow; 10]
    );
    assert_eq!(
        fake.request_sizes(),
        [4, 4, 2, 10],
        "and whether it has them"
    );
}

#[tokio::test]
async fn each_gets_its_own_outcome() {
    let script = on_send(|params| match nonce_of(params) {
        0 => take(params),
        1 => Say::Error(-32000, "already known"),
        2 => Say::Error(-32000, "nonce too low: next nonce 9, tx nonce 2"),
        3 => Say::Error(-32000, "replacement transaction underpriced"),
        4 => Say::Error(-32000, "transaction underpriced"),
        5 => Say::Error(-32000, "intrinsic gas too low"),
        6 => Say::Error(
            -32000,
            "oversized data: transaction size 200000, limit 131072",
        ),
        7 => Say::Error(-32000, "words that nobody has heard"),
        8 => Say::Skip,
        9 => Say::Result(json!(B256::repeat_byte(9))),
        10 => Say::Result(Value::Null),
        11 => Say::Error(-32000, "node is syncing"),
        12 => Say::Error(-32000, "insufficient funds for gas * price + value"),
        13 => Say::Error(-32000, "account limit exceeded: pooled 16 txs"),
        _ => Say::Error(-32000, "gapped-nonce tx from delegated accounts"),
    });
    let fake = Fake::start(script).await;
    let outcomes = fake.chain().send(&many(15)).await;
    assert_eq!(outcomes[0], SendOutcome::Accepted);
    assert_eq!(outcomes[1], SendOutcome::Accepted);
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(matches!(outcomes[3], SendOutcome::ForeignPending(_)));
    assert!(matches!(outcomes[4], SendOutcome::Underpriced(_)));
    assert!(matches!(outcomes[5], SendOutcome::Refused(_)));
    assert!(matches!(outcomes[6], SendOutcome::Rejected(_)));
    assert!(outcomes[7..=10].iter().all(unknown), "{outcomes:?}");
    assert!(busy(&outcomes[11]));
    assert!(matches!(outcomes[12], SendOutcome::Underfunded(_)));
    let holds = |index: usize, number: u64| {
        let most = Some(number);
        matches!(&outcomes[index], SendOutcome::Full { most: told, .. } if *told == most)
    };
    assert!(holds(13, 16) && holds(14, 1), "{outcomes:?}");
}

#[tokio::test]
async fn a_complaint_is_read_in_the_light_of_what_the_node_has() {
    // The node has nonces 0 to 4 themselves, and another attempt of ours at 5 and 7.
    let older = |nonce: u64| B256::repeat_byte(0xb0 + u8::try_from(nonce).unwrap());
    let fake = Fake::start(move |method, params| match method {
        "eth_sendRawTransaction" => match nonce_of(params) {
            0 => Say::Error(-32000, "nonce too low"),
            1 | 5 | 6 => Say::Error(-32000, "replacement transaction underpriced"),
            2 | 7 | 8 => Say::Error(-32000, "transaction underpriced"),
            3 => Say::Error(-32000, "VM Exception while processing transaction: revert"),
            _ => Say::Error(-32000, "words that nobody has heard"),
        },
        _ => {
            let hash: B256 = params[0].as_str().unwrap().parse().unwrap();
            let has =
                hash == older(5) || hash == older(7) || many(5).iter().any(|one| one.hash == hash);
            Say::Result(if has {
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
    let outcomes = fake.chain().send(&items).await;
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
    // Ten for themselves, and six others at the nonces at which something may be.
    assert_eq!(fake.request_sizes(), [10, 16]);
}

#[tokio::test]
async fn what_the_node_has_may_stay_unknown() {
    let fake = Fake::start(|method, params| match (method, params) {
        ("eth_sendRawTransaction", params) => match nonce_of(params) {
            0 => Say::Error(-32000, "nonce too low"),
            1 => Say::Error(-32000, "replacement transaction underpriced"),
            _ => Say::Error(-32000, "transaction underpriced"),
        },
        _ => Say::Error(-32603, "not now"),
    })
    .await;
    let outcomes = fake.chain().send(&many(3)).await;
    assert_eq!(outcomes[0], SendOutcome::NonceTooLow);
    assert!(outcomes[1..].iter().all(unknown), "{outcomes:?}");
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_is_not_sent_twice() {
    for lost in [
        || Say::Hangup,
        || Say::raw(500, "oops"),
        || Say::raw(502, ""),
        || Say::raw(200, "garbage"),
    ] {
        for count in [1, 3] {
            let fake = Fake::start(move |_, _| lost()).await;
            let outcomes = fake.chain().send(&many(count)).await;
            assert!(outcomes.iter().all(unknown), "{outcomes:?}");
            assert_eq!(fake.raws(), raws(&many(count)));
        }
    }
    let fake = Fake::start(|_, _| Say::Never).await;
    let chain = chain_with_timeout(vec![fake.url()], Duration::from_secs(1));
    let outcomes = chain.send(&many(150)).await;
    assert!(outcomes[..100].iter().all(unknown));
    assert!(
        outcomes[100..].iter().all(busy),
        "what was not tried is not in doubt"
    );
    assert_eq!(fake.raws().len(), 100);
}

#[tokio::test]
async fn what_did_not_leave_is_busy() {
    let chain = chain_of(vec![nobody().await]);
    assert!(chain.send(&many(2)).await.iter().all(busy));
    for status in [429, 503, 403] {
        let fake = Fake::start(move |_, _| Say::raw(status, "no")).await;
        assert!(fake.chain().send(&many(2)).await.iter().all(busy));
    }
    for silent in [
        || Say::Hangup,
        || Say::raw(200, "garbage"),
        || Say::Error(-32603, "no"),
    ] {
        let fake = Fake::start_bare(true, move |_, _| silent()).await;
        let outcomes = fake.chain().send(&many(2)).await;
        assert!(
            outcomes.iter().all(busy),
            "only its chain id was asked for: {outcomes:?}"
        );
        assert_eq!(fake.raws(), Vec::<String>::new());
    }
    let other = Fake::start_bare(true, |_, _| Say::Result(json!("0x5"))).await;
    let outcomes = other.chain().send(&many(1)).await;
    assert!(matches!(&outcomes[0], SendOutcome::Busy(why) if why.contains("serves chain 5")));
    assert_eq!(other.raws(), Vec::<String>::new());
}

fn sorted(mut raws: Vec<String>) -> Vec<String> {
    raws.sort();
    raws
}

#[tokio::test]
async fn a_node_without_batches_gets_single_calls() {
    let fake = Fake::start_single(on_send(take)).await;
    let chain = fake.chain();
    assert_eq!(chain.send(&many(5)).await, vec![SendOutcome::Accepted; 5]);
    assert_eq!(fake.request_sizes(), [5, 1, 1, 1, 1, 1]);
    assert_eq!(sorted(fake.raws()[5..].to_vec()), raws(&many(5)));
    assert_eq!(fake.count("eth_chainId"), 1);
    assert_eq!(chain.send(&many(2)).await, vec![SendOutcome::Accepted; 2]);
    assert_eq!(fake.request_sizes()[6..], [1, 1], "it is remembered");
}

#[tokio::test]
async fn single_calls_stop_where_the_rest_is_pointless() {
    for stop in [
        || Say::Hangup,
        || Say::raw(429, "no"),
        || Say::Error(-32000, "txpool is full"),
        || Say::Error(-32000, "insufficient funds for gas * price + value"),
    ] {
        let fake = Fake::start_single(on_send(move |params| match nonce_of(params) {
            4 => stop(),
            _ => take(params),
        }))
        .await;
        let items = many(200);
        let outcomes = fake.chain().send(&items).await;
        assert_ne!(outcomes[4], SendOutcome::Accepted);
        let sent = fake.raws()[100..].len(); // after the batch that it did not take
        assert!((5..100).contains(&sent), "{sent}");
        for (item, outcome) in items.iter().zip(&outcomes) {
            let left = fake.raws()[100..].contains(&item.raw.to_string());
            assert!(left || busy(outcome), "{outcome:?} did not leave");
        }
        assert!(busy(&outcomes[199]));
    }
}

#[tokio::test]
async fn one_bad_envelope_does_not_hold_up_the_others() {
    for takes_batches in [true, false] {
        let script = |method: &str, params: &Value| match method {
            "eth_chainId" => Say::Result(json!(format!("{:#x}", CHAIN.0))),
            _ if nonce_of(params) == 50 => Say::Error(-32000, "oversized data"),
            _ => take(params),
        };
        let fake = Fake::start_bare(takes_batches, script).await;
        let mut outcomes = fake.chain().send(&many(100)).await;
        assert!(matches!(outcomes.remove(50), SendOutcome::Rejected(_)));
        assert_eq!(outcomes, vec![SendOutcome::Accepted; 99]);
    }
}

#[tokio::test]
async fn a_node_that_keeps_nothing_ahead_gets_them_one_by_one() {
    // It takes the next nonce only, and says what hardhat says while it mines at once.
    let next = Arc::new(AtomicU64::new(0));
    let at = next.clone();
    let fake = Fake::start_single(on_send(move |params| {
        let nonce = nonce_of(params);
        match at.compare_exchange(nonce, nonce + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => take(params),
            Err(_) => Say::Error(
                -32000,
                "Nonce too high. Expected nonce to be 0 but got 1. Note that transactions can't be queued when automining.",
            ),
        }
    }))
    .await;
    let chain = fake.chain();
    // Those after the first are ahead of it, whatever order they arrive in.
    next.store(1_000, Ordering::SeqCst);
    let outcomes = chain.send(&many(3)).await;
    assert!(
        outcomes
            .iter()
            .all(|one| matches!(one, SendOutcome::Full { .. }))
    );
    next.store(0, Ordering::SeqCst);
    assert_eq!(chain.send(&many(60)).await, vec![SendOutcome::Accepted; 60]);
}

#[tokio::test]
async fn batches_and_single_calls_are_both_tried_on_bursts() {
    let fake = Fake::start(on_send(take)).await;
    let chain = fake.chain();
    for count in [40, 40] {
        let outcomes = chain.send(&many(count)).await;
        assert!(outcomes.iter().all(|one| *one == SendOutcome::Accepted));
    }
    assert_eq!(fake.request_sizes()[..2], [40, 1]);
    assert_eq!(fake.request_sizes().len(), 41);
}

#[tokio::test]
async fn a_body_too_large_for_a_batch_is_sent_singly() {
    let first = Mutex::new(true);
    let fake = Fake::start(move |_, params| {
        if std::mem::take(&mut *first.lock().unwrap()) {
            return Say::raw(413, "too large");
        }
        take(params)
    })
    .await;
    assert_eq!(
        fake.chain().send(&many(2)).await,
        vec![SendOutcome::Accepted; 2]
    );
    assert_eq!(fake.request_sizes(), [2, 1, 1]);
}
