//! What each commit outcome does to the lane and to its callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Nonce, U256};
use engine::node::Refusal;
use engine::ports::{CommitOutcome, Conflict, QueuedRequest, Store};
use tokio::sync::Notify;

use crate::support::{Cluster, CommitScript, TAKEOVER, sleep, transfer};

#[tokio::test(start_paused = true)]
async fn fenced_commit_drops_memory_and_forwards_the_callers() {
    let cluster = Cluster::new();
    let deposed = cluster.start_warm("a").await;
    let successor = cluster.start("b").await;
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        cluster.chain.mine(); // the lane is idle from here on
    }
    sleep(TAKEOVER).await;
    // The old keeper does not notice that the other node takes its idle lane over.
    deposed.script.fail_renewals.store(true, Ordering::SeqCst);
    sleep(TAKEOVER).await;
    let taken = successor.node.handle().create(transfer(1, "second")).await;
    assert_eq!(taken.unwrap().record.tx.nonce, Some(Nonce(1)));
    cluster.network.take_forwarded();
    deposed.script.take_calls();

    let accepted = deposed.node.handle().create(transfer(1, "third")).await;

    let tx = accepted.unwrap().record.tx;
    assert_eq!(tx.nonce, Some(Nonce(2)), "memory of the old keeper said 1");
    assert_eq!(deposed.script.take_calls(), ["create", "find", "acquire"]);
    let forwarded = cluster.network.take_forwarded();
    assert!(
        matches!(&forwarded[..], [(from, to, _)] if from == "a" && to == "b"),
        "{forwarded:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn conflict_on_a_request_id_returns_the_original_tx() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let request = transfer(1, "twice");
    // Another node queues the same request: this one's memory does not know it.
    let mut stolen = transfer(1, "other-id");
    stolen.request_id = request.request_id.clone();
    let original = queue_directly(&cluster, &stolen).await;

    let accepted = test_node
        .node
        .handle()
        .create(request.clone())
        .await
        .unwrap();

    assert_eq!(accepted.record.tx.id, original);
    assert!(!accepted.is_new);
    assert_eq!(
        test_node.script.take_calls(),
        ["create", "find"],
        "the conflict costs one commit and a look-up; the lane stays in memory"
    );
    let mut other_payload = request;
    other_payload.payload.value = U256::from(2);
    let refused = test_node.node.handle().create(other_payload).await;
    assert!(matches!(refused, Err(Refusal::KeyReused(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn repeat_leaves_its_turn_and_the_other_requests_are_accepted() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    // While one commit is held, the next requests gather for one turn.
    let wakeup = Arc::new(Notify::new());
    let hold = CommitScript::Hold(Arc::clone(&wakeup));
    test_node.script.script(hold);
    let handle = test_node.node.handle();
    let held = handle.create(transfer(1, "held"));
    let gathered = async {
        sleep(Duration::from_millis(10)).await;
        tokio::join!(
            handle.create(transfer(1, "second")),
            handle.create(transfer(1, "first")),
            handle.create(transfer(1, "third")),
        )
    };
    let release = async {
        sleep(Duration::from_millis(20)).await;
        wakeup.notify_one();
    };

    let (held, (second, first, third), ()) = tokio::join!(held, gathered, release);

    let nonces = [held, first, second, third].map(|accepted| {
        let accepted = accepted.unwrap();
        (accepted.record.tx.nonce, accepted.is_new)
    });
    let new = |nonce| (Some(Nonce(nonce)), true);
    assert_eq!(nonces, [new(1), (Some(Nonce(0)), false), new(2), new(3)]);
    assert_eq!(
        test_node.script.take_calls(),
        ["create", "create", "find", "create"],
        "the lane is not acquired again"
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_conflicts_are_refused_and_the_lane_recovers() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    for _ in 0..4 {
        let conflict = CommitOutcome::Conflict(Conflict::Rows("planted".to_owned()));
        test_node.script.script(CommitScript::Return(conflict));
    }
    let refused = test_node.node.handle().create(transfer(1, "unlucky")).await;
    assert!(matches!(refused, Err(Refusal::StoreUnavailable(_))));
    let accepted = test_node.node.handle().create(transfer(1, "lucky")).await;
    assert_eq!(accepted.unwrap().record.tx.nonce, Some(Nonce(1)));
}

#[tokio::test(start_paused = true)]
async fn batch_that_was_not_applied_refuses_callers_and_keeps_the_cursor() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    let outcome = CommitOutcome::NotApplied("planted".to_owned());
    test_node.script.script(CommitScript::Return(outcome));
    let refused = test_node.node.handle().create(transfer(1, "refused")).await;
    assert!(matches!(refused, Err(Refusal::StoreUnavailable(why)) if why == "planted"));
    assert!(cluster.chain.pool().len() <= 1, "nothing of it was sent");
    let accepted = test_node.node.handle().create(transfer(1, "next")).await;
    assert_eq!(accepted.unwrap().record.tx.nonce, Some(Nonce(1)));
}

#[tokio::test(start_paused = true)]
async fn unknown_commit_that_landed_is_answered_after_the_regrant() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    test_node.script.script(CommitScript::ApplyThenUnknown);
    let accepted = test_node.node.handle().create(transfer(1, "landed")).await;
    let accepted = accepted.unwrap();
    assert!(accepted.is_new);
    assert_eq!(accepted.record.tx.nonce, Some(Nonce(1)));
    let calls = test_node.script.take_calls();
    assert_eq!(calls[..2], ["create", "regrant"], "{calls:?}");
    assert_eq!(calls.iter().filter(|call| **call == "create").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn unknown_commit_that_did_not_land_is_done_again() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    for outcome in [
        CommitOutcome::Unknown("planted".to_owned()),
        CommitOutcome::Locked,
    ] {
        let text = format!("{outcome:?}").replace(['(', ')', '"'], "");
        test_node.script.script(CommitScript::Return(outcome));
        let accepted = test_node.node.handle().create(transfer(1, &text)).await;
        assert!(accepted.unwrap().is_new);
        let calls = test_node.script.take_calls();
        assert_eq!(calls, ["create", "regrant", "acquire", "create"]);
    }
    let last = test_node.node.handle().create(transfer(1, "last")).await;
    assert_eq!(last.unwrap().record.tx.nonce, Some(Nonce(3)));
}

#[tokio::test(start_paused = true)]
async fn callers_of_an_unknown_commit_wait_for_the_regrant_but_not_for_long() {
    let cluster = Cluster::new();
    let test_node = cluster.start_warm("a").await;
    test_node.script.script(CommitScript::ApplyThenUnknown);
    test_node.script.hold_regrants.store(true, Ordering::SeqCst);
    let handle = test_node.node.handle();
    let mut call = Box::pin(handle.create(transfer(1, "unknown")));
    tokio::select! {
        answer = &mut call => panic!("answered without proof: {answer:?}"),
        () = sleep(Duration::from_millis(1_500)) => {}
    }
    let answer = call.await;
    assert!(matches!(answer, Err(Refusal::OutcomeUnknown)), "{answer:?}");
    test_node
        .script
        .hold_regrants
        .store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(1)).await;
    let repeated = handle.create(transfer(1, "unknown")).await.unwrap();
    assert!(!repeated.is_new, "it had landed");
}

/// Puts a request into the store's queue, as a node does that does not keep the lane.
async fn queue_directly(cluster: &Cluster, request: &engine::node::NewTx) -> domain::TxId {
    let queued = QueuedRequest {
        lane: request.lane,
        request: domain::lane::AdmittedRequest {
            id: domain::TxId(uuid::Uuid::from_u128(99)),
            request_id: request.request_id.clone(),
            fingerprint: request.payload.fingerprint(),
            payload: request.payload.clone(),
            gas: 21_000,
        },
        at: domain::Timestamp(1),
    };
    let stored = cluster.store.queue_requests(vec![queued]).await.unwrap();
    stored[0].id
}
