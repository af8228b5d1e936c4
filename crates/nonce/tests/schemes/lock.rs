//! Scheme 1: the lock in front of the row.

use std::sync::Arc;
use std::time::Duration;

use domain::Nonce;
use nonce::redis::{LaneLock, LockConfig, RedisConfig};
use nonce::{RowLock, Scheme};
use rig::redis::{Keeps, Redis};

use crate::kit::{
    WITHIN, borrow, borrowed, client, database, db, holder, lane, redis, redis_as_given,
    redis_with, until,
};

const PATIENT: LockConfig = LockConfig {
    hold: WITHIN,
    wait: WITHIN,
};

fn lock(server: &Redis, config: LockConfig) -> LaneLock {
    LaneLock::new(redis(&server.url()), config)
}

fn owner(server: &Redis) -> String {
    server.ask(&["GET", &key()])
}

fn key() -> String {
    format!("lanekeeper:nonce:{{{}}}:lock", lane(1))
}

#[tokio::test]
async fn the_lock_is_held_until_the_commit_and_opened_by_its_owner_only() {
    let (database, server) = (database("lock").await, Redis::start(Keeps::Nothing));
    let scheme = RowLock::new(db(database.url(), 2), Some(lock(&server, PATIENT)));
    let scheme = Arc::new(scheme);
    assert_eq!(borrowed(scheme.as_ref(), lane(1), 1).await, [0]);
    assert_eq!(owner(&server), "");

    let mut blocker = client(database.url()).await;
    let block = blocker.transaction().await.unwrap();
    block
        .execute("UPDATE nonce_lane SET generation = 1", &[])
        .await
        .unwrap();
    let wanted = borrow();
    let asking = Arc::clone(&scheme);
    let asked = tokio::spawn(async move { asking.allocate(lane(1), wanted).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND datname = current_database()";
    until("it waits for the row", async || {
        database.ask(waits).as_deref() == Some("1")
    })
    .await;
    assert_eq!(
        owner(&server),
        wanted.holder.0.to_string(),
        "held until the commit"
    );
    block.rollback().await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap().nonce, Nonce(1));
    assert_eq!(owner(&server), "", "opened after it");

    // Its time ran out and somebody else has it: it is not opened.
    let lock = lock(&server, PATIENT);
    let turn = lock.turn(lane(1), holder().0).await.unwrap();
    assert!(turn.has_lock());
    server.ask(&["SET", &key(), "somebody else"]);
    turn.release().await;
    assert_eq!(owner(&server), "somebody else");
}

#[tokio::test]
async fn whoever_cannot_have_the_lock_goes_without() {
    let (database, server) = (database("without").await, Redis::start(Keeps::Nothing));
    let hasty = LockConfig {
        hold: WITHIN,
        wait: Duration::from_millis(50),
    };
    let scheme = RowLock::new(db(database.url(), 2), Some(lock(&server, hasty)));
    server.ask(&["SET", &key(), "a process that died"]);
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [0, 1]);
    assert_eq!(owner(&server), "a process that died");
}

#[tokio::test]
async fn redis_is_left_out_after_failures_and_comes_back_by_itself() {
    let (database, server) = (database("degrade").await, Redis::start(Keeps::Nothing));
    let redis = redis_with(RedisConfig::at(&server.url()));
    let lock = LaneLock::new(Arc::clone(&redis), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    assert_eq!(borrowed(&scheme, lane(1), 1).await, [0]);
    let first = redis.link().await.unwrap();

    server.kill();
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [1, 2]);
    assert!(redis.is_well(), "two failures may be chance");
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [3, 4]);
    assert!(!redis.is_well());
    server.start_again();
    let mut next = 5;
    until("Redis is used again", async || {
        assert_eq!(borrowed(&scheme, lane(1), 1).await, [next]);
        next += 1;
        redis.is_well()
    })
    .await;
    let second = redis.link().await.unwrap();
    assert_ne!(
        first.run_id(),
        second.run_id(),
        "another life of the server"
    );
    assert!(second.number() > first.number());
}

#[tokio::test]
async fn a_frozen_redis_costs_a_few_waits_and_no_more() {
    let (database, server) = (database("frozen").await, Redis::start(Keeps::Nothing));
    let config = RedisConfig {
        probe_every: WITHIN,
        ..RedisConfig::at(&server.url())
    };
    let longest = 3 * (config.answer_within + config.connect_within);
    let lock = LaneLock::new(redis_as_given(config), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    assert_eq!(borrowed(&scheme, lane(1), 1).await, [0]);
    server.freeze();
    let began = std::time::Instant::now();
    let nonces = borrowed(&scheme, lane(1), 50).await;
    let took = began.elapsed();
    server.thaw();
    assert_eq!(nonces, (1..=50).collect::<Vec<u64>>());
    assert!(took < longest + Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_redis_that_only_lets_us_in_is_left_out_too() {
    let (database, server) = (database("full").await, Redis::start(Keeps::Nothing));
    let config = RedisConfig {
        probe_every: WITHIN,
        ..RedisConfig::at(&server.url())
    };
    let redis = redis_as_given(config);
    let lock = LaneLock::new(Arc::clone(&redis), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]); // reads go on, writes are refused
    assert_eq!(borrowed(&scheme, lane(1), 5).await, [0, 1, 2, 3, 4]);
    assert!(!redis.is_well());
}
