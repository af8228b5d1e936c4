//! Takeover, hand-off, and the end of a replaced incarnation.

use std::time::Duration;

use domain::Nonce;
use engine::node::Refusal;

use crate::support::{Cluster, RENEW, TAKEOVER, TestNode, lane, sleep, transfer};

async fn keeper_of_lane_1(test_node: &TestNode) -> Option<String> {
    let status = test_node
        .node
        .handle()
        .lane(lane(1))
        .await
        .unwrap()
        .unwrap();
    status.record.lease.map(|lease| lease.owner.0)
}

#[tokio::test(start_paused = true)]
async fn lane_of_a_dead_node_is_adopted_with_its_work() {
    let cluster = Cluster::new();
    let dead = cluster.start_warm("a").await;
    let survivor = cluster.start("b").await;
    sleep(Duration::from_secs(5)).await;
    dead.tasks.kill();
    cluster.network.cut("a");
    sleep(RENEW).await;
    assert_eq!(
        keeper_of_lane_1(&survivor).await.as_deref(),
        Some("a"),
        "its lease still runs"
    );
    sleep(TAKEOVER).await;
    assert_eq!(keeper_of_lane_1(&survivor).await.as_deref(), Some("b"));
    let next = survivor
        .node
        .handle()
        .create(transfer(1, "second"))
        .await
        .unwrap();
    assert_eq!(
        next.record.tx.nonce,
        Some(Nonce(1)),
        "the dead node had allocated 0"
    );
}

#[tokio::test(start_paused = true)]
async fn drained_node_hands_its_lanes_off_at_once() {
    let cluster = Cluster::new();
    let leaving = cluster.start_warm("a").await;
    let staying = cluster.start("b").await;
    sleep(Duration::from_secs(5)).await;
    leaving.node.drain().await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(keeper_of_lane_1(&staying).await.as_deref(), Some("b"));
    assert_eq!(leaving.node.handle().load().await.lanes, 0);
    // It still forwards requests of its callers.
    let accepted = leaving
        .node
        .handle()
        .create(transfer(1, "second"))
        .await
        .unwrap();
    assert_eq!(accepted.record.tx.nonce, Some(Nonce(1)));
    assert_eq!(cluster.network.take_forwarded().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_ends_when_a_newer_incarnation_has_its_name() {
    let cluster = Cluster::new();
    let old = cluster.start_warm("a").await;
    let new = cluster.start("a").await;
    sleep(RENEW * 2).await;
    assert!(old.tasks.is_dead());
    assert!(!new.tasks.is_dead());
}

#[tokio::test(start_paused = true)]
async fn lease_is_kept_while_renewals_succeed() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let other = cluster.start("b").await;
    sleep(TAKEOVER * 4).await;
    assert_eq!(keeper_of_lane_1(&other).await.as_deref(), Some("a"));
    keeper.script.take_calls();
    keeper
        .node
        .handle()
        .create(transfer(1, "second"))
        .await
        .unwrap();
    assert_eq!(
        keeper.script.take_calls(),
        ["create"],
        "it was never released"
    );
}

#[tokio::test(start_paused = true)]
async fn store_outage_refuses_requests_and_the_lane_is_opened_again_after_it() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    keeper.script.cut(true);
    let refused = keeper.node.handle().create(transfer(1, "refused")).await;
    assert!(
        matches!(refused, Err(Refusal::StoreUnavailable(_))),
        "{refused:?}"
    );
    sleep(TAKEOVER * 4).await;
    assert!(keeper.node.handle().readiness().await.store.is_err());
    keeper.script.cut(false);
    sleep(RENEW * 2).await;
    assert_eq!(keeper.node.handle().readiness().await.store, Ok(()));
    let accepted = keeper
        .node
        .handle()
        .create(transfer(1, "accepted"))
        .await
        .unwrap();
    assert_eq!(accepted.record.tx.nonce, Some(Nonce(1)));
}
