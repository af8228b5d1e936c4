//! Scheme 2: a wrong counter, and nonces that were issued and never reserved.

use std::time::Duration;

use domain::{Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::postgres::{Ledger, ReserveOutcome};
use nonce::{RedisIssue, Scheme, SchemeKind};
use rig::redis::{Persistence, Redis};

use crate::kit::{
    Metrics, database, db, lane, redis, request, request_at_least, reserve_nonces, wait_until,
};

const NEVER: Duration = Duration::from_secs(3_600);

fn counter(server: &Redis) -> String {
    let keys = server.run_command(&["KEYS", "lanekeeper:nonce:*:next"]);
    let mut keys = keys.lines();
    let key = keys.next().expect("Redis has issued");
    assert_eq!(keys.next(), None, "one lane");
    key.to_owned()
}

#[tokio::test]
async fn lost_or_wrong_counter_is_corrected() {
    let (database, server) = (
        database("counter").await,
        Redis::start(Persistence::Nothing),
    );
    let scheme = RedisIssue::new(db(database.url(), 2), redis(&server.url()), NEVER);
    assert_eq!(reserve_nonces(&scheme, lane(1), 3).await, [0, 1, 2]);
    let key = counter(&server);
    server.flush();
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [3, 4]);
    server.run_command(&["SET", &key, "1"]);
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [5, 6]);
    server.run_command(&["SET", &key, "1000000"]);
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [7, 8]);
    server.run_command(&["SET", &key, "not a number"]);
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [9, 10]);
    assert_eq!(server.run_command(&["GET", &key]), "11");
    // Another process, with a new connection, corrects it before it issues anything.
    server.run_command(&["SET", &key, "2"]);
    let other = RedisIssue::new(db(database.url(), 2), redis(&server.url()), NEVER);
    assert_eq!(reserve_nonces(&other, lane(1), 1).await, [11]);
    assert_eq!(server.run_command(&["GET", &key]), "12");
    // Beyond what a script counts; no account has sent that many transactions.
    let reserved = scheme
        .allocate(lane(2), request_at_least(1 << 60))
        .await
        .unwrap();
    assert_eq!(reserved.nonce, Nonce(1 << 60));
    let refused = scheme.allocate(lane(2), request_at_least(u64::MAX)).await;
    assert!(
        matches!(refused, Err(ReservationError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn issued_and_unreserved_nonce_is_recyclable_after_grace() {
    let (database, server) = (database("gaps").await, Redis::start(Persistence::Nothing));
    let url = database.url();
    let patient = RedisIssue::new(db(url, 2), redis(&server.url()), NEVER);
    assert_eq!(reserve_nonces(&patient, lane(1), 1).await, [0]);
    // A process is issued 1 and 2, and dies.
    server.run_command(&["INCRBY", &counter(&server), "2"]);
    assert_eq!(reserve_nonces(&patient, lane(1), 2).await, [3, 4]);
    for _ in 0..3 {
        assert_eq!(patient.list_watched(10).await.unwrap(), []);
    }
    assert_eq!(
        reserve_nonces(&patient, lane(1), 1).await,
        [5],
        "the process may only be slow"
    );

    let metrics = Metrics::record();
    let closed = || metrics.read("lanekeeper_nonce_holes_closed_total");
    let before = closed();
    let swift = RedisIssue::new(db(url, 2), redis(&server.url()), Duration::ZERO);
    wait_until("the gaps are closed", async || {
        assert_eq!(swift.list_watched(10).await.unwrap(), []);
        let open = swift.list_reservations(lane(1)).await.unwrap().open;
        let free = open
            .iter()
            .filter(|r| r.state == ReservationState::Recyclable);
        let free: Vec<u64> = free.map(|r| r.nonce.0).collect();
        assert!(free.is_empty() || free == [1, 2], "{free:?}");
        !free.is_empty()
    })
    .await;

    assert!(closed() >= Some(before.unwrap_or(0.0) + 2.0), "{before:?}");

    // The process was only slow: its nonce is reserved for it or for another holder, and never for both.
    let ledger = Ledger::new(db(url, 2), SchemeKind::RedisIssue);
    let slow = ledger
        .reserve_issued(lane(1), request(), Some(Nonce(2)), 100)
        .await
        .unwrap();
    let ReserveOutcome::Reserved { reservation, .. } = slow else {
        panic!("{slow:?}");
    };
    assert_eq!(reservation.nonce, Nonce(1), "the smallest");
    assert_eq!(reserve_nonces(&swift, lane(1), 2).await, [2, 6]);
    let slow = ledger
        .reserve_issued(lane(1), request(), Some(Nonce(2)), 100)
        .await
        .unwrap();
    assert_eq!(slow, ReserveOutcome::Refused { next: Nonce(7) });
}

#[tokio::test]
async fn nonces_consumed_by_the_chain_are_not_reserved_as_gaps() {
    let (database, server) = (database("past").await, Redis::start(Persistence::Nothing));
    let scheme = RedisIssue::new(db(database.url(), 2), redis(&server.url()), Duration::ZERO);
    // The account is old, and then another wallet sends many transactions.
    for (at_least, expected) in [(1_000_000, 1_000_000), (2_000_000, 2_000_000)] {
        let reserved = scheme
            .allocate(lane(1), request_at_least(at_least))
            .await
            .unwrap();
        assert_eq!(reserved.nonce, Nonce(expected));
    }
    for _ in 0..3 {
        scheme.list_watched(10).await.unwrap();
    }
    let rows = database
        .query_value("SELECT count(*) FROM nonce_reservation")
        .unwrap();
    assert_eq!(rows, (2 + 1_024).to_string(), "bounded");
    let reserved = scheme
        .allocate(lane(1), request_at_least(2_000_000))
        .await
        .unwrap();
    assert_eq!(reserved.nonce, Nonce(2_000_001));
}
