//! Bytes leave only while the lease can be trusted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Cluster, LEASE, sleep, transfer};

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_once_the_lease_margin_is_over() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    sleep(Duration::from_secs(1)).await;
    let sent = cluster.chain.pool();
    assert_eq!(sent.len(), 1);
    // Without renewals the lease is trusted for two thirds of its duration. The lane still resubmits every five
    // seconds, and its commits still pass the fence: no other node wants the lane.
    test_node.script.fail_renewals.store(true, Ordering::SeqCst);
    sleep(LEASE).await;
    assert!(cluster.chain.drop_tx(sent[0].hash));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.chain.pool().len(), 0, "bytes left without a lease");

    test_node
        .script
        .fail_renewals
        .store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.chain.pool().len(), 1, "sent again after a renewal");
}

#[tokio::test(start_paused = true)]
async fn envelopes_of_a_lane_are_sent_in_nonce_order() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let requests = (0..30).map(|n| transfer(1, &format!("r{n}"))).collect();
    for answer in test_node.node.handle().create_many(requests).await {
        answer.unwrap();
    }
    sleep(Duration::from_secs(5)).await;
    cluster.chain.mine();
    let mined: Vec<u64> = cluster
        .chain
        .mined()
        .iter()
        .map(|tx| tx.envelope.nonce.0)
        .collect();
    assert_eq!(mined, (0..=30).collect::<Vec<u64>>());
}
