//! Lending: order, races, waits and lost answers.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{LaneKey, Mark, Nonce, ReservationState, Timestamp};
use engine::ports::ReservationError;
use nonce::postgres::{PrepareError, SCHEMA_VERSION, prepare};
use nonce::redis::RedisConfig;
use nonce::{RedisIssue, RowLock, Scheme};
use rig::proxy::{TcpProxy, Then};
use rig::redis::{Keeps, Redis};

use crate::kit::{
    LONG, borrow, borrow_at_least, borrowed, client, database, db, lane, redis, redis_with,
};

const GRACE: Duration = Duration::from_secs(60);

/// Both schemes, each with connections of its own, on different lanes of one database.
fn both(url: &str, server: &Redis) -> [(Box<dyn Scheme>, LaneKey); 2] {
    let issue = RedisIssue::new(db(url, 4), redis(&server.url()), GRACE);
    [
        (Box::new(RowLock::new(db(url, 4), None)), lane(1)),
        (Box::new(issue), lane(2)),
    ]
}

#[tokio::test]
async fn preparing_twice_at_once_is_done_once_and_a_role_may_serve() {
    let database = rig::postgres::shared(rig::postgres::majors()[0]).database("prepare");
    let role = format!("lender_of_{}", database.name());
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
    let lent = scheme.allocate(lane(1), borrow()).await;
    database.exec("INSERT INTO nonce_schema VALUES (99, now())");
    let newer = prepare(&mut client(database.url()).await, None).await;
    database.exec(&format!("DROP OWNED BY \"{role}\""));
    server.exec(&format!("DROP ROLE \"{role}\""));
    assert_eq!(lent.unwrap().nonce, Nonce(0));
    assert!(matches!(newer, Err(PrepareError::Newer { found: 99 })));
}

#[tokio::test]
async fn a_lane_belongs_to_one_scheme_and_says_so() {
    let (database, server) = (database("bound").await, Redis::start(Keeps::Nothing));
    let [(row_lock, lane), (issue, _)] = both(database.url(), &server);
    row_lock.allocate(lane, borrow()).await.unwrap();
    let refused = [
        issue.allocate(lane, borrow()).await.unwrap_err(),
        issue.list_reservations(lane).await.unwrap_err(),
        issue
            .mark(
                lane,
                Nonce(0),
                borrow().holder,
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
async fn the_smallest_free_one_comes_first_and_nothing_below_the_chain() {
    let (database, server) = (database("order").await, Redis::start(Keeps::Nothing));
    for (scheme, lane) in both(database.url(), &server) {
        let first = scheme.allocate(lane, borrow_at_least(7)).await.unwrap();
        assert_eq!(
            (first.nonce, first.state),
            (Nonce(7), ReservationState::Reserved)
        );
        let later = first.expires_at.since(Timestamp(0));
        assert!(later > LONG, "by the database's clock");
        let mut held = Vec::new();
        for expected in 8..12 {
            let lent = scheme.allocate(lane, borrow_at_least(7)).await.unwrap();
            assert_eq!(lent.nonce, Nonce(expected));
            held.push(lent);
        }
        for given_back in [&held[2], &held[0]] {
            let (nonce, holder) = (given_back.nonce, given_back.holder);
            let mark = Mark::Recyclable {
                reason: "not needed".into(),
                asked: None,
            };
            let marked = scheme.mark(lane, nonce, holder, mark).await.unwrap();
            assert_eq!(marked.reason.as_deref(), Some("not needed"));
        }
        // 8 and 10 are free; the chain has consumed 8.
        let lent = scheme.allocate(lane, borrow_at_least(9)).await.unwrap();
        assert_eq!(lent.nonce, Nonce(10));
        assert_eq!((lent.tx_hash, lent.reason), (None, None));
        let lent = scheme.allocate(lane, borrow_at_least(7)).await.unwrap();
        assert_eq!(lent.nonce, Nonce(8));
        // Others used the account: what was skipped is free, and lent when they turn out not to have.
        let top = scheme.list_reservations(lane).await.unwrap().next_nonce;
        let lent = scheme.allocate(lane, borrow_at_least(20)).await.unwrap();
        assert_eq!(lent.nonce, Nonce(20));
        let open = scheme.list_reservations(lane).await.unwrap();
        assert!(open.next_nonce >= Nonce(21) && !open.has_more);
        let free = |nonce: Nonce| {
            let mut open = open.open.iter();
            open.any(|r| r.nonce == nonce && r.state == ReservationState::Recyclable)
        };
        assert!((top.0..20).all(|nonce| free(Nonce(nonce))), "{open:?}");
        let lent = scheme.allocate(lane, borrow_at_least(12)).await.unwrap();
        assert_eq!(lent.nonce, Nonce(12));
    }
}

#[tokio::test]
async fn free_ones_are_used_up_before_redis_issues_more() {
    let (database, server) = (database("drain").await, Redis::start(Keeps::Nothing));
    let [_, (scheme, lane)] = both(database.url(), &server);
    for _ in 0..50 {
        let lent = scheme.allocate(lane, borrow()).await.unwrap();
        assert_eq!(lent.nonce, Nonce(0));
        let mark = Mark::Recyclable {
            reason: String::new(),
            asked: None,
        };
        let marked = scheme.mark(lane, lent.nonce, lent.holder, mark).await;
        assert_eq!(marked.unwrap().state, ReservationState::Recyclable);
    }
    assert_eq!(
        scheme.list_reservations(lane).await.unwrap().next_nonce,
        Nonce(1)
    );
    // Another process does not know that one is free: what it issues in vain is free in its place.
    let [_, (other, _)] = both(database.url(), &server);
    assert_eq!(borrowed(other.as_ref(), lane, 4).await, [0, 1, 2, 3]);
    assert_eq!(
        scheme.list_reservations(lane).await.unwrap().next_nonce,
        Nonce(4)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn races_of_several_processes_lend_everything_once() {
    let (database, server) = (database("race").await, Redis::start(Keeps::Nothing));
    let url = database.url();
    let all = [both(url, &server), both(url, &server), both(url, &server)];
    let mut tasks = Vec::new();
    for (scheme, lane) in all.into_iter().flatten() {
        let scheme: std::sync::Arc<dyn Scheme> = scheme.into();
        for _ in 0..4 {
            let scheme = std::sync::Arc::clone(&scheme);
            tasks.push(tokio::spawn(async move {
                (lane, borrowed(scheme.as_ref(), lane, 50).await)
            }));
        }
    }
    let mut seen = BTreeSet::new();
    for task in tasks {
        let (lane, nonces) = task.await.unwrap();
        for nonce in nonces {
            assert!(seen.insert((lane, nonce)), "{lane} lent {nonce} twice");
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
async fn waiting_too_long_is_told_and_changes_nothing() {
    let database = database("wait").await;
    let impatient = format!("{}?options=-c%20lock_timeout%3D50ms", database.url());
    let scheme = RowLock::new(db(&impatient, 1), None);
    scheme.allocate(lane(1), borrow()).await.unwrap();
    let mut blocker = client(database.url()).await;
    let block = blocker.transaction().await.unwrap();
    let locked = block
        .execute("UPDATE nonce_lane SET generation = 1", &[])
        .await;
    assert_eq!(locked.unwrap(), 1);
    let refused = scheme.allocate(lane(1), borrow()).await.unwrap_err();
    assert!(
        matches!(&refused, ReservationError::Unavailable(why) if why.contains("55P03")),
        "{refused}"
    );
    block.rollback().await.unwrap();
    let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
    assert_eq!(
        lent.nonce,
        Nonce(1),
        "nothing was lent to the impatient one"
    );
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_its_nonce_is_nobody_elses() {
    let (database, server) = (database("lost").await, Redis::start(Keeps::Nothing));
    let proxy = TcpProxy::in_front_of(database.server().port());
    let schemes = both(&database.url_through(proxy.port()), &server);
    for ((scheme, lane), call) in schemes.iter().zip(["nonce_lend_1", "nonce_reserve_1"]) {
        assert_eq!(borrowed(scheme.as_ref(), *lane, 1).await, [0]);
        proxy.lose_answer_to(call, Then::Cut);
        let lost = borrow();
        let unknown = scheme.allocate(*lane, lost).await.unwrap_err();
        assert!(
            matches!(unknown, ReservationError::Unknown(_)),
            "{unknown:?}"
        );
        let found = scheme
            .reservation(*lane, Nonce(1), lost.holder)
            .await
            .unwrap();
        assert_eq!(found.unwrap().state, ReservationState::Reserved);
        assert_eq!(borrowed(scheme.as_ref(), *lane, 1).await, [2]);
        proxy.lose_request(call);
        let unknown = scheme.allocate(*lane, borrow()).await.unwrap_err();
        assert!(
            matches!(unknown, ReservationError::Unknown(_)),
            "{unknown:?}"
        );
        let next = borrowed(scheme.as_ref(), *lane, 1).await[0];
        assert!(
            (3..=4).contains(&next),
            "{next}: Redis has issued 3 in vain"
        );
    }
    proxy.cut();
    let refused = schemes[0].0.allocate(lane(1), borrow()).await.unwrap_err();
    assert!(refused.is_worth_repeating());
}

#[tokio::test]
async fn nothing_is_lent_without_redis_where_that_is_not_allowed_nor_after_closing() {
    let (database, server) = (database("strict").await, Redis::start(Keeps::Nothing));
    let strict = RedisConfig {
        degrade: false,
        ..RedisConfig::at(&server.url())
    };
    let scheme = RedisIssue::new(db(database.url(), 1), redis_with(strict), GRACE);
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [0, 1]);
    server.kill();
    let refused = scheme.allocate(lane(1), borrow()).await.unwrap_err();
    assert!(
        matches!(refused, ReservationError::Unavailable(_)),
        "{refused:?}"
    );

    let scheme = RowLock::new(db(database.url(), 1), None);
    scheme.close().await.unwrap();
    assert!(scheme.allocate(lane(2), borrow()).await.is_err());
}
