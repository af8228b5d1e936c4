//! Scheme 2: a counter that is wrong, and nonces that were issued and never reserved.

use std::time::Duration;

use domain::{Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::postgres::{Books, Reserved};
use nonce::{RedisIssue, Scheme, SchemeKind};
use rig::redis::{Keeps, Redis};

use crate::kit::{borrow, borrow_at_least, borrowed, database, db, lane, redis, until};

const NEVER: Duration = Duration::from_secs(3_600);

fn counter(server: &Redis) -> String {
    let keys = server.ask(&["KEYS", "lanekeeper:nonce:*:next"]);
    let mut keys = keys.lines();
    let key = keys.next().expect("Redis has issued");
    assert_eq!(keys.next(), None, "one lane");
    key.to_owned()
}

#[tokio::test]
async fn a_counter_that_is_lost_behind_or_far_ahead_is_put_right() {
    let (database, server) = (database("counter").await, Redis::start(Keeps::Nothing));
    let scheme = RedisIssue::new(db(database.url(), 2), redis(&server.url()), NEVER);
    assert_eq!(borrowed(&scheme, lane(1), 3).await, [0, 1, 2]);
    let key = counter(&server);
    server.flush();
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [3, 4]);
    server.ask(&["SET", &key, "1"]);
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [5, 6]);
    server.ask(&["SET", &key, "1000000"]);
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [7, 8]);
    server.ask(&["SET", &key, "what is this"]);
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [9, 10]);
    assert_eq!(server.ask(&["GET", &key]), "11");
    // Another process, whose connection is new, puts it where it belongs before it issues anything.
    server.ask(&["SET", &key, "2"]);
    let other = RedisIssue::new(db(database.url(), 2), redis(&server.url()), NEVER);
    assert_eq!(borrowed(&other, lane(1), 1).await, [11]);
    assert_eq!(server.ask(&["GET", &key]), "12");
    // No script counts so far; and no account has sent so much.
    let lent = scheme
        .allocate(lane(2), borrow_at_least(1 << 60))
        .await
        .unwrap();
    assert_eq!(lent.nonce, Nonce(1 << 60));
    let refused = scheme.allocate(lane(2), borrow_at_least(u64::MAX)).await;
    assert!(
        matches!(refused, Err(ReservationError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn issued_and_never_reserved_is_free_after_the_grace() {
    let (database, server) = (database("holes").await, Redis::start(Keeps::Nothing));
    let url = database.url();
    let patient = RedisIssue::new(db(url, 2), redis(&server.url()), NEVER);
    assert_eq!(borrowed(&patient, lane(1), 1).await, [0]);
    // Somebody is issued 1 and 2, and dies.
    server.ask(&["INCRBY", &counter(&server), "2"]);
    assert_eq!(borrowed(&patient, lane(1), 2).await, [3, 4]);
    for _ in 0..3 {
        assert_eq!(patient.to_watch(10).await.unwrap(), []);
    }
    assert_eq!(
        borrowed(&patient, lane(1), 1).await,
        [5],
        "he may only be slow"
    );

    let swift = RedisIssue::new(db(url, 2), redis(&server.url()), Duration::ZERO);
    until("the holes are closed", async || {
        assert_eq!(swift.to_watch(10).await.unwrap(), []);
        let open = swift.list_reservations(lane(1)).await.unwrap().open;
        let free = open
            .iter()
            .filter(|r| r.state == ReservationState::Recyclable);
        let free: Vec<u64> = free.map(|r| r.nonce.0).collect();
        assert!(free.is_empty() || free == [1, 2], "{free:?}");
        !free.is_empty()
    })
    .await;

    // He was only slow: what he was issued is lent to him or to another, and never to both.
    let books = Books::new(db(url, 2), SchemeKind::RedisIssue);
    let slow = books
        .reserve(lane(1), borrow(), Some(Nonce(2)), 100)
        .await
        .unwrap();
    let Reserved::LaneReservations { reservation, .. } = slow else {
        panic!("{slow:?}");
    };
    assert_eq!(reservation.nonce, Nonce(1), "the smallest");
    assert_eq!(borrowed(&swift, lane(1), 2).await, [2, 6]);
    let slow = books
        .reserve(lane(1), borrow(), Some(Nonce(2)), 100)
        .await
        .unwrap();
    assert_eq!(slow, Reserved::Refused { next: Nonce(7) });
}

#[tokio::test]
async fn what_the_chain_consumed_is_no_hole_for_the_next_borrower() {
    let (database, server) = (database("past").await, Redis::start(Keeps::Nothing));
    let scheme = RedisIssue::new(db(database.url(), 2), redis(&server.url()), Duration::ZERO);
    // The account is old, and then somebody else sends a great deal.
    for (at_least, expected) in [(1_000_000, 1_000_000), (2_000_000, 2_000_000)] {
        let lent = scheme
            .allocate(lane(1), borrow_at_least(at_least))
            .await
            .unwrap();
        assert_eq!(lent.nonce, Nonce(expected));
    }
    for _ in 0..3 {
        scheme.to_watch(10).await.unwrap();
    }
    let rows = database
        .ask("SELECT count(*) FROM nonce_reservation")
        .unwrap();
    assert_eq!(rows, (2 + 1_024).to_string(), "bounded");
    let lent = scheme
        .allocate(lane(1), borrow_at_least(2_000_000))
        .await
        .unwrap();
    assert_eq!(lent.nonce, Nonce(2_000_001));
}
