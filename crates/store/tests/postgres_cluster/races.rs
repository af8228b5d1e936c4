//! Concurrent connections: a third one holds a row lock or an open transaction, and releases it on command.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::TxId;
use engine::ports::{
    AcquireOutcome, CommitOutcome, Conflict, EventFilter, RegrantOutcome, RenewOutcome, Store as _,
};
use store::postgres::sql;

use crate::kit::{
    World, accept, commit, grant, keeper, keepers, lane, node, queued, token, wait_until_blocked,
};

#[tokio::test]
async fn hundred_lanes_with_one_tx_each_are_one_transaction() {
    let world = World::new().await;
    let lanes: Vec<_> = (1..=100).map(lane).collect();
    let keepers = keepers(&*world.store, &node("a"), &lanes).await;
    let batches = keepers.iter().map(|keeper| accept(keeper, 1).into());
    let outcomes = world.store.commit(batches.collect()).await;
    assert!(outcomes.iter().all(|o| *o == CommitOutcome::Applied));
    let count = |what| world.count(&format!("SELECT count({what}) FROM managed_tx"));
    assert_eq!((count("*"), count("DISTINCT xmin::text")), (100, 1));
}

#[tokio::test]
async fn only_fenced_locked_and_conflicting_lanes_are_not_applied() {
    let world = World::new().await;
    let lanes: Vec<_> = (1..=100).map(lane).collect();
    let mut keepers = keepers(&*world.store, &node("a"), &lanes).await;
    let taken = accept(&keepers[30], 1);
    assert_eq!(commit(&*world.store, &taken).await, CommitOutcome::Applied);
    keepers[30].follow(&taken);
    keepers[10].lease_grant.token = token(7);

    let mut batches: Vec<_> = keepers.iter().map(|keeper| accept(keeper, 2)).collect();
    let key = taken.writes.inserts[0].request.request_id.clone();
    batches[30].writes.inserts[1].request.request_id = key.clone();
    let locker = world.client().await;
    let locked = format!(
        "BEGIN; SELECT FROM signer_nonce_cursor WHERE lane_id = {} FOR UPDATE",
        keepers[20].lease_grant.lane.0
    );
    locker.batch_execute(&locked).await.expect("lock");

    let began = Instant::now();
    let outcomes = world
        .store
        .commit(batches.iter().cloned().map(Arc::new).collect())
        .await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    for (n, outcome) in outcomes.iter().enumerate() {
        match n {
            10 => assert_eq!(*outcome, CommitOutcome::Fenced),
            20 => assert_eq!(*outcome, CommitOutcome::Locked),
            30 => {
                let expected = Conflict::RequestId(key.clone());
                assert_eq!(*outcome, CommitOutcome::Conflict(expected));
            }
            _ => assert_eq!(*outcome, CommitOutcome::Applied, "lane {n}"),
        }
    }
    let txs = "SELECT count(*) FROM managed_tx";
    assert_eq!(world.count(txs), 97 * 2 + 1, "nothing slipped in");
    let events = "SELECT sum(count) FROM lane_event";
    assert_eq!(world.count(events), 97 * 2 + 1);

    locker.batch_execute("ROLLBACK").await.expect("unlock");
    let again = commit(&*world.store, &batches[20]).await;
    assert_eq!(again, CommitOutcome::Applied, "it was only locked");
}

#[tokio::test]
async fn locked_lane_delays_neither_renewals_nor_other_lanes() {
    let world = World::new().await;
    let lease_request = node("a");
    let keepers = keepers(&*world.store, &lease_request, &[lane(1), lane(2)]).await;
    let locker = world.client().await;
    let both_rows = "BEGIN; SELECT FROM signer_lease WHERE lane_id = 1 FOR UPDATE; \
                     SELECT FROM signer_nonce_cursor WHERE lane_id = 1 FOR UPDATE";
    locker.batch_execute(both_rows).await.expect("lock");
    let began = Instant::now();
    let lease_grants: Vec<_> = keepers.iter().map(|keeper| keeper.lease_grant).collect();
    let renewed = world
        .store
        .renew(&lease_request, &lease_grants)
        .await
        .expect("renew");
    assert_eq!(renewed, [RenewOutcome::Busy, RenewOutcome::Renewed]);
    let requested = [(lane(1), grant()), (lane(2), grant())];
    let answers = world
        .store
        .acquire(&lease_request, &requested)
        .await
        .expect("acquire");
    assert_eq!(answers[0], AcquireOutcome::Busy);
    let AcquireOutcome::Granted { lease_grant, .. } = answers[1] else {
        panic!("{answers:?}");
    };
    assert!(
        began.elapsed() < Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );

    // Giving back waits for the locked one, but not with the others.
    let lease_grants = [lease_grants[0], lease_grant];
    let released = world.store.release(&lease_request, &lease_grants).await;
    assert!(released.is_err(), "{released:?}");
    let left = "SELECT expires_at FROM signer_lease WHERE lane_id = 2";
    assert_eq!(world.count(left), 0);
}

/// A takeover of the first lane, up to its commit.
async fn take(thief: &tokio_postgres::Client, by: &str) {
    let both_rows = format!(
        "BEGIN; UPDATE signer_lease SET token = token + 1, owner = '{by}', expires_at = lanekeeper_now() + 10000 \
           WHERE lane_id = 1; \
         UPDATE signer_nonce_cursor SET fencing_token = fencing_token + 1, \
           grant_id = gen_random_uuid() WHERE lane_id = 1"
    );
    thief.batch_execute(&both_rows).await.expect("take over");
}

#[tokio::test]
async fn gate_does_not_wait_for_a_takeover_and_regrant_decides() {
    for commits in [true, false] {
        let world = World::new().await;
        let old = keeper(&*world.store, &node("a"), lane(1)).await;
        world
            .database
            .exec("UPDATE signer_lease SET expires_at = 1");
        let thief = world.client().await;
        take(&thief, "b").await;

        let batch = accept(&old, 3);
        let outcome = commit(&*world.store, &batch).await;
        assert_eq!(outcome, CommitOutcome::Locked, "while it is under way");
        let (store, lease_grant) = (world.store.clone(), old.lease_grant);
        let regrant = tokio::spawn(async move { store.regrant(lease_grant, grant()).await });
        wait_until_blocked(&world).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        thief.batch_execute(end).await.expect("end");
        match regrant.await.expect("it ran").expect("an answer") {
            RegrantOutcome::Fenced => assert!(commits),
            RegrantOutcome::Held { batch_seq, .. } => assert_eq!((commits, batch_seq), (false, 0)),
        }
        let outcome = commit(&*world.store, &batch).await;
        assert_eq!(outcome, CommitOutcome::Fenced, "with the old grant");
        assert_eq!(world.count("SELECT count(*) FROM managed_tx"), 0);
    }
}

#[tokio::test]
async fn regrant_waits_for_the_open_batch_and_returns_its_outcome() {
    for commits in [true, false] {
        let world = World::new().await;
        let keeper = keeper(&*world.store, &node("a"), lane(1)).await;
        let batch = accept(&keeper, 2);
        let lost = world.client().await;
        lost.batch_execute("BEGIN").await.expect("begin");
        let arguments = sql::Arguments::of([&batch].into_iter());
        lost.query_typed(sql::GATE, &arguments.params())
            .await
            .expect("gate");

        let renewed = grant();
        let early = world.store.regrant(keeper.lease_grant, renewed).await;
        assert!(early.is_err(), "it waits for the lane row: {early:?}");
        let store = world.store.clone();
        let again = tokio::spawn(async move { store.regrant(keeper.lease_grant, renewed).await });
        wait_until_blocked(&world).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        lost.batch_execute(end).await.expect("end");
        let regranted = again.await.expect("it ran").expect("regrant");
        let RegrantOutcome::Held {
            lease_grant,
            batch_seq,
        } = regranted
        else {
            panic!("{regranted:?}")
        };
        assert_eq!(
            (lease_grant.grant, batch_seq),
            (renewed, u64::from(commits))
        );
        let old = commit(&*world.store, &batch).await;
        assert_eq!(old, CommitOutcome::Fenced, "under the old grant");
        let txs = world.count("SELECT count(*) FROM managed_tx");
        assert_eq!(txs, if commits { 2 } else { 0 });
    }
}

#[tokio::test]
async fn takeover_skips_a_lane_with_an_open_batch() {
    let world = World::new().await;
    let old = keepers(&*world.store, &node("a"), &[lane(1), lane(2)]).await;
    world
        .database
        .exec("UPDATE signer_lease SET expires_at = 1");
    let batch = accept(&old[0], 1);
    let open = world.client().await;
    open.batch_execute("BEGIN").await.expect("begin");
    let arguments = sql::Arguments::of([&batch].into_iter());
    open.query_typed(sql::GATE, &arguments.params())
        .await
        .expect("gate");
    let requested = [(lane(1), grant()), (lane(2), grant())];
    let answers = world
        .store
        .acquire(&node("b"), &requested)
        .await
        .expect("acquire");
    assert_eq!(answers[0], AcquireOutcome::Busy);
    assert!(matches!(answers[1], AcquireOutcome::Granted { .. }));
    open.batch_execute("COMMIT").await.expect("commit");
    let new = keeper(&*world.store, &node("b"), lane(1)).await;
    let image = world
        .store
        .load(lane(1), new.lease_grant, 64)
        .await
        .expect("load");
    let image = image.expect("the right holds");
    assert_eq!(
        (image.in_flight.len(), image.batch_seq),
        (1, 1),
        "it saw the last batch"
    );
}

#[tokio::test]
async fn queueing_a_concurrently_inserted_key_returns_the_stored_tx() {
    for commits in [true, false] {
        let world = World::new().await;
        // The lane is there already, so that the two meet at the key.
        let first = world
            .store
            .queue_requests(vec![queued(lane(1), "before")])
            .await;
        first.expect("queue");
        let other = world.client().await;
        let theirs = "BEGIN; INSERT INTO managed_tx \
             (lane_id, created_at, gas, tx_id, request_id, fingerprint, value, data, state, signed, \
              token, updated_at, event_seqs) \
             SELECT lane_id, created_at, gas, 'ffffffff-0000-0000-0000-000000000001', 'same', fingerprint, \
                    value, data, state, signed, token, updated_at, event_seqs FROM managed_tx";
        other.batch_execute(theirs).await.expect("insert");
        let (store, ours) = (world.store.clone(), queued(lane(1), "same"));
        let id = ours.request.id;
        let queue = tokio::spawn(async move { store.queue_requests(vec![ours]).await });
        wait_until_blocked(&world).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        other.batch_execute(end).await.expect("end");
        let answer = queue.await.expect("it ran").expect("queue");
        let stays = match commits {
            true => TxId(
                "ffffffff-0000-0000-0000-000000000001"
                    .parse()
                    .expect("an id"),
            ),
            false => id,
        };
        assert_eq!(answer[0].id, stays);
        let wakes = world.count("SELECT count(*) FROM queued_tx");
        assert_eq!(
            wakes,
            if commits { 1 } else { 2 },
            "ours waits only when it stays"
        );
    }
}

#[tokio::test]
async fn concurrent_queueing_in_different_orders_does_not_deadlock() {
    let world = World::new().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8_usize {
        let store = world.store.clone();
        tasks.spawn(async move {
            let mut keys: Vec<usize> = (0..40).collect();
            keys.rotate_left(n * 5);
            let requests = keys
                .iter()
                .map(|k| queued(lane(1 + *k as u64 % 4), &format!("k{k}")));
            let txs = store
                .queue_requests(requests.collect())
                .await
                .expect("queue");
            let mut found: Vec<_> = keys
                .into_iter()
                .zip(txs.into_iter().map(|tx| tx.id))
                .collect();
            found.sort_unstable();
            found
        });
    }
    let answers = tasks.join_all().await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(world.count("SELECT count(*) FROM managed_tx"), 40);
    assert_eq!(world.count("SELECT count(*) FROM queued_tx"), 40);
    assert_eq!(world.count("SELECT count(*) FROM lane"), 4);
}

#[tokio::test]
async fn no_feed_reader_skips_events_after_a_promotion() {
    let world = World::new().await;
    let mut keeper = keeper(&*world.store, &node("a"), lane(1)).await;
    for _ in 0..2 {
        let batch = accept(&keeper, 1);
        assert_eq!(commit(&*world.store, &batch).await, CommitOutcome::Applied);
        keeper.follow(&batch);
        let fed = world.store.extend_feed(&[keeper.lease_grant.lane]).await;
        assert_eq!(fed, Ok(()));
    }
    let all = EventFilter {
        limit: 100,
        ..EventFilter::default()
    };
    let before = world.store.events(&all).await.expect("events");
    assert_eq!(before.events.len(), 2);
    // A standby that lacks the second event takes over, and another event takes its place.
    world.database.exec(
        "DELETE FROM event_feed WHERE position = 2; UPDATE lane_feed SET fed_seq = 1; \
         UPDATE feed_head SET position = 1, history = 'another'",
    );
    world.store.extend_feed(&[]).await.expect("sweep");
    let ahead = EventFilter {
        after: Some(before.next),
        ..all
    };
    let after = world.store.events(&ahead).await.expect("events");
    assert_eq!(after.events.len(), 1, "it is told to who was ahead");
}

#[tokio::test]
async fn feed_is_in_order_with_concurrent_appenders() {
    let world = World::new().await;
    let lanes: Vec<_> = (1..=4).map(lane).collect();
    let keepers = keepers(&*world.store, &node("a"), &lanes).await;
    let mut tasks = tokio::task::JoinSet::new();
    for mut keeper in keepers {
        let store = world.store.clone();
        tasks.spawn(async move {
            for _ in 0..15 {
                let batch = accept(&keeper, 1);
                assert_eq!(commit(&*store, &batch).await, CommitOutcome::Applied);
                keeper.follow(&batch);
                // Two at once for the same lane, and a sweep.
                let lane = [keeper.lease_grant.lane];
                let extended = tokio::join!(
                    store.extend_feed(&lane),
                    store.extend_feed(&[]),
                    store.extend_feed(&lane)
                );
                assert_eq!(extended, (Ok(()), Ok(()), Ok(())));
            }
        });
    }
    tasks.join_all().await;
    let holes = "SELECT count(*) FROM (SELECT first_seq - 1 - coalesce(lag(last_seq) OVER \
                 (PARTITION BY lane_id ORDER BY position), 0) AS gap FROM event_feed) AS g WHERE gap <> 0";
    assert_eq!(world.count(holes), 0);
    let fed = "SELECT sum(last_seq - first_seq + 1) FROM event_feed";
    assert_eq!(world.count(fed), 60);
    let positions = "SELECT max(position) - count(*) FROM event_feed";
    assert_eq!(world.count(positions), 0, "positions leave no hole");
}

#[tokio::test]
async fn lane_updates_stay_in_their_page() {
    let world = World::new().await;
    let mut keeper = keeper(&*world.store, &node("a"), lane(1)).await;
    for _ in 0..20 {
        let batch = accept(&keeper, 10);
        assert_eq!(commit(&*world.store, &batch).await, CommitOutcome::Applied);
        keeper.follow(&batch);
        let mut sent = accept(&keeper, 0);
        sent.writes.updates = batch.writes.inserts;
        let hashes = batch.writes.attempts.iter().map(|a| (a.hash, sent.at));
        sent.writes.first_sent = hashes.collect();
        assert_eq!(commit(&*world.store, &sent).await, CommitOutcome::Applied);
        keeper.follow(&sent);
    }
    let client = world.client().await;
    client
        .batch_execute("SELECT pg_stat_force_next_flush()")
        .await
        .expect("flush");
    let moved = |table: &str| {
        format!(
            "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{table}'"
        )
    };
    let updated = "SELECT min(n_tup_upd) FROM pg_stat_user_tables \
                   WHERE relname IN ('managed_tx', 'tx_attempt')";
    crate::kit::wait_until("the statistics are reported", || {
        world.count(updated) == 200
    })
    .await;
    assert_eq!(world.count(&moved("managed_tx")), 0);
    assert_eq!(world.count(&moved("tx_attempt")), 0);
    // The first batch makes the lane busy, which is in an index; and taking it writes it once.
    assert!(world.count(&moved("signer_nonce_cursor")) <= 1);
}
