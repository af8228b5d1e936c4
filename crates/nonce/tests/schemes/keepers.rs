//! Schemes 3 and 5: nonces are handed out before they are written down, and whatever breaks meanwhile, nobody is lent
//! what somebody else holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{B256, Holder, Mark, Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::{
    Borrow, RedisReserve, RedisReserveConfig, Scheme, Segment, SegmentConfig, Settlement, Verdict,
};
use rig::redis::{Keeps, Redis as Server};

use crate::kit::{
    LONG, borrow, borrow_at_least, borrowed, client, clock, database, db, holder, lane, redis,
    until,
};

/// How many more must be lent before and after each step of a fault.
const ENOUGH: u64 = 40;

const BORROWERS_EACH: usize = 2;

/// So long a loan lasts where it must become overdue in a test.
const SHORT: Duration = Duration::from_millis(300);

fn reserve(url: &str, server: &Server) -> Arc<dyn Scheme> {
    let config = RedisReserveConfig {
        block: 20,
        permission: Duration::from_secs(2),
        patience: Duration::from_millis(200),
        ..RedisReserveConfig::default()
    };
    let redis = redis(&server.url());
    Arc::new(RedisReserve::new(db(url, 2), redis, clock(), config))
}

fn segment(url: &str, lease: Duration) -> Arc<Segment> {
    let config = SegmentConfig {
        size: 10,
        lease,
        ..SegmentConfig::default()
    };
    Arc::new(Segment::new(db(url, 2), clock(), config))
}

/// Who holds what at this moment, as the borrowers know it.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<Nonce, Holder>>,
    lent: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    async fn goes_on(&self) {
        let goal = self.lent.load(Ordering::Relaxed) + ENOUGH;
        until("borrowing goes on", async || {
            self.lent.load(Ordering::Relaxed) >= goal
        })
        .await;
    }
}

async fn borrow_and_mark(scheme: Arc<dyn Scheme>, ledger: Arc<Ledger>, borrower: usize) {
    let mut round = borrower;
    while !ledger.stop.load(Ordering::Relaxed) {
        round += 1;
        let lent = match scheme.allocate(lane(1), borrow()).await {
            Ok(lent) => lent,
            Err(error) if error.is_worth_repeating() => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let before = ledger.held.lock().unwrap().insert(lent.nonce, lent.holder);
        assert_eq!(before, None, "nonce {} was lent twice", lent.nonce);
        ledger.lent.fetch_add(1, Ordering::Relaxed);
        let mark = match round % 3 {
            0 => Mark::Used(B256::with_last_byte(1)),
            1 => {
                // Whoever gets it next may have it before our answer comes.
                ledger.held.lock().unwrap().remove(&lent.nonce);
                Mark::Recyclable {
                    reason: "not needed".into(),
                    asked: None,
                }
            }
            _ => continue,
        };
        let marked = scheme.mark(lane(1), lent.nonce, lent.holder, mark).await;
        if let Err(error) = marked {
            assert!(error.is_worth_repeating(), "{error:?}");
        }
    }
}

/// Has all of them borrow while something happens.
async fn meanwhile(all: &[Arc<dyn Scheme>], happens: impl AsyncFnOnce(&Ledger)) {
    let ledger = Arc::new(Ledger::default());
    let borrowers: Vec<_> = (0..all.len() * BORROWERS_EACH)
        .map(|number| {
            let scheme = Arc::clone(&all[number % all.len()]);
            tokio::spawn(borrow_and_mark(scheme, Arc::clone(&ledger), number))
        })
        .collect();
    ledger.goes_on().await;
    happens(&ledger).await;
    ledger.goes_on().await;
    ledger.stop.store(true, Ordering::Relaxed);
    for borrower in borrowers {
        borrower.await.unwrap();
    }
    let held = ledger.held.lock().unwrap().clone();
    for (nonce, holder) in held {
        let found = all[0].reservation(lane(1), nonce, holder).await.unwrap();
        let found = found.unwrap_or_else(|| panic!("nonce {nonce} is not its holder's"));
        assert_ne!(found.state, ReservationState::Recyclable);
    }
}

/// Three processes on one Redis.
async fn three(
    hint: &str,
    keeps: Keeps,
) -> (rig::postgres::Database, Server, Vec<Arc<dyn Scheme>>) {
    let (database, server) = (database(hint).await, Server::start(keeps));
    let all = (0..3).map(|_| reserve(database.url(), &server)).collect();
    (database, server, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_empty() {
    let (_database, server, all) = three("empty", Keeps::Nothing).await;
    meanwhile(&all, async |ledger| {
        server.kill();
        ledger.goes_on().await;
        tokio::task::block_in_place(|| server.start_again());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_kept() {
    let (_database, server, all) = three("kept", Keeps::Everything).await;
    meanwhile(&all, async |ledger| {
        server.kill();
        ledger.goes_on().await;
        tokio::task::block_in_place(|| server.start_again());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_frozen() {
    let (_database, server, all) = three("frozen", Keeps::Nothing).await;
    meanwhile(&all, async |ledger| {
        server.freeze();
        ledger.goes_on().await;
        server.thaw();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_flushed() {
    let (_database, server, all) = three("flushed", Keeps::Nothing).await;
    meanwhile(&all, async |ledger| {
        for _ in 0..5 {
            tokio::task::block_in_place(|| server.flush());
            ledger.goes_on().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_failed_over_to_a_replica_that_lags() {
    let (_database, mut server, all) = three("lagging", Keeps::Nothing).await;
    meanwhile(&all, async |ledger| {
        let mut replica = tokio::task::block_in_place(|| server.replica());
        replica.promote();
        ledger.goes_on().await; // which the replica never hears of
        tokio::task::block_in_place(|| replica.take_over(&mut server));
        server = replica;
    })
    .await;
}

/// The old master is demoted and promoted again, with the data of the other, and nobody's connection breaks.
#[tokio::test(flavor = "multi_thread")]
async fn redis_is_another_one_on_the_same_connection() {
    let (_database, server, all) = three("turned", Keeps::Nothing).await;
    meanwhile(&all, async |ledger| {
        let replica = tokio::task::block_in_place(|| server.replica());
        replica.promote();
        ledger.goes_on().await;
        tokio::task::block_in_place(|| {
            let port = replica.port().to_string();
            server.ask(&["REPLICAOF", "127.0.0.1", &port]);
            rig::until("it has the other's data", LONG, || {
                let about = server.ask(&["INFO", "replication"]);
                about.contains("master_link_status:up").then_some(())
            });
            server.promote();
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_masters_at_once() {
    let (database, old) = (database("split").await, Server::start(Keeps::Nothing));
    let first = reserve(database.url(), &old);
    borrowed(&*first, lane(1), 5).await;
    let new = tokio::task::block_in_place(|| old.replica());
    new.promote();
    let all = [first, reserve(database.url(), &new)];
    // Long enough for several generations to take turns.
    meanwhile(&all, async |ledger| {
        for _ in 0..10 {
            ledger.goes_on().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_of_three_processes() {
    let database = database("segments").await;
    let lease = Duration::from_secs(5);
    let all: Vec<Arc<dyn Scheme>> = (0..3)
        .map(|_| segment(database.url(), lease) as _)
        .collect();
    meanwhile(&all, async |ledger| {
        for _ in 0..5 {
            ledger.goes_on().await;
        }
    })
    .await;
}

/// Every connection to the database breaks, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_drops_everybody() {
    let database = database("drops").await;
    let server = Server::start(Keeps::Nothing);
    let lease = Duration::from_secs(5);
    let segments: Vec<Arc<dyn Scheme>> = (0..3)
        .map(|_| segment(database.url(), lease) as _)
        .collect();
    let reserves = (0..3).map(|_| reserve(database.url(), &server));
    // Each scheme has its own lane.
    for (all, hint) in [(segments, "segment"), (reserves.collect(), "redis-reserve")] {
        database.exec(
            "DELETE FROM nonce_lane; DELETE FROM nonce_reservation; DELETE FROM nonce_keeper",
        );
        meanwhile(&all, async |ledger| {
            for _ in 0..10 {
                database.exec(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                );
                ledger.goes_on().await;
            }
            eprintln!("{hint}: {} lent", ledger.lent.load(Ordering::Relaxed));
        })
        .await;
    }
}

/// Sweeps as if the chain showed nothing.
async fn sweep(scheme: &dyn Scheme) {
    let watched = scheme.to_watch(100).await.unwrap();
    let settlements: Vec<_> = watched
        .into_iter()
        .map(|seen| Settlement {
            seen,
            verdict: Verdict::Free,
        })
        .collect();
    scheme.settle(&settlements).await.unwrap();
}

fn short() -> Borrow {
    Borrow {
        holder: holder(),
        timeout: SHORT,
        ..borrow()
    }
}

/// A process dies and has said nothing of its segment: everything comes back, and not before its time.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_kept_comes_back() {
    let database = database("dead").await;
    let dead = segment(database.url(), SHORT);
    dead.allocate(lane(1), short()).await.unwrap();
    drop(dead);
    let next = segment(database.url(), Duration::from_secs(60));
    let first = next.allocate(lane(1), borrow()).await.unwrap();
    assert_eq!(first.nonce, Nonce(10), "the rest is the other's");
    until("the segment is free", async || {
        sweep(&*next).await;
        let free = "SELECT count(*) FROM nonce_reservation WHERE state = 2 AND keeper IS NULL";
        database.ask(free).as_deref() == Some("10")
    })
    .await;
    let again = borrowed(&*next, lane(1), 10).await;
    assert_eq!(again, (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_kept_comes_back() {
    let (database, server, all) = three("gone", Keeps::Nothing).await;
    all[0].allocate(lane(1), short()).await.unwrap();
    tokio::task::block_in_place(|| server.kill());
    until("everything is free", async || {
        sweep(&*all[1]).await;
        let kept = "SELECT count(*) FROM nonce_reservation WHERE state = 0 OR keeper IS NOT NULL";
        database.ask(kept).as_deref() == Some("0")
    })
    .await;
    assert_eq!(borrowed(&*all[2], lane(1), 3).await, [0, 1, 2]);
    tokio::task::block_in_place(|| server.start_again());
    until("Redis hands out again", async || {
        borrowed(&*all[2], lane(1), 1).await;
        !server.ask(&["KEYS", "*:free"]).is_empty()
    })
    .await;
}

/// A nonce of an older generation is given back below everything that the present one began with.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_from_before_a_generation_is_lent_by_it() {
    let database = database("keepers").await;
    let server = Server::start(Keeps::Nothing);
    let scheme = reserve(database.url(), &server);
    let first = scheme.allocate(lane(1), borrow()).await.unwrap();
    server.flush();
    until(
        "the next generation lends, above what the last one kept",
        async || {
            let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
            server.ask(&["DBSIZE"]) != "0" && lent.nonce.0 > first.nonce.0 + 20
        },
    )
    .await;
    let back = Mark::Recyclable {
        reason: "not needed".into(),
        asked: None,
    };
    let given = scheme.mark(lane(1), first.nonce, first.holder, back).await;
    given.unwrap();
    until("it is lent again", async || {
        let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
        lent.nonce == first.nonce
    })
    .await;
}

/// A process dies between Redis' answer and the database: its holder is written down all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_loan_that_only_redis_knows_is_written_down() {
    let (database, server, all) = three("loan", Keeps::Nothing).await;
    borrowed(&*all[0], lane(1), 2).await;
    let whole = all[0].reservation(lane(1), Nonce(0), holder()).await;
    assert_eq!(whole, Ok(None));
    let key = server.ask(&["KEYS", "*:free"]);
    let base = key.trim_end_matches("free");
    let stint = server.ask(&["HGET", &format!("{base}stints"), "2"]);
    let who = holder();
    // What the script does.
    server.ask(&["ZREM", &key, "2"]);
    let loan = format!("{} {stint} 1900000000000", who.0);
    server.ask(&["HSET", &format!("{base}lent"), "2", &loan]);
    server.ask(&["HINCRBY", &format!("{base}state"), "free", "-1"]);
    server.ask(&["HINCRBY", &format!("{base}state"), "lent", "1"]);
    until("it is written down", async || {
        all[0].to_watch(10).await.unwrap();
        let sql = format!(
            "SELECT count(*) FROM nonce_reservation WHERE holder = '{}'",
            who.0
        );
        database.ask(&sql).as_deref() == Some("1")
    })
    .await;
    let lost = server.ask(&["HLEN", &format!("{base}lent")]);
    until("Redis forgets it", async || {
        server.ask(&["HLEN", &format!("{base}lent")]) == "0"
    })
    .await;
    assert!(lost.parse::<u64>().unwrap() <= 1);
    assert_eq!(borrowed(&*all[0], lane(1), 1).await, [3]);
}

/// Whether a call of this function waits for a lock; its connection breaks.
fn broken_off(database: &rig::postgres::Database, function: &str) -> bool {
    let ended = database.ask(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
           AND wait_event_type = 'Lock' AND query LIKE '%{function}%'"
    ));
    ended.as_deref() != Some("0")
}

/// A process dies when it has taken everything out of Redis and not freed it, and another one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_took_out_of_redis_is_lent_again() {
    let (database, server, all) = three("drained", Keeps::Nothing).await;
    let (dying, other) = (Arc::clone(&all[0]), &*all[1]);
    assert_eq!(borrowed(&*dying, lane(1), 1).await, [0]);
    assert_eq!(borrowed(other, lane(1), 1).await, [1]);
    for scheme in [&*dying, other] {
        scheme.list_reservations(lane(1)).await.unwrap(); // it is written down
    }
    // What the dying one is about to say.
    let its_word = database.ask(
        "SELECT format('SELECT nonce_put_back_2(%L, %L, %L)', keeper, array_agg(nonce), array_agg(stint)) \
         FROM nonce_reservation WHERE keeper IS NOT NULL GROUP BY keeper",
    );
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_keeper FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let dies = tokio::spawn(async move { dying.close().await });
    until("it comes to free them, and dies", async || {
        broken_off(&database, "nonce_put_back")
    })
    .await;
    dies.await.unwrap().unwrap_err();
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(
        server.ask(&["KEYS", "*:free"]),
        "",
        "Redis has none of them"
    );
    let mut lent = borrowed(other, lane(1), 1).await;
    assert_eq!(lent, [20], "they are a gap");
    until("the first of them is lent again", async || {
        other.to_watch(10).await.unwrap();
        lent.extend(borrowed(other, lane(1), 1).await);
        lent.contains(&2)
    })
    .await;
    // The others are kept again, and may be lent at any moment: what was said before does not free them.
    database.exec(&its_word.expect("they were kept"));
    let kept = "SELECT count(*) FROM nonce_reservation WHERE nonce < 20 AND keeper IS NOT NULL";
    assert_eq!(database.ask(kept).as_deref(), Some("17"));
    lent.extend(borrowed(other, lane(1), 17).await);
    lent.sort_unstable();
    let first: Vec<u64> = (2..).take(lent.len()).collect();
    assert_eq!(lent, first, "each once, and no gap is left");
}

/// Redis, with blocks of this size and leases of this length.
fn reserve_with(url: &str, server: &Server, block: usize, permission: Duration) -> RedisReserve {
    let config = RedisReserveConfig {
        block,
        permission,
        ..RedisReserveConfig::default()
    };
    RedisReserve::new(db(url, 2), redis(&server.url()), clock(), config)
}

/// The database sets nonces aside, and its answer is lost: they are lent before any others.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_aside_without_an_answer_is_lent_next() {
    let (database, server) = (database("unheard").await, Server::start(Keeps::Nothing));
    let scheme = Arc::new(reserve_with(database.url(), &server, 1, LONG));
    assert_eq!(borrowed(&*scheme, lane(1), 1).await, [0]);
    scheme.list_reservations(lane(1)).await.unwrap(); // it is written down
    let mut blocker = client(database.url()).await;
    let held = blocker.transaction().await.unwrap();
    let lock = "SELECT 1 FROM nonce_lane FOR UPDATE";
    held.batch_execute(lock).await.unwrap();
    let unlucky = Arc::clone(&scheme);
    let unlucky = tokio::spawn(async move { unlucky.allocate(lane(1), borrow()).await });
    until("it asks for more, and hears nothing", async || {
        broken_off(&database, "nonce_take")
    })
    .await;
    // What it asked for happens all the same.
    let take = "SELECT nonce_take_1(l.chain_id, l.signer, l.scheme, k.token, false, 600000, 600000, 0, 1, 1, 100, '{}') \
         FROM nonce_lane AS l JOIN nonce_keeper AS k USING (lane_id)";
    held.batch_execute(take).await.unwrap();
    held.commit().await.unwrap();
    unlucky.await.unwrap().unwrap_err();
    assert_eq!(borrowed(&*scheme, lane(1), 2).await, [1, 2]);
}

/// Two processes with different leases share a generation: nobody's trust outlives what is written down.
#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_lease_does_not_shorten_a_longer_one() {
    let (database, server) = (database("shorter").await, Server::start(Keeps::Nothing));
    let long = reserve_with(database.url(), &server, 2, LONG);
    let short = reserve_with(database.url(), &server, 2, Duration::from_secs(5));
    assert_eq!(borrowed(&long, lane(1), 1).await, [0]);
    // It confirms the generation, and has more set aside for it.
    assert_eq!(borrowed(&short, lane(1), 3).await, [1, 2, 3]);
    let lasts =
        "SELECT count(*) FROM nonce_keeper WHERE leased_until > now() + interval '5 minutes'";
    assert_eq!(database.ask(lasts).as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_is_given_back_at_the_end_and_when_nobody_asks() {
    let database = database("tail").await;
    let closing = segment(database.url(), LONG);
    borrowed(&*closing, lane(1), 3).await;
    closing.close().await.unwrap();
    let kept = "SELECT count(*) FROM nonce_keeper";
    assert_eq!(database.ask(kept).as_deref(), Some("0"));
    let idle = segment(database.url(), Duration::from_secs(3));
    assert_eq!(borrowed(&*idle, lane(1), 1).await, [3]);
    until("it is given back", async || {
        idle.to_watch(10).await.unwrap();
        database.ask(kept).as_deref() == Some("0")
    })
    .await;
    assert_eq!(borrowed(&*idle, lane(1), 2).await, [4, 5]);
}

/// The database stands still: no more is handed out than may be unwritten.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_written_down_is_bounded() {
    let database = database("bounded").await;
    let config = SegmentConfig {
        size: 50,
        lease: LONG,
        unwritten_max: 5,
    };
    let scheme = Segment::new(db(database.url(), 2), clock(), config);
    borrowed(&scheme, lane(1), 1).await;
    scheme.list_reservations(lane(1)).await.unwrap();
    let blocker = client(database.url()).await;
    blocker
        .batch_execute("BEGIN; LOCK TABLE nonce_reservation IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    for _ in 0..5 {
        scheme.allocate(lane(1), borrow()).await.unwrap();
    }
    let refused = scheme.allocate(lane(1), borrow()).await;
    assert_eq!(refused, Err(ReservationError::Busy));
    let mark = Mark::Used(B256::with_last_byte(1));
    let refused = scheme.mark(lane(1), Nonce(0), holder(), mark).await;
    assert_eq!(refused, Err(ReservationError::Busy));
    blocker.batch_execute("ROLLBACK").await.unwrap();
    until("it goes on", async || {
        scheme.allocate(lane(1), borrow()).await.is_ok()
    })
    .await;
    assert_eq!(
        scheme.list_reservations(lane(1)).await.unwrap().next_nonce,
        Nonce(7)
    );
}

/// The chain goes past what is handed out and not written down yet: it stays its holder's.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_chain_went_past_is_not_free_while_it_is_handed_out() {
    let database = database("passed").await;
    let scheme = segment(database.url(), LONG);
    assert_eq!(borrowed(&*scheme, lane(1), 1).await, [0]);
    scheme.list_reservations(lane(1)).await.unwrap(); // it is written down
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_reservation WHERE nonce = 1 FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
    assert_eq!(lent.nonce, Nonce(1));
    let above = scheme.allocate(lane(1), borrow_at_least(5)).await.unwrap();
    assert_eq!(above.nonce, Nonce(5));
    blocker.batch_execute("ROLLBACK").await.unwrap();
    let found = scheme.reservation(lane(1), lent.nonce, lent.holder).await;
    let found = found.unwrap().expect("it is his");
    assert_eq!(found.state, ReservationState::Reserved);
    let free = "SELECT string_agg(nonce::text, ' ' ORDER BY nonce) FROM nonce_reservation \
         WHERE state = 2 AND keeper IS NULL";
    assert_eq!(database.ask(free).as_deref(), Some("2 3 4"));
    let other = segment(database.url(), LONG);
    assert_eq!(borrowed(&*other, lane(1), 3).await, [2, 3, 4]);
}

/// Somebody borrows now and then, more seldom than the lease lasts: nothing is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_lane_lends_in_order_through_redis() {
    let (database, server) = (database("quiet").await, Server::start(Keeps::Nothing));
    let config = RedisReserveConfig {
        block: 20,
        permission: Duration::from_millis(600),
        ..RedisReserveConfig::default()
    };
    let redis = redis(&server.url());
    let scheme = RedisReserve::new(db(database.url(), 2), redis, clock(), config);
    let mut all = Vec::new();
    for expected in 0..5 {
        let lent = scheme.allocate(lane(1), borrow()).await.unwrap();
        assert_eq!(lent.nonce, Nonce(expected));
        all.push(lent);
        let began = tokio::time::Instant::now();
        until("the lease is over, and nothing is kept", async || {
            sweep(&scheme).await;
            let kept = database.ask("SELECT count(*) FROM nonce_keeper");
            kept.as_deref() == Some("0") && began.elapsed() > config.permission
        })
        .await;
    }
    assert_eq!(borrowed(&scheme, lane(1), 1).await, [5]);
    // Smaller than all that this generation began with.
    let given = Mark::Recyclable {
        reason: "not needed".into(),
        asked: None,
    };
    let said = scheme.mark(lane(1), Nonce(2), all[2].holder, given);
    said.await.unwrap();
    assert_eq!(borrowed(&scheme, lane(1), 2).await, [2, 6]);
    scheme.close().await.unwrap();
    let held = "SELECT count(*) FROM nonce_reservation WHERE state = 0";
    assert_eq!(database.ask(held).as_deref(), Some("7"));
    let kept = "SELECT count(*) FROM nonce_keeper";
    assert_eq!(database.ask(kept).as_deref(), Some("0"));
    let other = reserve(database.url(), &server);
    assert_eq!(borrowed(&*other, lane(1), 1).await, [7]);
    other.list_reservations(lane(1)).await.unwrap(); // it is written down, and Redis has forgotten the loan
    for key in server.ask(&["KEYS", "*"]).lines() {
        let seconds = server.ask(&["TTL", key]);
        assert!(seconds.parse::<i64>().unwrap() > 0, "{key}: {seconds}");
    }
}

/// Somebody has a row of one lane locked: what is said of the others is written down all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_locked_does_not_stop_the_others() {
    let database = database("locked").await;
    database.exec(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 500', current_database()); END $$",
    );
    let scheme = segment(database.url(), LONG);
    borrowed(&*scheme, lane(1), 1).await;
    let other = scheme.allocate(lane(2), borrow()).await.unwrap();
    scheme.list_reservations(lane(1)).await.unwrap(); // they are written down
    let blocker = client(database.url()).await;
    let lock = "BEGIN; SELECT 1 FROM nonce_reservation JOIN nonce_lane USING (lane_id) \
         WHERE nonce = 1 AND signer = decode(repeat('01', 20), 'hex') FOR UPDATE OF nonce_reservation";
    blocker.batch_execute(lock).await.unwrap();
    let waits = scheme.allocate(lane(1), borrow()).await.unwrap();
    let used = Mark::Used(B256::with_last_byte(1));
    for _ in 0..3 {
        let said = scheme.mark(lane(2), other.nonce, other.holder, used.clone());
        assert_eq!(said.await.unwrap().state, ReservationState::Used);
    }
    blocker.batch_execute("ROLLBACK").await.unwrap();
    until("the loan is written down", async || {
        let found = scheme.reservation(lane(1), waits.nonce, waits.holder).await;
        found.is_ok_and(|found| found.is_some())
    })
    .await;
}

/// The books are told of many lanes in one batch, and then Redis is in one call.
#[tokio::test(flavor = "multi_thread")]
async fn loans_of_many_lanes_are_forgotten_in_one_call() {
    const LANES: u8 = 5;
    let (database, server) = (database("forgotten").await, Server::start(Keeps::Nothing));
    let scheme = reserve(database.url(), &server);
    let borrow_on_each = async || {
        for number in 1..=LANES {
            borrowed(&*scheme, lane(number), 1).await;
        }
    };
    borrow_on_each().await;
    scheme.list_reservations(lane(1)).await.unwrap(); // they are written down, and the scripts are known
    let calls = scripts_called(&server);
    let blocker = client(database.url()).await;
    let lock = "BEGIN; LOCK TABLE nonce_reservation IN EXCLUSIVE MODE";
    blocker.batch_execute(lock).await.unwrap();
    borrow_on_each().await; // the first is being written, the others wait for it
    blocker.batch_execute("ROLLBACK").await.unwrap();
    scheme.list_reservations(lane(1)).await.unwrap();
    let calls = scripts_called(&server) - calls;
    let (reserved, forgotten) = (u64::from(LANES), calls - u64::from(LANES));
    assert!(forgotten <= 2, "{forgotten} calls for {reserved} loans");
    for state in server.ask(&["KEYS", "*:state"]).lines() {
        assert_eq!(server.ask(&["HGET", state, "lent"]), "0", "{state}");
    }
    assert_eq!(server.ask(&["KEYS", "*:lent"]), "", "no loan is left");
}

fn scripts_called(server: &Server) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| {
        let counts = line.strip_prefix("cmdstat_evalsha:calls=")?;
        counts.split(',').next()?.parse().ok()
    });
    calls.expect("Redis counts its scripts")
}
