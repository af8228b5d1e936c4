//! Reconciliation after a failover: whether a lane was reconciled on the store's present history.

use domain::{Nonce, Writes};
use engine::ports::{ACCEPTED_LOSS_GAP, AcquireOutcome, CommitOutcome, StoreError};

use crate::Backend;
use crate::fixture::{Fixture, LEASE, SKEW, lane, node};

pub async fn without_failover_every_lane_is_reconciled(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    assert!(is_reconciled(&fixture, "a", 1).await, "a new lane");
    assert!(
        is_reconciled(&fixture, "a", 1).await,
        "its keeper reacquires it"
    );
    backend.advance(LEASE + SKEW).await;
    assert!(
        is_reconciled(&fixture, "b", 1).await,
        "another node takes it over"
    );
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(2), "r1")])
        .await
        .expect("queue");
    assert!(
        is_reconciled(&fixture, "b", 2).await,
        "made by a queued request"
    );
}

pub async fn after_failover_a_lane_is_unreconciled_until_marked(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    fixture.keeper(&node("a"), lane(2)).await;
    let before = fixture.history().await;
    backend.change_history().await;
    let history = fixture.history().await;
    assert_ne!(history, before);
    let stale = keeper.lease_grant;
    assert!(!is_reconciled(&fixture, "a", 1).await);
    let marked = fixture.store.mark_reconciled(stale, history).await;
    assert_eq!(marked, Ok(false));
    assert!(
        !is_reconciled(&fixture, "a", 1).await,
        "that grant is stale"
    );
    assert!(!is_reconciled(&fixture, "a", 2).await);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    for _ in 0..2 {
        let grant = keeper.lease_grant;
        let marked = fixture.store.mark_reconciled(grant, history).await;
        assert_eq!(marked, Ok(true));
        assert_eq!(
            fixture.image(lane(1), keeper.lease_grant).await.batch_seq,
            1,
            "the lane itself is as it was"
        );
    }
    assert!(is_reconciled(&fixture, "a", 1).await);
    assert!(
        !is_reconciled(&fixture, "a", 2).await,
        "each lane by itself"
    );
    backend.advance(LEASE + SKEW).await;
    assert!(is_reconciled(&fixture, "b", 1).await, "for the next keeper");
}

pub async fn lane_made_by_queueing_is_unreconciled_after_failover(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await
        .expect("queue");
    backend.change_history().await;
    let history = fixture.history().await;
    let refused = fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r2")])
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unreconciled(_))),
        "retryable, unlike the refusal of a halted lane: {refused:?}"
    );
    // A grant that the failover lost may have sent it already.
    assert!(!is_reconciled(&fixture, "a", 1).await);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, history);
    assert_eq!(marked.await, Ok(true));
    let repeated = vec![fixture.new_queued(lane(1), "r2")];
    fixture.store.queue_requests(repeated).await.expect("queue");
}

pub async fn lane_that_is_first_used_after_failover_is_unreconciled(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    backend.change_history().await;
    // It may be missing because its creation was lost, with all that it has sent.
    assert!(!is_reconciled(&fixture, "a", 1).await);
    let queued = [2, 2, 3].map(lane).into_iter().zip(["r1", "r2", "r1"]);
    let queued: Vec<_> = queued
        .map(|(lane, request)| fixture.new_queued(lane, request))
        .collect();
    let txs = fixture.store.queue_requests(queued).await.expect("queue");
    assert_eq!(txs.len(), 3, "so that a keeper finds the lanes");
    for signer in [2, 3] {
        assert!(!is_reconciled(&fixture, "a", signer).await);
    }
    let history = fixture.history().await;
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, history);
    assert_eq!(marked.await, Ok(true));
    assert!(is_reconciled(&fixture, "a", 1).await);
}

pub async fn suspected_loss_makes_every_lane_unreconciled_once(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    fixture.keeper(&node("a"), lane(2)).await;
    let before = fixture.history().await;
    let present = fixture.store.suspect_loss(before).await;
    let present = present.expect("suspect_loss");
    assert!(present.is_later_than(before));
    assert_eq!(fixture.history().await, present);
    // Another node has found the same, or a response was lost.
    assert_eq!(fixture.store.suspect_loss(before).await, Ok(present));
    let late = fixture.store.mark_reconciled(keeper.lease_grant, before);
    assert_eq!(late.await, Ok(false));
    fixture.accept(&mut keeper, 1).await;
    for signer in [1, 2] {
        assert!(!is_reconciled(&fixture, "a", signer).await);
    }
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    assert_eq!(keeper.batch_seq, 2, "the lane itself is as it was");
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, present);
    assert_eq!(marked.await, Ok(true));
    assert_eq!(fixture.store.suspect_loss(before).await, Ok(present));
    assert!(is_reconciled(&fixture, "a", 1).await, "once per finding");
}

pub async fn mark_under_a_history_that_changed_again_writes_nothing(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    backend.change_history().await;
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let compared = fixture.history().await;
    backend.change_history().await;
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, compared);
    assert_eq!(marked.await, Ok(false));
    assert!(!is_reconciled(&fixture, "a", 1).await);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let present = fixture.history().await;
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, present);
    assert_eq!(marked.await, Ok(true));
    assert!(is_reconciled(&fixture, "a", 1).await);
}

pub async fn halted_lane_is_not_granted_until_the_loss_is_accepted(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    let stale = keeper.lease_grant;
    fixture.keeper(&node("a"), lane(1)).await;
    assert!(
        !fixture
            .store
            .halt(stale, "a stale grant")
            .await
            .expect("halt")
    );
    assert!(is_reconciled(&fixture, "a", 1).await, "that grant is stale");
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let reason = "three commits are gone";
    assert!(
        fixture
            .store
            .halt(keeper.lease_grant, reason)
            .await
            .expect("halt")
    );
    for name in ["a", "b"] {
        let answer = fixture.acquire(&node(name), lane(1)).await;
        assert_eq!(
            answer,
            AcquireOutcome::Halted("three commits are gone".into())
        );
    }
    let queued = vec![fixture.new_queued(lane(1), "r9")];
    let refused = fixture.store.queue_requests(queued.clone()).await;
    assert_eq!(
        refused,
        Err(StoreError::Halted("three commits are gone".into()))
    );
    let work = fixture
        .store
        .lanes_with_work(&node("b"))
        .await
        .expect("work");
    assert_eq!(work, [], "it is not offered to any node");
    let shown = fixture.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!(shown[0].halted.as_deref(), Some("three commits are gone"));
    assert!(fixture.store.accept_loss(lane(1)).await.expect("accept"));
    assert!(!fixture.store.accept_loss(lane(1)).await.expect("accept"));
    // What the lost commits have sent is still to be found.
    assert!(!is_reconciled(&fixture, "b", 1).await);
    assert!(is_loss_accepted(&fixture, "b", 1).await);
    let refused = fixture.store.queue_requests(queued.clone()).await;
    assert!(
        matches!(refused, Err(StoreError::Unreconciled(_))),
        "{refused:?}"
    );
    let keeper = fixture.keeper(&node("b"), lane(1)).await;
    let history = fixture.history().await;
    let marked = fixture.store.mark_reconciled(keeper.lease_grant, history);
    assert_eq!(marked.await, Ok(true));
    assert!(is_reconciled(&fixture, "b", 1).await);
    fixture.store.queue_requests(queued).await.expect("queue");
    assert!(
        !is_loss_accepted(&fixture, "b", 1).await,
        "that loss is over"
    );
}

pub async fn accepted_loss_does_not_cover_the_next_history(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let halted = fixture.store.halt(keeper.lease_grant, "commits are gone");
    assert_eq!(halted.await, Ok(true));
    assert_eq!(fixture.store.accept_loss(lane(1)).await, Ok(true));
    backend.change_history().await;
    assert!(!is_reconciled(&fixture, "a", 1).await);
    assert!(!is_loss_accepted(&fixture, "a", 1).await);
}

async fn is_loss_accepted(fixture: &Fixture, name: &str, signer: u8) -> bool {
    let granted = fixture.acquire(&node(name), lane(signer)).await;
    matches!(
        granted,
        AcquireOutcome::Granted {
            is_loss_accepted: true,
            ..
        }
    )
}

pub async fn lane_with_fewer_commits_than_seen_is_halted_and_its_keeper_fenced(
    backend: &dyn Backend,
) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    let halt = async |batch_seq: u64| {
        let grant = fixture.grant();
        let halting = fixture
            .store
            .halt_lost_lane(lane(1), batch_seq, grant, "behind");
        halting.await.expect("halt_lost_lane")
    };
    assert!(!halt(1).await, "the store has as many");
    fixture.accept(&mut keeper, 1).await;
    assert!(halt(3).await, "one is missing");
    assert!(!halt(3).await, "it is halted already");
    let late = fixture.batch(&keeper, Writes::default());
    let outcomes = fixture.store.commit(vec![late.into()]).await;
    assert_eq!(outcomes, [CommitOutcome::Fenced]);
    let answer = fixture.acquire(&node("b"), lane(1)).await;
    assert_eq!(answer, AcquireOutcome::Halted("behind".into()));
    let shown = fixture.store.lanes(&[lane(1)]).await.expect("lanes");
    assert_eq!(shown[0].batch_seq, 2);

    assert!(fixture.store.accept_loss(lane(1)).await.expect("accept"));
    assert!(!halt(3).await, "what was lost is accepted, by every node");
    let next = fixture.keeper(&node("b"), lane(1)).await;
    let image = fixture.image(lane(1), next.lease_grant).await;
    assert_eq!(image.batch_seq, 2 + ACCEPTED_LOSS_GAP);
}

pub async fn lane_that_is_missing_is_halted_where_commits_were_seen(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let halting = fixture
        .store
        .halt_lost_lane(lane(1), 1, fixture.grant(), "all of it is gone");
    assert_eq!(halting.await, Ok(true));
    let answer = fixture.acquire(&node("a"), lane(1)).await;
    assert_eq!(answer, AcquireOutcome::Halted("all of it is gone".into()));
    assert!(fixture.store.accept_loss(lane(1)).await.expect("accept"));
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let image = fixture.image(lane(1), keeper.lease_grant).await;
    assert_eq!(
        (image.next_nonce, image.batch_seq),
        (Nonce(0), ACCEPTED_LOSS_GAP)
    );
}

async fn is_reconciled(fixture: &Fixture, name: &str, signer: u8) -> bool {
    match fixture.acquire(&node(name), lane(signer)).await {
        AcquireOutcome::Granted { is_reconciled, .. } => is_reconciled,
        refused @ (AcquireOutcome::NotKeeper { .. }
        | AcquireOutcome::Halted(_)
        | AcquireOutcome::Busy) => {
            panic!("{refused:?}")
        }
    }
}
