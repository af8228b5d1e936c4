//! Which history a lane was last settled under: after a failover its last commits may be gone.

use engine::ports::{AcquireOutcome, StoreError};

use super::Backend;
use super::kit::{Kit, LEASE, SKEW, lane, node};

pub async fn in_one_history_every_lane_is_settled(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    assert!(is_reconciled(&kit, "a", 1).await, "a lane nobody held");
    assert!(is_reconciled(&kit, "a", 1).await, "its keeper asks again");
    backend.advance(LEASE + SKEW).await;
    assert!(is_reconciled(&kit, "b", 1).await, "another takes it");
    kit.store
        .queue(vec![kit.new_queued(lane(2), "r1")])
        .await
        .expect("queue");
    assert!(
        is_reconciled(&kit, "b", 2).await,
        "made by a queued request"
    );
}

pub async fn in_another_history_a_lane_is_settled_once_its_keeper_says_so(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 1).await;
    kit.keeper(&node("a"), lane(2)).await;
    if !backend.forget_history().await {
        return; // this store has but one
    }
    let stale = keeper.lease_grant;
    assert!(!is_reconciled(&kit, "a", 1).await);
    kit.store.mark_reconciled(stale).await.expect("settle");
    assert!(!is_reconciled(&kit, "a", 1).await, "that right was over");
    assert!(!is_reconciled(&kit, "a", 2).await);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    for _ in 0..2 {
        kit.store
            .mark_reconciled(keeper.lease_grant)
            .await
            .expect("settle");
        assert_eq!(
            kit.image(lane(1), keeper.lease_grant).await.batch_seq,
            1,
            "the lane itself is as it was"
        );
    }
    assert!(is_reconciled(&kit, "a", 1).await);
    assert!(!is_reconciled(&kit, "a", 2).await, "each lane by itself");
    backend.advance(LEASE + SKEW).await;
    assert!(is_reconciled(&kit, "b", 1).await, "for whoever comes next");
}

pub async fn a_lane_that_a_queued_request_made_is_not_settled_in_another_history(
    backend: &dyn Backend,
) {
    let kit = Kit::new(backend);
    kit.store
        .queue(vec![kit.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    if !backend.forget_history().await {
        return; // this store has but one
    }
    let refused = kit.store.queue(vec![kit.new_queued(lane(1), "r2")]).await;
    assert!(
        matches!(refused, Err(StoreError::Unsettled(_))),
        "to be repeated, unlike where a lane is halted: {refused:?}"
    );
    // A grant that the failover took back may have sent it already.
    assert!(!is_reconciled(&kit, "a", 1).await);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.store
        .mark_reconciled(keeper.lease_grant)
        .await
        .expect("settle");
    let repeated = vec![kit.new_queued(lane(1), "r2")];
    kit.store.queue(repeated).await.expect("queue");
}

pub async fn a_halted_lane_is_nobodys_until_an_operator_accepts_the_loss(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 1).await;
    let stale = keeper.lease_grant;
    kit.keeper(&node("a"), lane(1)).await;
    assert!(!kit.store.halt(stale, "an old right").await.expect("halt"));
    assert!(is_reconciled(&kit, "a", 1).await, "that right was over");
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let reason = "three commits are gone";
    assert!(
        kit.store
            .halt(keeper.lease_grant, reason)
            .await
            .expect("halt")
    );
    for name in ["a", "b"] {
        let answer = kit.acquire(&node(name), lane(1)).await;
        assert_eq!(
            answer,
            AcquireOutcome::Halted("three commits are gone".into())
        );
    }
    let queued = vec![kit.new_queued(lane(1), "r9")];
    let refused = kit.store.queue(queued.clone()).await;
    assert_eq!(
        refused,
        Err(StoreError::Halted("three commits are gone".into()))
    );
    let work = kit.store.lanes_with_work(&node("b")).await.expect("work");
    assert_eq!(work, [], "nobody is to take care of it");
    let shown = kit.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!(shown[0].halted.as_deref(), Some("three commits are gone"));
    assert!(kit.store.accept_loss(lane(1)).await.expect("accept"));
    assert!(!kit.store.accept_loss(lane(1)).await.expect("accept"));
    assert!(is_reconciled(&kit, "b", 1).await);
    kit.store.queue(queued).await.expect("queue");
}

async fn is_reconciled(kit: &Kit, name: &str, signer: u8) -> bool {
    match kit.acquire(&node(name), lane(signer)).await {
        AcquireOutcome::Granted { is_reconciled, .. } => is_reconciled,
        refused @ (AcquireOutcome::NotKeeper { .. }
        | AcquireOutcome::Halted(_)
        | AcquireOutcome::Busy) => {
            panic!("{refused:?}")
        }
    }
}
