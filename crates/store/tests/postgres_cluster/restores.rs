//! A declared restore, while nodes are running.

use domain::Timestamp;
use engine::ports::{
    AcquireOutcome, CommitOutcome, EventFilter, HeartbeatOutcome, Member, Store as _, StoreError,
};
use store::postgres::declare_restore;

use crate::kit::{LEASE, World, accept, commit, grant, keeper, lane, node, queued};

#[tokio::test]
async fn declared_restore_fences_keepers_and_refuses_old_cursors() {
    let world = World::new().await;
    let mut keeper = keeper(&*world.store, &node("a"), lane(1)).await;
    let batch = accept(&keeper, 1);
    assert_eq!(commit(&*world.store, &batch).await, CommitOutcome::Applied);
    keeper.follow(&batch);
    world.store.extend_feed(&[]).await.expect("sweep");
    let all = EventFilter {
        limit: 100,
        ..EventFilter::default()
    };
    let before = world.store.events(&all).await.expect("events");

    let url = world.database.url();
    let mut histories = Vec::new();
    for _ in 0..2 {
        let declared = declare_restore(url, "a disk was lost", LEASE).await;
        histories.push(declared.expect("declared"));
    }
    assert_ne!(histories[0], histories[1], "each is another history");
    let late = commit(&*world.store, &accept(&keeper, 1)).await;
    assert_eq!(late, CommitOutcome::Fenced);
    let refused = world.store.queue_requests(vec![queued(lane(1), "late")]);
    let refused = refused.await.map(drop);
    assert!(
        matches!(refused, Err(StoreError::Unreconciled(_))),
        "{refused:?}"
    );

    assert_eq!(heartbeat(&world).await, histories[1]);
    let old = EventFilter {
        after: Some(before.next),
        ..all.clone()
    };
    let refused = world.store.events(&old).await.map(drop);
    assert!(
        matches!(refused, Err(StoreError::Invalid(_))),
        "{refused:?}"
    );
    assert!(world.store.events(&all).await.is_ok(), "from the beginning");

    let requested = [(lane(1), grant())];
    let answers = world.store.acquire(&node("b"), &requested).await;
    let answers = answers.expect("acquire");
    assert!(
        matches!(
            &answers[..],
            [AcquireOutcome::Granted {
                is_reconciled: false,
                ..
            }]
        ),
        "no lease holds any more: {answers:?}"
    );
    let reasons = "SELECT count(*) FROM store_restore WHERE reason = 'a disk was lost'";
    assert_eq!(world.count(reasons), 2);
}

/// The history that a heartbeat of node `a` returns.
async fn heartbeat(world: &World) -> String {
    let member = Member {
        node: node("a").node,
        incarnation: node("a").incarnation,
        advertise: None,
        started_at: Timestamp(1),
        seen_at: Timestamp(1),
        heartbeats: 0,
        draining: false,
    };
    match world.store.heartbeat(&member).await {
        Ok(HeartbeatOutcome::Recorded { history, .. }) => history.to_string(),
        other => panic!("{other:?}"),
    }
}
