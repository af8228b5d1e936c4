//! Reads of customers beside payments.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::ports::TxFilter;
use tokio::time::{Instant, timeout};

use crate::support::{Cluster, TestNode, sleep, transfer};

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
    *test_node.script.list_time.lock().unwrap() = LIST_TIME;
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
