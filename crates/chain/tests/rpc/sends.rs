//! Sends over JSON-RPC: what is known, what is unknown, and what certainly did not leave.

use std::sync::Mutex;
use std::time::Duration;

use crate::fake::{CHAIN, Fake, Say, chain_of, chain_with_timeout, nobody};
use domain::attempt::Outgoing;
use domain::{B256, Bytes, Nonce, SendOutcome};
use engine::ports::Chain;
use serde_json::{Value, json};

/// Bytes that name their own hash, so that a fake can answer with it.
fn outgoing(nonce: u64) -> Outgoing {
    let hash = B256::left_padding_from(&nonce.to_be_bytes());
    Outgoing {
        nonce: Nonce(nonce),
        hash,
        raw: Bytes::copy_from_slice(hash.as_slice()),
    }
}

fn many(count: u64) -> Vec<Outgoing> {
    (0..count).map(outgoing).collect()
}

fn take(params: &Value) -> Say {
    Say::Result(params[0].clone())
}

fn nonce_of(params: &Value) -> u64 {
    let raw = params[0].as_str().unwrap();
    u64::from_str_radix(&raw[raw.len() - 16..], 16).unwrap()
}

fn raws(items: &[Outgoing]) -> Vec<String> {
    items.iter().map(|item| item.raw.to_string()).collect()
}

fn unknown(outcome: &SendOutcome) -> bool {
    matches!(outcome, SendOutcome::Unknown(_))
}

fn busy(outcome: &SendOutcome) -> bool {
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
    let fake = Fake::start(|_, _| Say::Error(-32000, "nonce too low")).await;
    let large = |nonce| Outgoing {
        raw: Bytes::from(vec![7; 128 << 10]),
        ..outgoing(nonce)
    };
    let items: Vec<Outgoing> = (0..10).map(large).collect();
    assert_eq!(
        fake.chain().send(&items).await,
        vec![SendOutcome::NonceTooLow; 10]
    );
    assert_eq!(fake.request_sizes(), [4, 4, 2]);
}

#[tokio::test]
async fn each_gets_its_own_outcome() {
    let fake = Fake::start(|_, params| match nonce_of(params) {
        0 => take(params),
        1 => Say::Error(-32000, "already known"),
        2 => Say::Error(-32000, "nonce too low: next nonce 9, tx nonce 2"),
        3 => Say::Error(-32000, "replacement transaction underpriced"),
        4 => Say::Error(-32000, "insufficient funds for gas * price + value"),
        5 => Say::Error(-32000, "txpool is full"),
        6 => Say::Error(-32000, "intrinsic gas too low"),
        7 => Say::Error(-32000, "words that nobody has heard"),
        8 => Say::Skip,
        9 => Say::Result(json!(B256::repeat_byte(9))),
        10 => Say::Result(Value::Null),
        _ => Say::Error(-32000, "transaction underpriced"),
    })
    .await;
    let outcomes = fake.chain().send(&many(12)).await;
    assert_eq!(outcomes[0], SendOutcome::Accepted);
    assert_eq!(outcomes[1], SendOutcome::Accepted);
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(matches!(
        outcomes[3],
        SendOutcome::ReplacementUnderpriced(_)
    ));
    assert!(matches!(outcomes[4], SendOutcome::Underfunded(_)));
    assert!(busy(&outcomes[5]));
    assert!(matches!(outcomes[6], SendOutcome::Rejected(_)));
    assert!(outcomes[7..=10].iter().all(unknown), "{outcomes:?}");
    assert!(matches!(outcomes[11], SendOutcome::Underpriced(_)));
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

#[tokio::test]
async fn a_node_without_batches_gets_single_calls_in_order() {
    let fake = Fake::start_bare(false, |method, params| match method {
        "eth_chainId" => Say::Result(json!(format!("{:#x}", CHAIN.0))),
        _ => take(params),
    })
    .await;
    let chain = fake.chain();
    assert_eq!(chain.send(&many(5)).await, vec![SendOutcome::Accepted; 5]);
    assert_eq!(fake.request_sizes(), [5, 1, 1, 1, 1, 1]);
    assert_eq!(fake.raws()[5..], raws(&many(5)));
    assert_eq!(chain.send(&many(2)).await, vec![SendOutcome::Accepted; 2]);
    assert_eq!(fake.request_sizes()[6..], [1, 1], "it is remembered");
}

#[tokio::test]
async fn single_calls_stop_at_the_first_lost_answer() {
    let fake = Fake::start_bare(false, |method, params| match method {
        "eth_chainId" => Say::Result(json!(format!("{:#x}", CHAIN.0))),
        _ if nonce_of(params) == 2 => Say::Hangup,
        _ => take(params),
    })
    .await;
    let outcomes = fake.chain().send(&many(5)).await;
    assert_eq!(
        outcomes[..2],
        [SendOutcome::Accepted, SendOutcome::Accepted]
    );
    assert!(
        unknown(&outcomes[2]) && busy(&outcomes[3]) && busy(&outcomes[4]),
        "{outcomes:?}"
    );
    assert_eq!(fake.raws()[5..], raws(&many(3)));
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

#[tokio::test]
async fn doubt_is_taken_to_the_next_endpoint() {
    let lost = Fake::start(|_, _| Say::Hangup).await;
    let takes = Fake::start(|_, params| match nonce_of(params) {
        0 => take(params),
        1 => Say::Error(-32000, "already known"),
        2 => Say::Error(-32000, "nonce too low"),
        _ => Say::Error(-32000, "transaction underpriced"),
    })
    .await;
    let outcomes = chain_of(vec![lost.url(), takes.url()]).send(&many(4)).await;
    assert_eq!(
        outcomes[..2],
        [SendOutcome::Accepted, SendOutcome::Accepted]
    );
    assert_eq!(outcomes[2], SendOutcome::NonceTooLow);
    assert!(
        unknown(&outcomes[3]),
        "the first may have taken it: {:?}",
        outcomes[3]
    );

    let outcomes = chain_of(vec![nobody().await, takes.url()])
        .send(&many(4))
        .await;
    assert!(matches!(outcomes[3], SendOutcome::Underpriced(_)));
    let syncing = Fake::start(|_, _| Say::Error(-32000, "node is syncing")).await;
    let outcomes = chain_of(vec![syncing.url(), takes.url()])
        .send(&many(1))
        .await;
    assert_eq!(outcomes, [SendOutcome::Accepted]);
}
