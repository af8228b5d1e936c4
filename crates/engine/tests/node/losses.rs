//! A promotion that lost commits: what they sent is found on the chain and not paid again.

use std::time::Duration;

use domain::lane::AdmittedRequest;
use domain::{Nonce, RequestId, TxId, TxState, U256};
use engine::node::{NewTx, Refusal};
use engine::ports::{QueuedRequest, Store as _, TxRecord};
use sim::chain::ForeignRoute;
use sim::clock::EPOCH;
use uuid::Uuid;

use crate::support::{Cluster, RENEW, TAKEOVER, TestNode, account, lane, sleep, transfer};

/// What the lost request pays.
const LOST: U256 = U256::from_limbs([7, 0, 0, 0]);

pub(crate) fn payment(request_id: &str) -> NewTx {
    let mut request = transfer(1, request_id);
    request.payload.value = LOST;
    request
}

pub(crate) async fn mine_blocks(cluster: &Cluster, count: usize) {
    for _ in 0..count {
        cluster.chain.mine();
        sleep(Duration::from_millis(500)).await;
    }
}

/// A node whose store has lost the commit that accepted and sent the request "lost", which is mined.
async fn after_a_loss(cluster: &Cluster) -> TestNode {
    let keeper = cluster.start_warm("a").await;
    cluster.store.stop_standby();
    let lost = keeper.node.handle().create(payment("lost")).await;
    assert_eq!(lost.unwrap().record.tx.nonce, Some(Nonce(1)));
    sleep(Duration::from_secs(1)).await;
    mine_blocks(cluster, 20).await;
    cluster.store.fail_over();
    sleep(RENEW * 2).await;
    keeper
}

/// The tx of a request, once it has a nonce or needs a decision.
pub(crate) async fn decided(cluster: &Cluster, keeper: &TestNode, request: NewTx) -> TxRecord {
    let id = loop {
        match keeper.node.handle().create(request.clone()).await {
            Ok(accepted) => break accepted.record.tx.id,
            Err(Refusal::Halted(why)) => panic!("{why}"),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    };
    for _ in 0..60 {
        let record = cluster.store.tx(id).await.unwrap().unwrap();
        if record.tx.nonce.is_some() || record.tx.state == TxState::Stuck {
            return record;
        }
        mine_blocks(cluster, 1).await;
    }
    panic!("{id} waits for ever");
}

#[tokio::test(start_paused = true)]
async fn lane_that_lost_commits_refuses_requests_until_the_loss_is_accepted() {
    let cluster = Cluster::new();
    let keeper = after_a_loss(&cluster).await;
    let refused = keeper.node.handle().create(payment("lost")).await;
    let Err(Refusal::Halted(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("lost"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn loss_that_no_node_has_found_is_not_accepted_in_advance() {
    let cluster = Cluster::new();
    let keeper = cluster.start_warm("a").await;
    let handle = keeper.node.handle();
    assert_eq!(handle.accept_loss(lane(1), "early").await, Ok(false));
    cluster.store.stop_standby();
    handle.create(payment("lost")).await.unwrap();
    // The lane leaves the memory of its node, which keeps what it knew of it.
    keeper.script.cut(true);
    sleep(TAKEOVER).await;
    cluster.store.fail_over();
    keeper.script.cut(false);
    assert_eq!(handle.accept_loss(lane(1), "early").await, Ok(false));
    sleep(RENEW * 2).await;
    let refused = handle.create(payment("lost")).await;
    let Err(Refusal::Halted(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        why.contains("among them requests lost "),
        "the request is named: {why}"
    );
}

#[tokio::test(start_paused = true)]
async fn lost_request_that_comes_again_is_held_and_its_equal_is_paid() {
    let cluster = Cluster::new();
    let keeper = after_a_loss(&cluster).await;
    let accepted = keeper.node.handle().accept_loss(lane(1), "counted").await;
    assert_eq!(accepted, Ok(true));
    let held = decided(&cluster, &keeper, payment("lost")).await;
    assert_eq!((held.tx.state, held.tx.nonce), (TxState::Stuck, None));
    let consumer = cluster.chain.mined().pop().expect("it was mined").hash;
    let reason = held.tx.reason.expect("it names the transaction");
    assert!(reason.contains(&consumer.to_string()), "{reason}");
    let equal = decided(&cluster, &keeper, payment("equal")).await;
    assert_eq!(equal.tx.nonce, Some(Nonce(2)), "one to one");
    mine_blocks(&cluster, 3).await;
    let mined = cluster.chain.mined();
    let paid = mined.iter().filter(|tx| tx.envelope.value == LOST);
    assert_eq!(paid.count(), 2, "the lost one and its equal");
}

#[tokio::test(start_paused = true)]
async fn lost_request_is_held_in_a_lane_that_the_backup_does_not_have() {
    let cluster = Cluster::new();
    let keeper = cluster.start("a").await;
    cluster.store.stop_standby();
    let lost = keeper.node.handle().create(payment("lost")).await;
    assert_eq!(lost.unwrap().record.tx.nonce, Some(Nonce(0)));
    sleep(Duration::from_secs(1)).await;
    mine_blocks(&cluster, 20).await;
    keeper.tasks.kill();
    cluster.network.cut("a");
    cluster.store.restore_backup();
    let next = cluster.start("b").await;
    let held = decided(&cluster, &next, payment("lost")).await;
    assert_eq!((held.tx.state, held.tx.nonce), (TxState::Stuck, None));
    let equal = decided(&cluster, &next, payment("equal")).await;
    assert_eq!(equal.tx.nonce, Some(Nonce(1)), "one to one");
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_two_others_contradict_does_not_halt_a_lane_after_a_promotion() {
    let cluster = Cluster::with_endpoints(3);
    let keeper = cluster.start_warm("a").await;
    sleep(Duration::from_secs(1)).await;
    cluster.chain.gossip(|| true);
    cluster.chain.set_producer(1);
    let only_here = ForeignRoute::Pool(0);
    let foreign = cluster
        .chain
        .submit_foreign_tx(account(1), "alone", 2_000_000_000, only_here);
    let foreign = foreign.expect("it is accepted");
    assert_eq!(foreign.envelope.nonce, Nonce(1));
    cluster.store.fail_over();
    sleep(RENEW * 2).await;
    let next = loop {
        match keeper.node.handle().create(payment("next")).await {
            Ok(accepted) => break accepted.record.tx.id,
            Err(Refusal::Halted(why)) => panic!("{why}"),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    };
    for _ in 0..60 {
        // No other endpoint ever sees it, and it is not mined.
        cluster.chain.mine_if(|tx| tx.hash != foreign.hash);
        sleep(Duration::from_millis(500)).await;
    }
    let next = cluster.store.tx(next).await.unwrap().unwrap();
    assert_eq!(next.tx.nonce, Some(Nonce(1)));
}

#[tokio::test(start_paused = true)]
async fn lane_without_any_tx_on_a_used_account_is_not_halted_by_a_restore() {
    let cluster = Cluster::new();
    let past =
        cluster
            .chain
            .submit_foreign_tx(account(1), "past", 2_000_000_000, ForeignRoute::Private);
    assert!(past.is_some());
    cluster.chain.mine();
    let queued = QueuedRequest {
        lane: lane(1),
        request: AdmittedRequest {
            id: TxId(Uuid::from_u128(1)),
            request_id: RequestId::parse("queued").unwrap(),
            fingerprint: payment("queued").payload.fingerprint(),
            payload: payment("queued").payload,
            gas: 21_000,
        },
        at: EPOCH,
    };
    cluster.store.queue_requests(vec![queued]).await.unwrap();
    cluster.store.declare_restore();
    let keeper = cluster.start("a").await;
    let queued = decided(&cluster, &keeper, payment("queued")).await;
    assert_eq!(queued.tx.nonce, Some(Nonce(1)));
}
