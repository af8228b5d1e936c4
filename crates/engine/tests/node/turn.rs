//! What a turn does with requests that meet in it, and with idle lanes.

use std::time::Duration;

use domain::Nonce;

use crate::support::{Cluster, lane, sleep, transfer};

#[tokio::test(start_paused = true)]
async fn requests_that_meet_in_one_turn_share_one_commit() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let requests = (0..20).map(|n| transfer(1, &format!("r{n}"))).collect();
    let answers = test_node.node.handle().create_many(requests).await;
    let nonces: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.unwrap().record.tx.nonce.unwrap())
        .collect();
    assert_eq!(nonces, (1..=20).map(Nonce).collect::<Vec<_>>());
    assert_eq!(test_node.script.take_calls(), ["create"]);
}

#[tokio::test(start_paused = true)]
async fn same_request_id_twice_in_one_turn_makes_one_tx() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let handle = test_node.node.handle();
    let create = || handle.create(transfer(1, "same"));
    let (first, second) = futures::join!(create(), create());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.is_new && !second.is_new);
    assert_eq!(first.record.tx.id, second.record.tx.id);
}

#[tokio::test(start_paused = true)]
async fn idle_lane_is_released_and_opened_again_by_the_next_request() {
    let cluster = Cluster::new();
    let idle_release = Duration::from_secs(60);
    let test_node = cluster
        .start_with("a", |config| config.lease.idle_release = idle_release)
        .await;
    let handle = test_node.node.handle();
    handle.create(transfer(1, "first")).await.unwrap();
    for _ in 0..100 {
        cluster.chain.mine(); // final, and beyond what is watched for forks
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(handle.load().await.lanes, 1, "not idle for long enough");
    sleep(idle_release * 2).await;
    assert_eq!(handle.load().await.lanes, 0);
    test_node.script.take_calls();
    let next = handle.create(transfer(1, "second")).await.unwrap();
    assert_eq!(next.record.tx.nonce, Some(Nonce(1)));
    assert_eq!(test_node.script.take_calls(), ["find", "acquire", "create"]);
    assert!(
        handle
            .lane(lane(1))
            .await
            .unwrap()
            .unwrap()
            .record
            .lease
            .is_some()
    );
}
