//! A restored backup of the store, and what the nodes remember on their own disks.

use std::time::Duration;

use engine::node::Refusal;

use crate::support::{Cluster, RENEW, TAKEOVER, TestNode, lane, sleep, transfer};

/// The witness is written once per second.
const WITNESSED: Duration = Duration::from_millis(1_500);

/// A cluster whose node `a` kept lanes 1 and 2, and has ended. The store is a snapshot from before its last requests of
/// lane 1.
async fn restored_cluster() -> Cluster {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    keeper
        .node
        .handle()
        .create(transfer(2, "kept"))
        .await
        .unwrap();
    sleep(WITNESSED).await;
    cluster.store.stop_standby();
    // More commits than the next keeper makes by itself: a lane that was used again is not found behind any more.
    for number in 0..10 {
        let lost = transfer(1, &format!("lost-{number}"));
        keeper.node.handle().create(lost).await.unwrap();
    }
    sleep(WITNESSED).await;
    keeper.tasks.kill();
    cluster.network.cut("a");
    cluster.store.restore_snapshot();
    cluster
}

async fn create(test_node: &TestNode, from: u8, request_id: &str) -> Result<(), Refusal> {
    let handle = test_node.node.handle();
    handle.create(transfer(from, request_id)).await.map(drop)
}

fn is_halted(refused: &Result<(), Refusal>) -> bool {
    matches!(refused, Err(Refusal::Halted(why)) if why.contains("node a has seen"))
}

#[tokio::test(start_paused = true)]
async fn restarted_node_halts_only_the_lane_that_the_snapshot_has_set_back() {
    let cluster = restored_cluster().await;
    let keeper = cluster.start("a").await;
    let refused = create(&keeper, 1, "next").await;
    assert!(is_halted(&refused), "{refused:?}");
    assert_eq!(create(&keeper, 2, "next").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn lane_that_another_node_keeps_meanwhile_is_halted_too() {
    let cluster = restored_cluster().await;
    let other = cluster.start("b").await;
    sleep(TAKEOVER).await;
    let keeper = cluster.start("a").await;
    sleep(RENEW).await;
    for test_node in [&other, &keeper] {
        let refused = create(test_node, 1, "next").await;
        assert!(is_halted(&refused), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_loss_is_not_found_again_by_any_node() {
    let cluster = restored_cluster().await;
    let keeper = cluster.start("a").await;
    let refused = create(&keeper, 1, "next").await;
    assert!(is_halted(&refused), "{refused:?}");
    keeper.tasks.kill();
    let other = cluster.start("b").await;
    let handle = other.node.handle();
    assert_eq!(handle.accept_loss(lane(1), "compared").await, Ok(true));
    assert_eq!(create(&other, 1, "next").await, Ok(()));
    let keeper = cluster.start("a").await;
    assert_eq!(create(&keeper, 1, "further").await, Ok(()));
    assert_eq!(create(&other, 1, "last").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn declared_restore_ends_the_opinion_of_every_witness() {
    let cluster = restored_cluster().await;
    cluster.store.declare_restore();
    let keeper = cluster.start("a").await;
    let answer = create(&keeper, 1, "next").await;
    assert!(!is_halted(&answer), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn node_without_a_witness_has_no_opinion() {
    let cluster = restored_cluster().await;
    let new = cluster.start("c").await;
    sleep(TAKEOVER).await;
    assert_eq!(create(&new, 1, "next").await, Ok(()));
}
