//! Schemes 3 and 5: what becomes of nonces whose process, Redis server or answer was lost, and of unused ones.

use std::sync::Arc;
use std::time::Duration;

use domain::{B256, Mark, Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::{
    ConditionalVerdict, RedisReserve, RedisReserveConfig, ReserveRequest, Scheme, Segment,
    SegmentConfig, Verdict,
};
use rig::redis::{Persistence, Redis as Server};

use crate::allocation_blocks::{reserve, segment, three_processes};
use crate::kit::{
    LONG, Metrics, client, clock, database, db, holder, key, lane, redis, request,
    request_at_least, reserve_nonces, wait_until,
};

/// The duration of a reservation that must expire in a test.
const SHORT: Duration = Duration::from_millis(300);

/// Sweeps as if the chain showed no transactions.
async fn sweep(scheme: &dyn Scheme) {
    let watched = scheme.list_watched(100).await.unwrap();
    let verdicts: Vec<_> = watched
        .into_iter()
        .map(|seen| ConditionalVerdict {
            seen,
            verdict: Verdict::Free,
        })
        .collect();
    scheme.apply_verdicts(&verdicts).await.unwrap();
}

fn short() -> ReserveRequest {
    ReserveRequest {
        holder: holder(),
        timeout: SHORT,
        ..request()
    }
}

/// A process dies without returning its segment: every nonce becomes recyclable, and not before its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn segment_of_a_dead_process_becomes_recyclable() {
    let metrics = Metrics::record();
    let ended = || metrics.read("lanekeeper_nonce_keepers_ended_total");
    let database = database("dead").await;
    let dead = segment(database.url(), SHORT);
    dead.allocate(lane(1), short()).await.unwrap();
    drop(dead);
    let before = ended();
    let next = segment(database.url(), Duration::from_secs(60));
    let first = next.allocate(lane(1), request()).await.unwrap();
    assert_eq!(
        first.nonce,
        Nonce(10),
        "the rest belongs to the dead process"
    );
    wait_until("the segment is recyclable", async || {
        sweep(&*next).await;
        let free =
            "SELECT count(*) FROM nonce_reservation WHERE state = 2 AND block_holder IS NULL";
        database.query_value(free).as_deref() == Some("10")
    })
    .await;
    assert!(ended() > before, "{before:?}");
    let again = reserve_nonces(&*next, lane(1), 10).await;
    assert_eq!(again, (0..10).collect::<Vec<_>>());
}

/// A process hands a nonce out and is so slow to record it that the nonce has another holder by then.
#[tokio::test(flavor = "multi_thread")]
async fn reservation_recorded_too_late_is_void_and_counted() {
    let metrics = Metrics::record();
    let late = || metrics.read("lanekeeper_nonce_late_loans_total");
    let before = late();
    let database = database("late").await;
    let slow = segment(database.url(), Duration::from_secs(60));
    slow.allocate(lane(1), request()).await.unwrap();
    slow.list_reservations(lane(1)).await.unwrap(); // it is written
    let blocker = client(database.url()).await;
    let take_over = "BEGIN; UPDATE nonce_reservation SET state = 0, block_holder = NULL, holder = gen_random_uuid() \
                     WHERE block_holder IS NOT NULL";
    blocker.batch_execute(take_over).await.unwrap();
    let handed_out = slow.allocate(lane(1), request()).await.unwrap();
    assert_eq!(late(), before, "its record waits for the row");
    blocker.batch_execute("COMMIT").await.unwrap();
    wait_until("the record is refused", async || late() > before).await;
    let found = slow
        .find_reservation(key(lane(1), handed_out.nonce, handed_out.holder))
        .await;
    assert_eq!(found, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn block_of_a_dead_redis_becomes_recyclable() {
    let (database, server, all) = three_processes("gone", Persistence::Nothing).await;
    all[0].allocate(lane(1), short()).await.unwrap();
    tokio::task::block_in_place(|| server.kill());
    wait_until("all nonces are free", async || {
        sweep(&*all[1]).await;
        let rest =
            "SELECT count(*) FROM nonce_reservation WHERE state = 0 OR block_holder IS NOT NULL";
        database.query_value(rest).as_deref() == Some("0")
    })
    .await;
    assert_eq!(reserve_nonces(&*all[2], lane(1), 3).await, [0, 1, 2]);
    tokio::task::block_in_place(|| server.start_again());
    wait_until("Redis hands out again", async || {
        reserve_nonces(&*all[2], lane(1), 1).await;
        !server.run_command(&["KEYS", "*:free"]).is_empty()
    })
    .await;
}

/// A nonce of an older generation is returned below all nonces with which the present one began.
#[tokio::test(flavor = "multi_thread")]
async fn nonce_from_an_older_generation_is_reserved_again() {
    let database = database("older").await;
    let server = Server::start(Persistence::Nothing);
    let metrics = Metrics::record();
    let generations = || metrics.read("lanekeeper_nonce_generations_total");
    let scheme = reserve(database.url(), &server);
    let first = scheme.allocate(lane(1), request()).await.unwrap();
    let before = generations();
    assert!(before >= Some(1.0), "{before:?}");
    server.flush();
    wait_until(
        "the next generation reserves above the block of the last one",
        async || {
            let reserved = scheme.allocate(lane(1), request()).await.unwrap();
            server.run_command(&["DBSIZE"]) != "0" && reserved.nonce.0 > first.nonce.0 + 20
        },
    )
    .await;
    assert!(generations() > before, "{before:?}");
    let back = Mark::Recyclable {
        reason: "not needed".into(),
        asked: None,
    };
    let given = scheme
        .mark(key(lane(1), first.nonce, first.holder), back)
        .await;
    given.unwrap();
    wait_until("it is reserved again", async || {
        let reserved = scheme.allocate(lane(1), request()).await.unwrap();
        reserved.nonce == first.nonce
    })
    .await;
}

/// A process dies between the answer of Redis and the database: its reservation is written all the same.
#[tokio::test(flavor = "multi_thread")]
async fn reservation_known_only_to_redis_is_written() {
    let (database, server, all) = three_processes("loan", Persistence::Nothing).await;
    reserve_nonces(&*all[0], lane(1), 2).await;
    let whole = all[0]
        .find_reservation(key(lane(1), Nonce(0), holder()))
        .await;
    assert_eq!(whole, Ok(None));
    let key = server.run_command(&["KEYS", "*:free"]);
    let base = key.trim_end_matches("free");
    let allocation_id = server.run_command(&["HGET", &format!("{base}allocations"), "2"]);
    let marker = holder();
    // As the script does.
    server.run_command(&["ZREM", &key, "2"]);
    let reservation = format!("{} {allocation_id} 1900000000000", marker.0);
    server.run_command(&["HSET", &format!("{base}reserved"), "2", &reservation]);
    server.run_command(&["HINCRBY", &format!("{base}state"), "free", "-1"]);
    server.run_command(&["HINCRBY", &format!("{base}state"), "reserved", "1"]);
    wait_until("it is written", async || {
        all[0].list_watched(10).await.unwrap();
        let sql = format!(
            "SELECT count(*) FROM nonce_reservation WHERE holder = '{}'",
            marker.0
        );
        database.query_value(&sql).as_deref() == Some("1")
    })
    .await;
    let lost = server.run_command(&["HLEN", &format!("{base}reserved")]);
    wait_until("Redis has removed it", async || {
        server.run_command(&["HLEN", &format!("{base}reserved")]) == "0"
    })
    .await;
    assert!(lost.parse::<u64>().unwrap() <= 1);
    assert_eq!(reserve_nonces(&*all[0], lane(1), 1).await, [3]);
}

/// Breaks the connection of a call of this function that waits for a lock; returns whether there was one.
fn disconnect_waiting_call(database: &rig::postgres::Database, function: &str) -> bool {
    let ended = database.query_value(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
           AND wait_event_type = 'Lock' AND query LIKE '%{function}%'"
    ));
    ended.as_deref() != Some("0")
}

/// A process dies after it has drained Redis and before it has returned the nonces, and another one continues.
#[tokio::test(flavor = "multi_thread")]
async fn nonces_drained_by_a_dead_process_are_reserved_again() {
    let (database, server, all) = three_processes("drained", Persistence::Nothing).await;
    let (dying, other) = (Arc::clone(&all[0]), &*all[1]);
    assert_eq!(reserve_nonces(&*dying, lane(1), 1).await, [0]);
    assert_eq!(reserve_nonces(other, lane(1), 1).await, [1]);
    for scheme in [&*dying, other] {
        scheme.list_reservations(lane(1)).await.unwrap(); // it is written
    }
    // The call that the dying process is about to send.
    let late_return = database.query_value(
        "SELECT format('SELECT nonce_return_unused(%L, %L, %L)', block_holder, array_agg(nonce), array_agg(allocation_id)) \
         FROM nonce_reservation WHERE block_holder IS NOT NULL GROUP BY block_holder",
    );
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_block_holder FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let dies = tokio::spawn(async move { dying.close().await });
    wait_until("it starts to return them, and dies", async || {
        disconnect_waiting_call(&database, "nonce_return_unused")
    })
    .await;
    dies.await.unwrap().unwrap_err();
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(
        server.run_command(&["KEYS", "*:free"]),
        "",
        "Redis has none of them"
    );
    let mut reserved = reserve_nonces(other, lane(1), 1).await;
    assert_eq!(reserved, [20], "they are a gap");
    wait_until("the first of them is reserved again", async || {
        other.list_watched(10).await.unwrap();
        reserved.extend(reserve_nonces(other, lane(1), 1).await);
        reserved.contains(&2)
    })
    .await;
    // The others are in a block again, and may be handed out at any moment: the late call does not free them.
    database.exec(&late_return.expect("they were in a block"));
    let rest =
        "SELECT count(*) FROM nonce_reservation WHERE nonce < 20 AND block_holder IS NOT NULL";
    assert_eq!(database.query_value(rest).as_deref(), Some("17"));
    reserved.extend(reserve_nonces(other, lane(1), 17).await);
    reserved.sort_unstable();
    let first: Vec<u64> = (2..).take(reserved.len()).collect();
    assert_eq!(reserved, first, "each once, and no gap is left");
}

/// Redis, with blocks of this size and leases of this length.
fn reserve_with(url: &str, server: &Server, block_size: usize, lease: Duration) -> RedisReserve {
    let config = RedisReserveConfig {
        block_size,
        lease,
        ..RedisReserveConfig::default()
    };
    RedisReserve::new(db(url, 2), redis(&server.url()), clock(), config)
}

/// The database allocates nonces to a block, and its answer is lost: they are reserved before any others.
#[tokio::test(flavor = "multi_thread")]
async fn block_whose_answer_was_lost_is_reserved_next() {
    let (database, server) = (
        database("lost_block").await,
        Server::start(Persistence::Nothing),
    );
    let scheme = Arc::new(reserve_with(database.url(), &server, 1, LONG));
    assert_eq!(reserve_nonces(&*scheme, lane(1), 1).await, [0]);
    scheme.list_reservations(lane(1)).await.unwrap(); // it is written
    let mut blocker = client(database.url()).await;
    let held = blocker.transaction().await.unwrap();
    let lock = "SELECT 1 FROM nonce_lane FOR UPDATE";
    held.batch_execute(lock).await.unwrap();
    let unlucky = Arc::clone(&scheme);
    let unlucky = tokio::spawn(async move { unlucky.allocate(lane(1), request()).await });
    wait_until("it requests more, and its connection breaks", async || {
        disconnect_waiting_call(&database, "nonce_take_block")
    })
    .await;
    // The request is executed all the same.
    let take = "SELECT nonce_take_block(l.chain_id, l.signer, l.scheme, k.token, false, 600000, 600000, 0, 1, 1, 100, '{}') \
         FROM nonce_lane AS l JOIN nonce_block_holder AS k USING (lane_id)";
    held.batch_execute(take).await.unwrap();
    held.commit().await.unwrap();
    unlucky.await.unwrap().unwrap_err();
    assert_eq!(reserve_nonces(&*scheme, lane(1), 2).await, [1, 2]);
}

/// Two processes with different leases share a generation: neither trusts its lease longer than the stored one.
#[tokio::test(flavor = "multi_thread")]
async fn shorter_lease_does_not_shorten_a_longer_one() {
    let (database, server) = (
        database("shorter").await,
        Server::start(Persistence::Nothing),
    );
    let long = reserve_with(database.url(), &server, 2, LONG);
    let short = reserve_with(database.url(), &server, 2, Duration::from_secs(5));
    assert_eq!(reserve_nonces(&long, lane(1), 1).await, [0]);
    // It renews the generation, and allocates more nonces to its block.
    assert_eq!(reserve_nonces(&short, lane(1), 3).await, [1, 2, 3]);
    let duration =
        "SELECT count(*) FROM nonce_block_holder WHERE leased_until > now() + interval '5 minutes'";
    assert_eq!(database.query_value(duration).as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_nonces_are_returned_on_close_and_when_idle() {
    let database = database("tail").await;
    let closing = segment(database.url(), LONG);
    reserve_nonces(&*closing, lane(1), 3).await;
    closing.close().await.unwrap();
    let rest = "SELECT count(*) FROM nonce_block_holder";
    assert_eq!(database.query_value(rest).as_deref(), Some("0"));
    let idle = segment(database.url(), Duration::from_secs(3));
    assert_eq!(reserve_nonces(&*idle, lane(1), 1).await, [3]);
    wait_until("it is returned", async || {
        idle.list_watched(10).await.unwrap();
        database.query_value(rest).as_deref() == Some("0")
    })
    .await;
    assert_eq!(reserve_nonces(&*idle, lane(1), 2).await, [4, 5]);
}

/// The database is blocked: no more nonces are handed out than may be unwritten.
#[tokio::test(flavor = "multi_thread")]
async fn unwritten_reservations_are_bounded() {
    let database = database("bounded").await;
    let config = SegmentConfig {
        size: 50,
        lease: LONG,
        unwritten_max: 5,
    };
    let scheme = Segment::new(db(database.url(), 2), clock(), config);
    reserve_nonces(&scheme, lane(1), 1).await;
    scheme.list_reservations(lane(1)).await.unwrap();
    let blocker = client(database.url()).await;
    blocker
        .batch_execute("BEGIN; LOCK TABLE nonce_reservation IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    for _ in 0..5 {
        scheme.allocate(lane(1), request()).await.unwrap();
    }
    let refused = scheme.allocate(lane(1), request()).await;
    assert_eq!(refused, Err(ReservationError::Busy));
    let mark = Mark::Used(B256::with_last_byte(1));
    let refused = scheme.mark(key(lane(1), Nonce(0), holder()), mark).await;
    assert_eq!(refused, Err(ReservationError::Busy));
    blocker.batch_execute("ROLLBACK").await.unwrap();
    wait_until("it continues", async || {
        scheme.allocate(lane(1), request()).await.is_ok()
    })
    .await;
    assert_eq!(
        scheme.list_reservations(lane(1)).await.unwrap().next_nonce,
        Nonce(7)
    );
}

/// The chain passes a nonce that is handed out and not written yet: it keeps its holder.
#[tokio::test(flavor = "multi_thread")]
async fn handed_out_nonce_passed_by_the_chain_keeps_its_holder() {
    let database = database("passed").await;
    let scheme = segment(database.url(), LONG);
    assert_eq!(reserve_nonces(&*scheme, lane(1), 1).await, [0]);
    scheme.list_reservations(lane(1)).await.unwrap(); // it is written
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_reservation WHERE nonce = 1 FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let reserved = scheme.allocate(lane(1), request()).await.unwrap();
    assert_eq!(reserved.nonce, Nonce(1));
    let above = scheme.allocate(lane(1), request_at_least(5)).await.unwrap();
    assert_eq!(above.nonce, Nonce(5));
    blocker.batch_execute("ROLLBACK").await.unwrap();
    let found = scheme
        .find_reservation(key(lane(1), reserved.nonce, reserved.holder))
        .await;
    let found = found.unwrap().expect("it has its holder");
    assert_eq!(found.state, ReservationState::Reserved);
    let free = "SELECT string_agg(nonce::text, ' ' ORDER BY nonce) FROM nonce_reservation \
         WHERE state = 2 AND block_holder IS NULL";
    assert_eq!(database.query_value(free).as_deref(), Some("2 3 4"));
    let other = segment(database.url(), LONG);
    assert_eq!(reserve_nonces(&*other, lane(1), 3).await, [2, 3, 4]);
}

/// Reservations come less often than the lease lasts: no nonce is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn idle_lane_reserves_in_order_through_redis() {
    let (database, server) = (database("quiet").await, Server::start(Persistence::Nothing));
    let config = RedisReserveConfig {
        block_size: 20,
        lease: Duration::from_millis(600),
        ..RedisReserveConfig::default()
    };
    let redis = redis(&server.url());
    let scheme = RedisReserve::new(db(database.url(), 2), redis, clock(), config);
    let mut all = Vec::new();
    for expected in 0..5 {
        let reserved = scheme.allocate(lane(1), request()).await.unwrap();
        assert_eq!(reserved.nonce, Nonce(expected));
        all.push(reserved);
        let began = tokio::time::Instant::now();
        wait_until("the lease is over, and no block is held", async || {
            sweep(&scheme).await;
            let rest = database.query_value("SELECT count(*) FROM nonce_block_holder");
            rest.as_deref() == Some("0") && began.elapsed() > config.lease
        })
        .await;
    }
    assert_eq!(reserve_nonces(&scheme, lane(1), 1).await, [5]);
    // Smaller than all nonces with which this generation began.
    let given = Mark::Recyclable {
        reason: "not needed".into(),
        asked: None,
    };
    let marked = scheme.mark(key(lane(1), Nonce(2), all[2].holder), given);
    marked.await.unwrap();
    assert_eq!(reserve_nonces(&scheme, lane(1), 2).await, [2, 6]);
    scheme.close().await.unwrap();
    let held = "SELECT count(*) FROM nonce_reservation WHERE state = 0";
    assert_eq!(database.query_value(held).as_deref(), Some("7"));
    let rest = "SELECT count(*) FROM nonce_block_holder";
    assert_eq!(database.query_value(rest).as_deref(), Some("0"));
    let other = reserve(database.url(), &server);
    assert_eq!(reserve_nonces(&*other, lane(1), 1).await, [7]);
    other.list_reservations(lane(1)).await.unwrap(); // it is written, and Redis has removed the reservation
    for key in server.run_command(&["KEYS", "*"]).lines() {
        let seconds = server.run_command(&["TTL", key]);
        assert!(seconds.parse::<i64>().unwrap() > 0, "{key}: {seconds}");
    }
}

/// A row of one lane is locked: marks on the other lanes are written all the same.
#[tokio::test(flavor = "multi_thread")]
async fn locked_lane_does_not_delay_the_others() {
    let database = database("locked").await;
    database.exec(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 500', current_database()); END $$",
    );
    let scheme = segment(database.url(), LONG);
    reserve_nonces(&*scheme, lane(1), 1).await;
    let other = scheme.allocate(lane(2), request()).await.unwrap();
    scheme.list_reservations(lane(1)).await.unwrap(); // they are written
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_reservation JOIN nonce_lane USING (lane_id) \
         WHERE nonce = 1 AND signer = decode(repeat('01', 20), 'hex') FOR UPDATE OF nonce_reservation";
    blocker.batch_execute(lock).await.unwrap();
    let waits = scheme.allocate(lane(1), request()).await.unwrap();
    let used = Mark::Used(B256::with_last_byte(1));
    for _ in 0..3 {
        let marked = scheme.mark(key(lane(2), other.nonce, other.holder), used.clone());
        assert_eq!(marked.await.unwrap().state, ReservationState::Used);
    }
    blocker.batch_execute("ROLLBACK").await.unwrap();
    wait_until("the reservation is written", async || {
        let found = scheme
            .find_reservation(key(lane(1), waits.nonce, waits.holder))
            .await;
        found.is_ok_and(|found| found.is_some())
    })
    .await;
}

/// Reservations of many lanes are written in one batch, and then removed from Redis in one call.
#[tokio::test(flavor = "multi_thread")]
async fn written_reservations_of_many_lanes_leave_redis_in_one_call() {
    const LANES: u8 = 5;
    let (database, server) = (
        database("forgotten").await,
        Server::start(Persistence::Nothing),
    );
    let scheme = reserve(database.url(), &server);
    let reserve_on_each = async || {
        for number in 1..=LANES {
            reserve_nonces(&*scheme, lane(number), 1).await;
        }
    };
    reserve_on_each().await;
    scheme.list_reservations(lane(1)).await.unwrap(); // they are written, and the scripts are loaded
    let calls = scripts_called(&server);
    let blocker = client(database.url()).await;
    let lock = "BEGIN; LOCK TABLE nonce_reservation IN EXCLUSIVE MODE";
    blocker.batch_execute(lock).await.unwrap();
    reserve_on_each().await; // the first is being written, the others wait for it
    blocker.batch_execute("ROLLBACK").await.unwrap();
    scheme.list_reservations(lane(1)).await.unwrap();
    let calls = scripts_called(&server) - calls;
    let (reserved, forgotten) = (u64::from(LANES), calls - u64::from(LANES));
    assert!(
        forgotten <= 2,
        "{forgotten} calls for {reserved} reservations"
    );
    for state in server.run_command(&["KEYS", "*:state"]).lines() {
        assert_eq!(
            server.run_command(&["HGET", state, "reserved"]),
            "0",
            "{state}"
        );
    }
    assert_eq!(
        server.run_command(&["KEYS", "*:reserved"]),
        "",
        "no reservation is left"
    );
}

fn scripts_called(server: &Server) -> u64 {
    let stats = server.run_command(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| {
        let counts = line.strip_prefix("cmdstat_evalsha:calls=")?;
        counts.split(',').next()?.parse().ok()
    });
    calls.expect("Redis counts its scripts")
}
