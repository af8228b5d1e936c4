//! Bytes leave only while the lease can be trusted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Cluster, LEASE, TAKEOVER, lane, sleep, transfer};

/// Txs of a lane whose sends hang.
const HANGING: usize = 2;

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

#[tokio::test(start_paused = true)]
async fn lane_moves_to_a_node_whose_sends_are_answered() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let other = cluster.start("b").await;
    sleep(TAKEOVER).await;
    keeper.chain.set_hangs_on_sends(true);
    // While the first one hangs, the others are not sent: that is no answer either.
    let requests = (0..HANGING).map(|n| transfer(1, &format!("hanging-{n}")));
    for accepted in keeper.node.handle().create_many(requests.collect()).await {
        accepted.unwrap();
    }
    let are_sent = || cluster.chain.pool().len() == 1 + HANGING;
    for _ in 0..12 {
        sleep(LEASE / 2).await;
        if are_sent() {
            break;
        }
    }
    assert!(are_sent(), "no node sends them");
    // The lane stays there although requests come through the node whose sends hang.
    for request in ["next", "last"] {
        let accepted = keeper.node.handle().create(transfer(1, request)).await;
        accepted.unwrap();
        sleep(LEASE).await;
    }
    assert_eq!(cluster.chain.pool().len(), 1 + HANGING + 2);
    let status = other.node.handle().lane(lane(1)).await.unwrap().unwrap();
    let keeper = status.record.lease.map(|lease| lease.owner.0);
    assert_eq!(keeper.as_deref(), Some("b"));
}
