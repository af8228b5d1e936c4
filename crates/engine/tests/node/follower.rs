//! A reorg is reported only with proof: another block at the height, reached by parent links.

use std::time::Duration;

use domain::{EventKind, TxId, TxState};
use engine::node::NodeHandle;
use sim::chain::ReorgPlacement;

use crate::support::{CHAIN, Cluster, sleep, transfer};

/// Longer than the longest delay between two polls.
const POLLED: Duration = Duration::from_secs(20);

async fn has_reorg_event(handle: &NodeHandle, id: TxId) -> bool {
    let events = handle.tx_events(id).await.unwrap().unwrap();
    let mut kinds = events.iter().map(|record| &record.event.kind);
    kinds.any(|kind| matches!(kind, EventKind::TxReorged { .. }))
}

#[tokio::test(start_paused = true)]
async fn reorg_is_emitted_only_when_another_block_takes_the_height() {
    let cluster = Cluster::new();
    let test_node = cluster.start("a").await;
    let handle = test_node.node.handle();
    let id = handle
        .create(transfer(1, "pay"))
        .await
        .unwrap()
        .record
        .tx
        .id;
    sleep(Duration::from_secs(1)).await;
    cluster.chain.mine();
    cluster.chain.mine();
    sleep(POLLED).await;
    let record = handle.tx(id).await.unwrap().unwrap();
    assert!(record.tx.inclusion.is_some(), "{:?}", record.tx);

    // An endpoint that is behind, and one that does not answer, prove nothing.
    cluster.chain.set_lag(0, 2);
    sleep(POLLED).await;
    cluster.chain.set_down(0, true);
    sleep(POLLED).await;
    assert!(!has_reorg_event(&handle, id).await);

    cluster.chain.set_down(0, false);
    cluster.chain.set_lag(0, 0);
    cluster.chain.reorg(2, |_| ReorgPlacement::Pooled);
    cluster.chain.mine_if(|_| false);
    sleep(POLLED).await;
    assert!(has_reorg_event(&handle, id).await);
}

#[tokio::test(start_paused = true)]
async fn unreachable_chain_does_not_stop_acceptance_and_is_followed_again() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let handle = test_node.node.handle();
    cluster.chain.set_down(0, true);
    sleep(Duration::from_secs(20)).await;
    let id = handle
        .create(transfer(1, "meanwhile"))
        .await
        .unwrap()
        .record
        .tx
        .id;
    cluster.chain.set_down(0, false);
    sleep(Duration::from_secs(20)).await;
    for _ in 0..6 {
        cluster.chain.mine();
        sleep(Duration::from_secs(1)).await;
    }
    let record = handle.tx(id).await.unwrap().unwrap();
    assert_eq!(record.tx.state, TxState::Confirmed);
    sleep(POLLED).await;
    let readiness = handle.readiness().await;
    let chain = &readiness.chains[0];
    assert_eq!(chain.chain_id, CHAIN);
    assert_eq!(chain.head, Some(cluster.chain.head().number));
}
