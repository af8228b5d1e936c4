//! The route of a request: the keeper, then the preferred node, then the queue.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{LaneKey, Nonce};

use crate::support::{Cluster, RENEW, lane, sleep, transfer};

/// Long enough for nodes to see each other's heartbeats.
const OBSERVED: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn request_is_forwarded_to_the_keeper() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let other = cluster.start("b").await;
    sleep(OBSERVED).await;
    for n in 0..3 {
        let accepted = other
            .node
            .handle()
            .create(transfer(1, &format!("r{n}")))
            .await;
        assert_eq!(accepted.unwrap().record.tx.nonce, Some(Nonce(1 + n)));
    }
    let forwarded = cluster.network.take_forwarded();
    assert_eq!(forwarded.len(), 3);
    assert!(
        forwarded
            .iter()
            .all(|(from, to, _)| from == "b" && to == "a")
    );
    assert_eq!(keeper.node.handle().load().await.lanes, 1);
    assert_eq!(other.node.handle().load().await.lanes, 0);
}

#[tokio::test(start_paused = true)]
async fn lane_without_a_keeper_goes_to_the_node_of_highest_rendezvous_hash() {
    let cluster = Cluster::new();
    let a = cluster.start("a").await;
    let b = cluster.start("b").await;
    sleep(OBSERVED).await;
    for number in 1..=8 {
        a.node
            .handle()
            .create(transfer(number, "first"))
            .await
            .unwrap();
    }
    let forwarded: BTreeSet<LaneKey> = (cluster.network.take_forwarded().into_iter())
        .map(|(_, _, lane)| lane)
        .collect();
    assert!(
        (1..8).contains(&forwarded.len()),
        "lanes spread over both nodes: {forwarded:?}"
    );
    assert_eq!(a.node.handle().load().await.lanes, 8 - forwarded.len());
    assert_eq!(b.node.handle().load().await.lanes, forwarded.len());
    // Both nodes choose alike: no request of the other one is forwarded to it.
    for number in 1..=8 {
        b.node
            .handle()
            .create(transfer(number, "second"))
            .await
            .unwrap();
    }
    for (_, to, lane) in cluster.network.take_forwarded() {
        assert_eq!(to, "a");
        assert!(!forwarded.contains(&lane));
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_queued_when_the_keeper_is_unreachable_and_found_by_it() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let other = cluster.start("b").await;
    sleep(OBSERVED).await;
    cluster.network.cut("a");
    let queued = other
        .node
        .handle()
        .create(transfer(1, "queued"))
        .await
        .unwrap();
    assert!(queued.is_new);
    assert_eq!(queued.record.tx.nonce, None, "no keeper has allocated one");
    let repeated = other
        .node
        .handle()
        .create(transfer(1, "queued"))
        .await
        .unwrap();
    assert!(!repeated.is_new);
    assert_eq!(repeated.record.tx.id, queued.record.tx.id);
    sleep(RENEW * 2).await;
    let record = keeper
        .node
        .handle()
        .tx(queued.record.tx.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.tx.nonce, Some(Nonce(1)));
    let status = keeper.node.handle().lane(lane(1)).await.unwrap().unwrap();
    assert_eq!(status.record.lease.unwrap().owner.0, "a");
}
