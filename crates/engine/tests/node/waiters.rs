//! Callers that wait for the progress of a tx.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::TxState;
use engine::node::WaitFor;
use engine::ports::TxRecord;

use crate::support::{Cluster, TestNode, sleep, transfer};

/// Well below the period with which a waiter reads its tx without a wakeup.
const SOON: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits on a node in a task.
fn wait(
    test_node: &TestNode,
    id: domain::TxId,
    until: WaitFor,
) -> tokio::task::JoinHandle<(TxRecord, tokio::time::Instant)> {
    let handle = test_node.node.handle();
    tokio::spawn(async move {
        let record = handle.wait(id, until, TIMEOUT).await.unwrap();
        (record.unwrap(), tokio::time::Instant::now())
    })
}

#[tokio::test(start_paused = true)]
async fn waiter_at_another_node_is_woken_by_the_feed() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let other = cluster.start("b").await;
    let accepted = keeper.node.handle().create(transfer(1, "waited")).await;
    let id = accepted.unwrap().record.tx.id;
    let waiting = [
        wait(&other, id, WaitFor::Mined),
        wait(&other, id, WaitFor::Confirmed),
        wait(&keeper, id, WaitFor::Mined),
    ];
    // Long enough for several reads of the feed in which nothing changes.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(other.node.handle().load().await.waiters, 2);
    let [mined, confirmed, mined_at_keeper] = waiting;
    let mined_at = tokio::time::Instant::now();
    cluster.chain.mine();
    for waiter in [mined, mined_at_keeper] {
        let (record, at) = waiter.await.unwrap();
        assert!(record.tx.inclusion.is_some());
        assert!(at - mined_at < SOON, "{:?}", at - mined_at);
    }
    for _ in 0..3 {
        sleep(Duration::from_millis(200)).await;
        cluster.chain.mine();
    }
    let confirmed_at = tokio::time::Instant::now();
    let (record, at) = confirmed.await.unwrap();
    assert_eq!(record.tx.state, TxState::Confirmed);
    assert!(at - confirmed_at < SOON, "{:?}", at - confirmed_at);
    assert_eq!(other.node.handle().load().await.waiters, 0);
}

/// The lane writes nothing more, so nothing else would wake the waiter.
#[tokio::test(start_paused = true)]
async fn waiter_is_woken_by_a_commit_whose_response_was_lost() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let accepted = keeper.node.handle().create(transfer(1, "waited")).await;
    let id = accepted.unwrap().record.tx.id;
    let confirmed = wait(&keeper, id, WaitFor::Confirmed);
    let is_lost = &keeper.script.lose_confirmation;
    is_lost.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        cluster.chain.mine();
        sleep(Duration::from_millis(200)).await;
    }
    assert!(!is_lost.load(Ordering::SeqCst), "a response was lost");
    let confirmed_at = tokio::time::Instant::now();
    let (record, at) = confirmed.await.unwrap();
    assert_eq!(record.tx.state, TxState::Confirmed);
    assert!(at - confirmed_at < SOON, "{:?}", at - confirmed_at);
}

/// The keeper dies while a caller waits at it for a tx that the next keeper, another node, then brings on.
#[tokio::test(start_paused = true)]
async fn waiter_survives_a_takeover_by_another_node() {
    let cluster = Cluster::new();
    let first = cluster.start_warm("a").await;
    let second = cluster.start("b").await;
    let accepted = first.node.handle().create(transfer(1, "waited")).await;
    let id = accepted.unwrap().record.tx.id;
    let waiting = wait(&first, id, WaitFor::Mined);
    sleep(Duration::from_secs(2)).await;
    first.node.drain().await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.node.handle().load().await.lanes, 1);
    let mined_at = tokio::time::Instant::now();
    cluster.chain.mine();
    let (record, at) = waiting.await.unwrap();
    assert!(record.tx.inclusion.is_some());
    assert!(at - mined_at < SOON, "{:?}", at - mined_at);
}
