//! Answers that are lost, a database that is away, and a pooler in the middle.

use std::time::{Duration, Instant};

use domain::{Incarnation, NodeName, Timestamp};
use engine::ports::{
    CommitOutcome, EventFilter, HeartbeatOutcome, Member, RegrantOutcome, RenewOutcome, Store as _,
    StoreError,
};
use rig::pgbouncer::PgBouncer;
use rig::postgres::{Postgres, majors, shared};
use rig::proxy::{AfterLoss, TcpProxy};
use store::postgres::migrate;
use uuid::Uuid;

use crate::kit::{
    LEASE, World, accept, commit, grant, keeper, lane, node, open, queued, wait_until,
};

const CALL: &str = "SELECT lanekeeper_gate";

#[tokio::test]
async fn lost_answer_is_unknown_until_the_regrant() {
    let short = Duration::from_secs(2);
    let database = shared(majors()[0]).database("lost");
    migrate(database.url(), None, short).await.expect("migrate");
    let proxy = TcpProxy::in_front_of(database.server().port());
    let store = open(&database.url_through(proxy.port()), short).await;
    let mut keeper = keeper(&*store, &node("a"), lane(1)).await;
    for (n, lose) in ["cut", "silence", "request", "none"]
        .into_iter()
        .enumerate()
    {
        match lose {
            "cut" => proxy.lose_answer_to(CALL, AfterLoss::Cut),
            "silence" => proxy.lose_answer_to(CALL, AfterLoss::Silence),
            "request" => proxy.lose_request(CALL),
            _ => {}
        }
        let batch = accept(&keeper, 1);
        let began = Instant::now();
        let outcome = commit(&*store, &batch).await;
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{lose}: {:?}",
            began.elapsed()
        );
        if lose == "none" {
            assert_eq!(outcome, CommitOutcome::Applied);
            break;
        }
        assert!(
            matches!(outcome, CommitOutcome::Unknown(_)),
            "{lose}: {outcome:?}"
        );
        assert_eq!(proxy.lost(), n as u64 + 1);
        let regranted = store
            .regrant(keeper.lease_grant, grant())
            .await
            .expect("regrant");
        let RegrantOutcome::Held {
            lease_grant,
            batch_seq,
        } = regranted
        else {
            panic!("{lose}: {regranted:?}")
        };
        keeper.lease_grant = lease_grant;
        let landed = batch_seq == batch.batch_seq_before + 1;
        assert_eq!(landed, lose != "request", "{lose}");
        if landed {
            keeper.follow(&batch);
        }
    }
    let txs = database.query_value("SELECT count(*) FROM managed_tx");
    assert_eq!(txs.as_deref(), Some("3"), "none doubled, none lost");
}

#[tokio::test]
async fn unavailable_database_fails_fast_and_recovers() {
    let postgres = Postgres::start(majors()[0]);
    let database = postgres.database("away");
    migrate(database.url(), None, LEASE).await.expect("migrate");
    let store = open(database.url(), LEASE).await;
    let mut keeper = keeper(&*store, &node("a"), lane(1)).await;
    let first = accept(&keeper, 1);
    assert_eq!(commit(&*store, &first).await, CommitOutcome::Applied);
    keeper.follow(&first);

    postgres.kill();
    let batch = accept(&keeper, 1);
    let began = Instant::now();
    let outcome = commit(&*store, &batch).await;
    // The pool's connection broke under the call, or before it.
    let is_reported = matches!(
        outcome,
        CommitOutcome::NotApplied(_) | CommitOutcome::Unknown(_)
    );
    assert!(is_reported, "{outcome:?}");
    let outcome = commit(&*store, &batch).await;
    assert!(
        matches!(outcome, CommitOutcome::NotApplied(_)),
        "{outcome:?}"
    );
    let read = store.tx(first.writes.inserts[0].id).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );

    postgres.start_again();
    let found = store.tx(first.writes.inserts[0].id).await.expect("read");
    assert!(found.is_some());
    assert_eq!(commit(&*store, &batch).await, CommitOutcome::Applied);
}

#[tokio::test]
async fn frozen_network_does_not_block_callers() {
    let database = shared(majors()[0]).database("frozen");
    let short = Duration::from_secs(2);
    migrate(database.url(), None, short).await.expect("migrate");
    let proxy = TcpProxy::in_front_of(database.server().port());
    let store = open(&database.url_through(proxy.port()), short).await;
    let keeper = keeper(&*store, &node("a"), lane(1)).await;
    proxy.freeze();
    let began = Instant::now();
    let outcome = commit(&*store, &accept(&keeper, 1)).await;
    assert!(matches!(outcome, CommitOutcome::Unknown(_)), "{outcome:?}");
    let again = store.regrant(keeper.lease_grant, grant()).await;
    assert!(
        matches!(again, Err(StoreError::Unavailable(_))),
        "{again:?}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    proxy.heal();
    let regranted = store
        .regrant(keeper.lease_grant, grant())
        .await
        .expect("regrant");
    assert!(matches!(regranted, RegrantOutcome::Held { .. }));
}

#[tokio::test]
async fn commit_without_standby_confirmation_is_unknown() {
    let postgres = Postgres::start(majors()[0]);
    let world = World::on(postgres.database("sync")).await;
    let keeper = keeper(&*world.store, &node("a"), lane(1)).await;
    let standby = postgres.standby(true);
    standby.kill();
    let (store, batch) = (world.store.clone(), accept(&keeper, 1));
    let gate = tokio::spawn(async move { commit(&*store, &batch).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until("a commit waits for the standby", || {
        world.count(waiting) == 1
    })
    .await;
    // The wait for the standby is cancelled: the server commits, and only warns.
    world
        .database
        .exec("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    let outcome = gate.await.expect("it ran");
    let CommitOutcome::Unknown(text) = &outcome else {
        panic!("{outcome:?}")
    };
    assert!(text.contains("synchronous replication"), "{text}");
    // Or nothing could be taken down.
    postgres.config(&[("synchronous_standby_names", "")]);
}

#[tokio::test]
async fn store_works_through_a_pooler_in_transaction_mode() {
    let database = shared(majors()[0]).database("pooler");
    migrate(database.url(), None, LEASE).await.expect("migrate");
    let pooler = PgBouncer::in_front_of(database.server(), 3);
    let store = open(&database.url_through(pooler.port()), LEASE).await;
    let lease_request = node("a");
    let mut keeper = keeper(&*store, &lease_request, lane(1)).await;
    for _ in 0..50 {
        let batch = accept(&keeper, 2);
        assert_eq!(commit(&*store, &batch).await, CommitOutcome::Applied);
        keeper.follow(&batch);
        store
            .extend_feed(&[keeper.lease_grant.lane])
            .await
            .expect("feed");
    }
    store
        .queue_requests(vec![queued(lane(1), "one"), queued(lane(9), "two")])
        .await
        .expect("queue");
    let renewed = store
        .renew(&lease_request, &[keeper.lease_grant])
        .await
        .expect("renew");
    assert_eq!(renewed, [RenewOutcome::Renewed]);
    let member = Member {
        node: NodeName("a".into()),
        incarnation: Incarnation(Uuid::from_u128(1)),
        advertise: None,
        started_at: Timestamp(1),
        seen_at: Timestamp(1),
        heartbeats: 0,
        draining: false,
    };
    let beat = store.heartbeat(&member).await.expect("heartbeat");
    assert!(matches!(beat, HeartbeatOutcome::Recorded { .. }));
    let filter = EventFilter {
        limit: 500,
        ..EventFilter::default()
    };
    let events = store.events(&filter).await.expect("events");
    assert_eq!(events.events.len(), 100);
    assert_eq!(
        store
            .lanes_with_work(&lease_request)
            .await
            .expect("work")
            .len(),
        2
    );
    let regranted = store
        .regrant(keeper.lease_grant, grant())
        .await
        .expect("regrant");
    let RegrantOutcome::Held {
        lease_grant,
        batch_seq,
    } = regranted
    else {
        panic!("{regranted:?}")
    };
    assert_eq!(batch_seq, 50);
    let image = store.load(keeper.key, lease_grant, 64).await.expect("load");
    let image = image.expect("the right holds");
    assert_eq!((image.in_flight.len(), image.open.queued), (100, 1));
    store
        .release(&lease_request, &[lease_grant])
        .await
        .expect("release");
}

#[tokio::test]
async fn warning_at_login_does_not_affect_the_first_commit() {
    let with_login_triggers = majors().into_iter().find(|major| *major >= 17);
    let Some(major) = with_login_triggers else {
        return; // only newer servers can be made to warn at login
    };
    let world = World::on(shared(major).database("login")).await;
    world.database.exec(
        "CREATE FUNCTION warn() RETURNS event_trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE WARNING 'welcome'; END $$; \
         CREATE EVENT TRIGGER welcome ON login EXECUTE FUNCTION warn()",
    );
    let store = open(world.database.url(), LEASE).await;
    let keeper = keeper(&*store, &node("a"), lane(1)).await;
    let outcome = commit(&*store, &accept(&keeper, 1)).await;
    assert_eq!(outcome, CommitOutcome::Applied);
}
