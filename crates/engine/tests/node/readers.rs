//! Reads of customers beside payments.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::node::WaitFor;
use engine::ports::TxFilter;
use tokio::time::{Instant, timeout};

use crate::support::{Cluster, TestNode, lane, sleep, transfer};

/// What one list costs at the store.
const LIST_TIME: Duration = Duration::from_millis(10);
/// Many more than there are places.
const READERS: usize = 100;
const MEASURED: Duration = Duration::from_secs(5);
/// Longer than any list waits.
const PATIENCE: Duration = Duration::from_secs(60);

async fn list(test_node: &TestNode) {
    let page = test_node.node.handle().txs(&TxFilter::default()).await;
    page.expect("it is read");
}

async fn node_with_slow_lists(cluster: &Cluster) -> Arc<TestNode> {
    let test_node = cluster.start_warm("a").await;
    *test_node.script.read_time.lock().unwrap() = LIST_TIME;
    Arc::new(test_node)
}

/// How many lists a flood of readers begins, each of which gives up a list after `patience` and tries again.
async fn flood(test_node: &Arc<TestNode>, patience: Duration) -> usize {
    let begun = || test_node.script.lists_begun.load(Ordering::SeqCst);
    let before = begun();
    let until = Instant::now() + MEASURED;
    let readers = (0..READERS).map(|_| {
        let test_node = Arc::clone(test_node);
        tokio::spawn(async move {
            while Instant::now() < until {
                timeout(patience, list(&test_node)).await.ok();
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    begun() - before
}

/// Pays until the task is ended.
async fn pay(test_node: Arc<TestNode>) {
    for number in 0_u64.. {
        let request = transfer(1, &format!("paid-{number}"));
        let accepted = test_node.node.handle().create(request).await;
        accepted.expect("it is accepted");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn flood_of_readers_gets_a_bounded_share_only_while_payments_are_made() {
    let cluster = Cluster::new();
    let test_node = node_with_slow_lists(&cluster).await;
    sleep(Duration::from_secs(3)).await;
    let alone = flood(&test_node, PATIENCE).await;
    let paying = tokio::spawn(pay(Arc::clone(&test_node)));
    sleep(Duration::from_millis(500)).await;
    let beside_payments = flood(&test_node, PATIENCE).await;
    let given_up = flood(&test_node, LIST_TIME / 2).await;
    assert!(!paying.is_finished(), "payments go on");
    paying.abort();
    assert!(
        beside_payments * 4 < alone && beside_payments > READERS,
        "{alone} lists alone, {beside_payments} beside payments"
    );
    // The store may go on with what its client has given up.
    assert!(
        given_up <= beside_payments,
        "{given_up} lists that are given up, {beside_payments} that are awaited"
    );
}

#[tokio::test(start_paused = true)]
async fn reader_among_few_waits_for_nothing_while_payments_are_made() {
    let cluster = Cluster::new();
    let test_node = node_with_slow_lists(&cluster).await;
    let paying = tokio::spawn(pay(Arc::clone(&test_node)));
    for _ in 0..20 {
        let begun_at = Instant::now();
        list(&test_node).await;
        assert_eq!(begun_at.elapsed(), LIST_TIME);
        sleep(Duration::from_millis(50)).await;
    }
    paying.abort();
}

#[tokio::test(start_paused = true)]
async fn wait_ends_in_time_behind_slow_reads_of_other_waiters() {
    let cluster = Cluster::new();
    let test_node = Arc::new(cluster.start_warm("a").await);
    let request = transfer(1, "waited");
    let accepted = test_node.node.handle().create(request).await.unwrap();
    let id = accepted.record.tx.id;
    *test_node.script.read_time.lock().unwrap() = Duration::from_secs(60);
    let timeout = Duration::from_secs(1);
    let waiters = (0..READERS).map(|_| {
        let test_node = Arc::clone(&test_node);
        tokio::spawn(async move {
            let started = Instant::now();
            let handle = test_node.node.handle();
            let waited = handle.wait(id, WaitFor::Mined, timeout).await;
            (waited.is_err(), started.elapsed())
        })
    });
    let mut refused = 0;
    for waiter in waiters.collect::<Vec<_>>() {
        let (is_refused, took) = waiter.await.unwrap();
        refused += usize::from(is_refused);
        let most = if is_refused { timeout } else { timeout * 61 };
        assert!(took <= most + Duration::from_millis(10), "{took:?}");
    }
    assert!(refused > READERS / 2, "{refused} did not get to read");
}

#[tokio::test(start_paused = true)]
async fn page_of_lanes_costs_the_reads_of_its_own_lanes() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let handle = test_node.node.handle();
    let mut listed = Vec::new();
    for pages in 1..=4 {
        let after = listed.last().copied();
        let page = handle.lanes(after, 2).await.expect("it is read");
        listed.extend(page.iter().map(|status| status.record.key));
        let read = test_node.script.lanes_read.load(Ordering::SeqCst);
        assert_eq!((listed.len(), read), (2 * pages, 2 * pages));
    }
    assert_eq!(listed, (1..=8).map(lane).collect::<Vec<_>>());
    assert_eq!(handle.lanes(listed.last().copied(), 2).await, Ok(vec![]));
    let first = handle.lanes(None, 1).await.expect("it is read");
    assert!(
        first[0].chain_nonces.is_some(),
        "its keeper knows the chain's nonces"
    );
}
