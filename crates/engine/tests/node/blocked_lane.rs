//! Lanes whose head cannot be mined, and final results that no keeper watches.

use std::time::Duration;

use domain::lane::BalanceCheck;
use domain::{EventKind, SubState, TxId, TxState, U256};
use engine::node::{NewTx, NodeConfig, NodeHandle};
use sim::chain::ReorgPlacement;

use crate::support::{CHAIN, Cluster, RENEW, TAKEOVER, lane, sleep, transfer};

/// Longer than the longest delay between two polls, and than a page of the watch of finals.
const POLLED: Duration = Duration::from_secs(20);

/// Accepts what the account cannot pay, and ends it after a while.
fn ending(config: &mut NodeConfig) {
    let rules = config.chains.get_mut(&CHAIN).expect("configured");
    rules.lane.balance = BalanceCheck::Off;
    rules.lane.blocked_timeout = Some(Duration::from_secs(120));
}

fn unpayable(request_id: &str) -> NewTx {
    let mut request = transfer(1, request_id);
    request.payload.value = U256::MAX;
    request
}

async fn create(handle: &NodeHandle, request: NewTx) -> TxId {
    handle.create(request).await.unwrap().record.tx.id
}

async fn pass_blocks(cluster: &Cluster, count: u64) {
    for _ in 0..count {
        sleep(Duration::from_secs(2)).await;
        cluster.chain.mine();
    }
}

#[tokio::test(start_paused = true)]
async fn every_node_shows_why_a_lane_waits_on_the_lane_and_on_what_is_behind() {
    let cluster = Cluster::new();
    let off = |config: &mut NodeConfig| {
        let rules = config.chains.get_mut(&CHAIN).expect("configured");
        rules.lane.balance = BalanceCheck::Off;
    };
    let keeper = cluster.start_with("a", off).await;
    let handle = keeper.node.handle();
    create(&handle, unpayable("head")).await;
    let behind = create(&handle, transfer(1, "behind")).await;
    sleep(RENEW).await;
    let other = cluster.start_with("b", off).await;
    for handle in [handle, other.node.handle()] {
        let record = handle.tx(behind).await.unwrap().unwrap();
        assert_eq!(record.tx.reason, None, "its row is not written");
        let wait = record.lane_wait.expect("the lane waits");
        assert_eq!(wait.nonce, domain::Nonce(0));
        assert!(wait.reason.contains("the account cannot pay"), "{wait:?}");
        let status = handle.lane(lane(1)).await.unwrap().unwrap();
        assert_eq!(status.waiting_for, Some(wait.reason));
    }
}

#[tokio::test(start_paused = true)]
async fn blocked_head_ends_although_its_keeper_died_meanwhile() {
    let cluster = Cluster::new();
    let first = cluster.start_with("a", ending).await;
    let handle = first.node.handle();
    let head = create(&handle, unpayable("head")).await;
    let behind = create(&handle, transfer(1, "behind")).await;
    pass_blocks(&cluster, 50).await; // 100 s
    let tx = handle.tx(head).await.unwrap().unwrap();
    assert_eq!(tx.attempts.len(), 1, "its time is not over");
    first.tasks.kill();
    cluster.network.cut("a");
    let second = cluster.start_with("b", ending).await;
    let handle = second.node.handle();
    sleep(TAKEOVER).await;
    pass_blocks(&cluster, 32).await; // 64 s: without those of its predecessor not enough
    let tx = handle.tx(head).await.unwrap().unwrap().tx;
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::FailedFinal, Some(SubState::Rejected))
    );
    let reason = tx.reason.expect("it has one");
    assert!(reason.contains("lane.blockedTimeout"), "{reason}");
    let tx = handle.tx(behind).await.unwrap().unwrap();
    assert_eq!((tx.tx.state, tx.lane_wait), (TxState::Confirmed, None));
}

/// All nodes stop, a final result is reorged out, and nothing else opens its lane.
#[tokio::test(start_paused = true)]
async fn reorged_final_of_an_idle_lane_is_reopened_after_a_restart() {
    let cluster = Cluster::new();
    let first = cluster.start("a").await;
    let id = create(&first.node.handle(), transfer(1, "pay")).await;
    sleep(Duration::from_secs(1)).await;
    pass_blocks(&cluster, 5).await;
    sleep(POLLED).await;
    let record = first.node.handle().tx(id).await.unwrap().unwrap();
    assert_eq!(record.tx.state, TxState::Confirmed);
    first.tasks.kill();

    let second = cluster.start("a").await;
    let handle = second.node.handle();
    sleep(POLLED).await;
    let opened = handle.load().await.lanes;
    assert_eq!(opened, 0, "its result stands, so nothing opens the lane");
    second.tasks.kill();

    cluster.chain.reorg(5, |_| ReorgPlacement::Pooled);
    for _ in 0..6 {
        cluster.chain.mine_if(|_| false);
    }
    let third = cluster.start("a").await;
    let handle = third.node.handle();
    sleep(POLLED).await;
    let events = handle.tx_events(id).await.unwrap().unwrap();
    let after_final = |kind: &EventKind| {
        matches!(
            kind,
            EventKind::TxReorged {
                after_final: true,
                ..
            }
        )
    };
    assert!(events.iter().any(|one| after_final(&one.event.kind)));
    pass_blocks(&cluster, 6).await;
    sleep(POLLED).await;
    let record = handle.tx(id).await.unwrap().unwrap();
    assert_eq!(record.tx.state, TxState::Confirmed, "mined once more");
}
