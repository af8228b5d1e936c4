//! Reserving: order, races, waits and lost answers.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{LaneKey, Mark, Nonce, ReservationState, Timestamp};
use engine::ports::ReservationError;
use nonce::postgres::{SCHEMA_VERSION, SchemaError, prepare};
use nonce::redis::RedisConfig;
use nonce::{RedisIssue, RowLock, Scheme, SchemeKind};
use rig::proxy::{AfterLoss, TcpProxy};
use rig::redis::{Persistence, Redis};

use crate::kit::{
    LONG, client, database, db, key, lane, redis, redis_with, request, request_at_least,
    reserve_nonces,
};

const GRACE: Duration = Duration::from_secs(60);

/// Both schemes, each with its own connections, on different lanes of one database.
fn both(url: &str, server: &Redis) -> [(Box<dyn Scheme>, LaneKey); 2] {
    let issue = RedisIssue::new(db(url, 4), redis(&server.url()), GRACE);
    [
        (Box::new(RowLock::new(db(url, 4), None)), lane(1)),
        (Box::new(issue), lane(2)),
    ]
}

#[tokio::test]
async fn concurrent_preparation_migrates_once_and_grants_the_role() {
    let database = rig::postgres::shared(rig::postgres::majors()[0]).database("prepare");
    let role = format!("server_of_{}", database.name());
    let server = database.server();
    server.exec(&format!("CREATE ROLE \"{role}\" LOGIN PASSWORD 'own'"));
    let (mut one, mut other) = (client(database.url()).await, client(database.url()).await);
    let (one, other) = tokio::join!(prepare(&mut one, Some(&role)), prepare(&mut other, None));
    let applied: Vec<i64> = one.unwrap().into_iter().chain(other.unwrap()).collect();
    assert_eq!(applied, (1..=SCHEMA_VERSION).collect::<Vec<_>>());

    let own = database
        .url()
        .replacen("postgres:rig@", &format!("{role}:own@"), 1);
    let scheme = RowLock::new(db(&own, 1), None);
    let reserved = scheme.allocate(lane(1), request()).await;
    database.exec("INSERT INTO nonce_schema_version VALUES (99, 'future', now())");
    let newer = prepare(&mut client(database.url()).await, None).await;
    database.exec(&format!("DROP OWNED BY \"{role}\""));
    server.exec(&format!("DROP ROLE \"{role}\""));
    assert_eq!(reserved.unwrap().nonce, Nonce(0));
    assert!(matches!(newer, Err(SchemaError::Newer { found: 99 })));
}

/// The role of an older program may not be allowed to write, and its operator must see the reason all the same.
#[tokio::test]
async fn newer_schema_is_refused_before_anything_is_written() {
    let database = database("newer").await;
    database.exec("INSERT INTO nonce_schema_version VALUES (99, 'future', now())");
    let mut client = client(database.url()).await;
    let read_only = "SET default_transaction_read_only = on";
    client.batch_execute(read_only).await.unwrap();
    let refused = prepare(&mut client, None).await;
    assert!(
        matches!(refused, Err(SchemaError::Newer { found: 99 })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn lane_of_another_scheme_is_refused_with_its_name() {
    let (database, server) = (database("bound").await, Redis::start(Persistence::Nothing));
    let [(row_lock, lane), (issue, _)] = both(database.url(), &server);
    row_lock.allocate(lane, request()).await.unwrap();
    let refused = [
        issue.allocate(lane, request()).await.unwrap_err(),
        issue.list_reservations(lane).await.unwrap_err(),
        issue
            .mark(
                key(lane, Nonce(0), request().holder),
                Mark::Recyclable {
                    reason: String::new(),
                    asked: None,
                },
            )
            .await
            .unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(&error, ReservationError::NotReservable(why) if why.contains("row-lock")),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn smallest_recyclable_nonce_at_or_above_the_chain_comes_first() {
    let (database, server) = (database("order").await, Redis::start(Persistence::Nothing));
    for (scheme, lane) in both(database.url(), &server) {
        let first = scheme.allocate(lane, request_at_least(7)).await.unwrap();
        assert_eq!(
            (first.nonce, first.state),
            (Nonce(7), ReservationState::Reserved)
        );
        let later = first.expires_at.since(Timestamp(0));
        assert!(later > LONG, "by the database's clock");
        let mut held = Vec::new();
        for expected in 8..12 {
            let reserved = scheme.allocate(lane, request_at_least(7)).await.unwrap();
            assert_eq!(reserved.nonce, Nonce(expected));
            held.push(reserved);
        }
        for recycled in [&held[2], &held[0]] {
            let (nonce, holder) = (recycled.nonce, recycled.holder);
            let mark = Mark::Recyclable {
                reason: "not needed".into(),
                asked: None,
            };
            let marked = scheme.mark(key(lane, nonce, holder), mark).await.unwrap();
            assert_eq!(marked.reason.as_deref(), Some("not needed"));
        }
        // 8 and 10 are recyclable; the chain has consumed 8.
        let reserved = scheme.allocate(lane, request_at_least(9)).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(10));
        assert_eq!((reserved.tx_hash, reserved.reason), (None, None));
        let reserved = scheme.allocate(lane, request_at_least(7)).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(8));
        // Others used the account: skipped nonces are recyclable, and reserved if they turn out to be unused.
        let top = scheme.list_reservations(lane).await.unwrap().next_nonce;
        let reserved = scheme.allocate(lane, request_at_least(20)).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(20));
        let open = scheme.list_reservations(lane).await.unwrap();
        assert!(open.next_nonce >= Nonce(21) && !open.has_more);
        let free = |nonce: Nonce| {
            let mut open = open.open.iter();
            open.any(|r| r.nonce == nonce && r.state == ReservationState::Recyclable)
        };
        assert!((top.0..20).all(|nonce| free(Nonce(nonce))), "{open:?}");
        let reserved = scheme.allocate(lane, request_at_least(12)).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(12));
    }
}

#[tokio::test]
async fn recyclable_nonces_are_used_before_redis_issues_more() {
    let (database, server) = (database("drain").await, Redis::start(Persistence::Nothing));
    let [_, (scheme, lane)] = both(database.url(), &server);
    for _ in 0..50 {
        let reserved = scheme.allocate(lane, request()).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(0));
        let mark = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        let marked = scheme
            .mark(key(lane, reserved.nonce, reserved.holder), mark)
            .await;
        assert_eq!(marked.unwrap().state, ReservationState::Recyclable);
    }
    assert_eq!(
        scheme.list_reservations(lane).await.unwrap().next_nonce,
        Nonce(1)
    );
    // Another process does not know that one is recyclable: the nonce that it issues is recyclable in its place.
    let [_, (other, _)] = both(database.url(), &server);
    assert_eq!(reserve_nonces(other.as_ref(), lane, 4).await, [0, 1, 2, 3]);
    assert_eq!(
        scheme.list_reservations(lane).await.unwrap().next_nonce,
        Nonce(4)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_processes_reserve_every_nonce_once() {
    let (database, server) = (database("race").await, Redis::start(Persistence::Nothing));
    let url = database.url();
    let all = [both(url, &server), both(url, &server), both(url, &server)];
    let mut tasks = Vec::new();
    for (scheme, lane) in all.into_iter().flatten() {
        let scheme: std::sync::Arc<dyn Scheme> = scheme.into();
        for _ in 0..4 {
            let scheme = std::sync::Arc::clone(&scheme);
            tasks.push(tokio::spawn(async move {
                (lane, reserve_nonces(scheme.as_ref(), lane, 50).await)
            }));
        }
    }
    let mut seen = BTreeSet::new();
    for task in tasks {
        let (lane, nonces) = task.await.unwrap();
        for nonce in nonces {
            assert!(seen.insert((lane, nonce)), "{lane} reserved {nonce} twice");
        }
    }
    for lane in [lane(1), lane(2)] {
        let nonces: Vec<u64> = seen
            .range((lane, 0)..=(lane, u64::MAX))
            .map(|x| x.1)
            .collect();
        assert_eq!(nonces, (0..600).collect::<Vec<u64>>());
    }
}

#[tokio::test]
async fn lock_timeout_is_reported_and_changes_nothing() {
    let database = database("wait").await;
    let impatient = format!("{}?options=-c%20lock_timeout%3D50ms", database.url());
    let scheme = RowLock::new(db(&impatient, 1), None);
    scheme.allocate(lane(1), request()).await.unwrap();
    let mut blocker = client(database.url()).await;
    let block = blocker.transaction().await.unwrap();
    let locked = block
        .execute("UPDATE nonce_lane SET generation = 1", &[])
        .await;
    assert_eq!(locked.unwrap(), 1);
    let refused = scheme.allocate(lane(1), request()).await.unwrap_err();
    assert!(
        matches!(&refused, ReservationError::Unavailable(why) if why.contains("55P03")),
        "{refused}"
    );
    block.rollback().await.unwrap();
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    assert_eq!(
        reserved.nonce,
        Nonce(1),
        "nothing was reserved by the refused call"
    );
}

/// The database reports a refusal before it has released the row locks, and the next statement on the connection runs after
/// that. A caller that retried sooner could meet its own locks.
#[tokio::test]
async fn refusal_is_returned_after_row_locks_are_released() {
    let database = database("refused").await;
    let proxy = TcpProxy::in_front_of(database.server().port());
    let scheme = RowLock::new(db(&database.url_through(proxy.port()), 1), None);
    scheme.allocate(lane(1), request()).await.unwrap();
    database.exec("ALTER TABLE nonce_reservation ADD CHECK (nonce < 1)");
    proxy.hold(b"Q\0\0\0\x05\0"); // an empty statement of the simple query protocol
    let refused = scheme.allocate(lane(1), request());
    tokio::pin!(refused);
    let too_soon = tokio::time::timeout(Duration::from_millis(500), refused.as_mut()).await;
    assert!(too_soon.is_err(), "{too_soon:?}");
    assert_eq!(
        proxy.held(),
        1,
        "the component waits for an empty statement"
    );
    proxy.heal();
    let refused = refused.await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn lost_answer_is_unknown_and_its_nonce_stays_reserved() {
    let (database, server) = (database("lost").await, Redis::start(Persistence::Nothing));
    let proxy = TcpProxy::in_front_of(database.server().port());
    let schemes = both(&database.url_through(proxy.port()), &server);
    for ((scheme, lane), call) in schemes
        .iter()
        .zip(["nonce_reserve_next", "nonce_reserve_issued"])
    {
        assert_eq!(reserve_nonces(scheme.as_ref(), *lane, 1).await, [0]);
        proxy.lose_answer_to(call, AfterLoss::Cut);
        let lost = request();
        let unknown = scheme.allocate(*lane, lost).await.unwrap_err();
        assert!(
            matches!(unknown, ReservationError::Unknown(_)),
            "{unknown:?}"
        );
        let found = scheme
            .find_reservation(key(*lane, Nonce(1), lost.holder))
            .await
            .unwrap();
        assert_eq!(found.unwrap().state, ReservationState::Reserved);
        assert_eq!(reserve_nonces(scheme.as_ref(), *lane, 1).await, [2]);
        proxy.lose_request(call);
        let unknown = scheme.allocate(*lane, request()).await.unwrap_err();
        assert!(
            matches!(unknown, ReservationError::Unknown(_)),
            "{unknown:?}"
        );
        let next = reserve_nonces(scheme.as_ref(), *lane, 1).await[0];
        assert!(
            (3..=4).contains(&next),
            "{next}: Redis has issued 3 without a reservation"
        );
    }
    proxy.cut();
    let refused = schemes[0].0.allocate(lane(1), request()).await.unwrap_err();
    assert!(refused.is_worth_repeating());
}

#[tokio::test]
async fn nothing_is_reserved_without_redis_in_strict_mode_or_after_close() {
    let (database, server) = (database("strict").await, Redis::start(Persistence::Nothing));
    let strict = RedisConfig {
        degrade: false,
        ..RedisConfig::new(&server.url())
    };
    let scheme = RedisIssue::new(db(database.url(), 1), redis_with(strict), GRACE);
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [0, 1]);
    server.kill();
    let refused = scheme.allocate(lane(1), request()).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused:?}"
    );

    let scheme = RowLock::new(db(database.url(), 1), None);
    scheme.close().await.unwrap();
    assert!(scheme.allocate(lane(2), request()).await.is_err());
}

#[tokio::test]
async fn reservation_view_is_readable() {
    let database = database("view").await;
    let scheme = RowLock::new(db(database.url(), 1), None);
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    let mark = Mark::Submitted(domain::B256::repeat_byte(0xab));
    let marked = scheme.mark(key(lane(1), reserved.nonce, reserved.holder), mark);
    marked.await.unwrap();
    let columns = "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY ordinal_position) \
         FROM information_schema.columns WHERE table_name = 'reservation_view'";
    assert_eq!(
        database.query_value(columns).as_deref(),
        Some(
            "chain_id bigint, signer text, nonce bigint, state text, scheme text, holder uuid, tx_hash text, \
             expires_at timestamp with time zone, block_number bigint, block_hash text, is_final boolean, \
             was_replaced boolean, block_holder uuid, reason text"
        )
    );
    let row = "SELECT concat_ws(' ', chain_id, signer, nonce, state, scheme, holder, left(tx_hash, 6), \
         expires_at > now(), block_number, is_final) FROM reservation_view";
    let expected = format!(
        "31337 0x{} 0 RESERVED row-lock {} 0xabab t f",
        "01".repeat(20),
        reserved.holder.0
    );
    assert_eq!(database.query_value(row), Some(expected));
    for scheme in SchemeKind::ALL {
        let definition = "SELECT pg_get_viewdef('reservation_view')";
        let definition = database.query_value(definition).unwrap();
        assert!(definition.contains(scheme.as_str()), "{definition}");
    }
}
