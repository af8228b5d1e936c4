//! A restored backup of the store, and what the nodes remember on their own disks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{History, Token, TxState};
use engine::node::{NodeConfig, OnTimelineChange, Refusal};
use engine::ports::{Store as _, Witness as _, WitnessedLanes};

use crate::losses::{decided, mine_blocks, payment};
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

/// A cluster whose node `a` has paid the request "lost" of lane 1 and accepted others of lane 2, and has ended. The store is a
/// snapshot from before, on the same history.
async fn cluster_with_a_lost_payment() -> Cluster {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    assert_eq!(create(&keeper, 2, "kept").await, Ok(()));
    sleep(WITNESSED).await;
    cluster.store.stop_standby();
    assert_eq!(create(&keeper, 2, "gone").await, Ok(()));
    keeper.node.handle().create(payment("lost")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    mine_blocks(&cluster, 20).await;
    sleep(WITNESSED).await;
    keeper.tasks.kill();
    cluster.network.cut("a");
    cluster.store.restore_snapshot();
    cluster
}

/// Changes what node `a` has recorded.
async fn change_witness(cluster: &Cluster, change: impl FnOnce(&mut WitnessedLanes)) {
    let disk = cluster.disk("a");
    let mut lanes = disk.read().await.unwrap();
    change(&mut lanes);
    disk.write(&lanes).await.unwrap();
}

fn continues(config: &mut NodeConfig) {
    config.on_timeline_change = OnTimelineChange::Continue;
}

async fn suspicions(cluster: &Cluster) -> u64 {
    let of_no_store = History {
        store: 0,
        timeline: 0,
        restores: 0,
        suspicions: 0,
    };
    let present = cluster.store.suspect_loss(of_no_store).await;
    present.unwrap().suspicions
}

/// Why the lane of the lost payment takes no request; it must not take one.
async fn halted(test_node: &TestNode) -> String {
    for _ in 0..60 {
        match test_node.node.handle().create(payment("lost")).await {
            Ok(accepted) => panic!("paid twice: {accepted:?}"),
            Err(Refusal::Halted(why)) => return why,
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
    panic!("the lane is neither halted nor opened");
}

#[tokio::test(start_paused = true)]
async fn loss_outlives_the_node_that_found_it_where_lanes_continue() {
    let cluster = cluster_with_a_lost_payment().await;
    let finder = cluster.start_with("a", continues).await;
    finder.tasks.kill();
    cluster.network.cut("a");
    // It has no witness.
    let next = cluster.start_with("c", continues).await;
    sleep(TAKEOVER).await;
    let held = decided(&cluster, &next, payment("lost")).await;
    assert_eq!((held.tx.state, held.tx.nonce), (TxState::Stuck, None));
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_lane_makes_every_lane_be_compared() {
    let cluster = cluster_with_a_lost_payment().await;
    change_witness(&cluster, |lanes| lanes.retain(|key, _| *key != lane(1))).await;
    let keeper = cluster.start("a").await;
    let why = halted(&keeper).await;
    assert!(why.contains("the chain has transactions"), "{why}");
    let refused = create(&keeper, 2, "next").await;
    assert!(is_halted(&refused), "its loss is proven: {refused:?}");
}

#[tokio::test(start_paused = true)]
async fn suspicion_is_durable_and_recorded_once() {
    let cluster = cluster_with_a_lost_payment().await;
    change_witness(&cluster, |lanes| {
        lanes.remove(&lane(2));
        let seen = lanes.get_mut(&lane(1)).unwrap();
        (seen.token, seen.batch_seq) = (Token(99), 0);
    })
    .await;
    for _ in 0..2 {
        let finder = cluster.start("a").await;
        assert_eq!(suspicions(&cluster).await, 1);
        finder.tasks.kill();
        cluster.network.cut("a");
    }
    let next = cluster.start("c").await;
    sleep(TAKEOVER).await;
    let why = halted(&next).await;
    assert!(why.contains("the chain has transactions"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn lane_is_not_opened_before_its_loss_is_durable() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    cluster.store.stop_standby();
    assert_eq!(create(&keeper, 1, "lost").await, Ok(()));
    sleep(WITNESSED).await;
    let seen = cluster.disk("a").read().await;
    keeper.script.fail_suspicions.store(true, Ordering::SeqCst);
    cluster.store.restore_snapshot();
    for _ in 0..10 {
        assert!(create(&keeper, 1, "next").await.is_err());
        sleep(WITNESSED).await;
    }
    assert_eq!(cluster.disk("a").read().await, seen);
    keeper.script.fail_suspicions.store(false, Ordering::SeqCst);
    let why = halted(&keeper).await;
    assert!(why.contains("commits of this node are gone"), "{why}");
    assert_eq!(suspicions(&cluster).await, 1);
}
