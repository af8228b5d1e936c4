//! Scheme 1: the Redis lock in front of the row lock.

use std::sync::Arc;
use std::time::Duration;

use domain::Nonce;
use nonce::redis::{LaneLock, LockConfig, RedisConfig};
use nonce::{RowLock, Scheme};
use rig::redis::{Persistence, Redis};

use crate::kit::{
    Metrics, WITHIN, client, database, db, holder, lane, redis, redis_as_given, redis_with,
    request, reserve_nonces, wait_until,
};

const PATIENT: LockConfig = LockConfig {
    hold: WITHIN,
    wait: WITHIN,
};

fn lock(server: &Redis, config: LockConfig) -> LaneLock {
    LaneLock::new(redis(&server.url()), config)
}

fn owner(server: &Redis) -> String {
    server.run_command(&["GET", &key()])
}

fn key() -> String {
    format!("lanekeeper:nonce:{{{}}}:lock", lane(1))
}

#[tokio::test]
async fn lock_is_held_until_commit_and_released_by_its_owner_only() {
    let (database, server) = (database("lock").await, Redis::start(Persistence::Nothing));
    let scheme = RowLock::new(db(database.url(), 2), Some(lock(&server, PATIENT)));
    let scheme = Arc::new(scheme);
    assert_eq!(reserve_nonces(scheme.as_ref(), lane(1), 1).await, [0]);
    assert_eq!(owner(&server), "");

    let mut blocker = client(database.url()).await;
    let block = blocker.transaction().await.unwrap();
    block
        .execute("UPDATE nonce_lane SET generation = 1", &[])
        .await
        .unwrap();
    let wanted = request();
    let waiting = Arc::clone(&scheme);
    let waiting = tokio::spawn(async move { waiting.allocate(lane(1), wanted).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND datname = current_database()";
    wait_until("it waits for the row", async || {
        database.query_value(waits).as_deref() == Some("1")
    })
    .await;
    assert_eq!(
        owner(&server),
        wanted.holder.0.to_string(),
        "held until the commit"
    );
    block.rollback().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().nonce, Nonce(1));
    assert_eq!(owner(&server), "", "released after it");

    // It expired and has another owner: it is not released.
    let lock = lock(&server, PATIENT);
    let turn = lock.acquire(lane(1), holder().0).await.unwrap();
    assert!(turn.has_lock());
    server.run_command(&["SET", &key(), "another owner"]);
    turn.release().await;
    assert_eq!(owner(&server), "another owner");
}

#[tokio::test]
async fn reserving_continues_without_the_lock_after_the_wait() {
    let (database, server) = (
        database("without").await,
        Redis::start(Persistence::Nothing),
    );
    let hasty = LockConfig {
        hold: WITHIN,
        wait: Duration::from_millis(50),
    };
    let metrics = Metrics::record();
    let skipped = || metrics.read("lanekeeper_nonce_lock_skipped_total");
    let before = skipped();
    let scheme = RowLock::new(db(database.url(), 2), Some(lock(&server, hasty)));
    server.run_command(&["SET", &key(), "a process that died"]);
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [0, 1]);
    assert_eq!(owner(&server), "a process that died");
    assert!(skipped() > before, "{before:?}");
}

#[tokio::test]
async fn redis_is_bypassed_after_failures_and_used_again_by_itself() {
    let (database, server) = (
        database("degrade").await,
        Redis::start(Persistence::Nothing),
    );
    let metrics = Metrics::record();
    let failures = || metrics.read("lanekeeper_nonce_redis_failures_total");
    let away = || metrics.read("lanekeeper_nonce_redis_away");
    let redis = redis_with(RedisConfig::new(&server.url()));
    let lock = LaneLock::new(Arc::clone(&redis), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    assert_eq!(reserve_nonces(&scheme, lane(1), 1).await, [0]);
    let first = redis.connection().await.unwrap();

    server.kill();
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [1, 2]);
    assert!(redis.is_available(), "two failures may be chance");
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [3, 4]);
    assert!(!redis.is_available());
    assert!(failures() >= Some(3.0), "{:?}", failures());
    assert_eq!(away(), Some(1.0));
    server.start_again();
    let mut next = 5;
    wait_until("Redis is used again", async || {
        assert_eq!(reserve_nonces(&scheme, lane(1), 1).await, [next]);
        next += 1;
        redis.is_available()
    })
    .await;
    assert_eq!(away(), Some(0.0));
    let second = redis.connection().await.unwrap();
    assert_ne!(first.run_id(), second.run_id(), "another run of the server");
    assert!(second.number() > first.number());
}

#[tokio::test]
async fn frozen_redis_costs_a_bounded_number_of_waits() {
    let (database, server) = (database("frozen").await, Redis::start(Persistence::Nothing));
    let config = RedisConfig {
        probe_every: WITHIN,
        ..RedisConfig::new(&server.url())
    };
    let longest = 3 * (config.answer_within + config.connect_within);
    let lock = LaneLock::new(redis_as_given(config), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    assert_eq!(reserve_nonces(&scheme, lane(1), 1).await, [0]);
    server.freeze();
    let began = std::time::Instant::now();
    let nonces = reserve_nonces(&scheme, lane(1), 50).await;
    let took = began.elapsed();
    server.thaw();
    assert_eq!(nonces, (1..=50).collect::<Vec<u64>>());
    assert!(took < longest + Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn redis_that_refuses_writes_is_bypassed() {
    let (database, server) = (database("full").await, Redis::start(Persistence::Nothing));
    let config = RedisConfig {
        probe_every: WITHIN,
        ..RedisConfig::new(&server.url())
    };
    let redis = redis_as_given(config);
    let lock = LaneLock::new(Arc::clone(&redis), PATIENT);
    let scheme = RowLock::new(db(database.url(), 2), Some(lock));
    server.run_command(&["CONFIG", "SET", "maxmemory", "1"]); // reads succeed, writes are refused
    assert_eq!(reserve_nonces(&scheme, lane(1), 5).await, [0, 1, 2, 3, 4]);
    assert!(!redis.is_available());
}
