//! Schemes 3 and 5: nonces are handed out before they are written, and whatever fails meanwhile, no nonce has two
//! holders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{B256, Holder, Mark, Nonce, ReservationState};
use nonce::{RedisReserve, RedisReserveConfig, Scheme, Segment, SegmentConfig};
use rig::redis::{Persistence, Redis as Server};

use crate::kit::{
    LONG, clock, database, db, key, lane, redis, request, reserve_nonces, wait_until,
};

/// How many more reservations are awaited before and after each step of a fault.
const PROGRESS_STEP: u64 = 40;

const WORKERS_EACH: usize = 2;

pub(crate) fn reserve(url: &str, server: &Server) -> Arc<dyn Scheme> {
    let config = RedisReserveConfig {
        block_size: 20,
        lease: Duration::from_secs(2),
        generation_age_min: Duration::from_millis(200),
        ..RedisReserveConfig::default()
    };
    let redis = redis(&server.url());
    Arc::new(RedisReserve::new(db(url, 2), redis, clock(), config))
}

pub(crate) fn segment(url: &str, lease: Duration) -> Arc<Segment> {
    let config = SegmentConfig {
        size: 10,
        lease,
        ..SegmentConfig::default()
    };
    Arc::new(Segment::new(db(url, 2), clock(), config))
}

/// The present holders, as the workers know them.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<Nonce, Holder>>,
    reserved: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    async fn wait_for_progress(&self) {
        let goal = self.reserved.load(Ordering::Relaxed) + PROGRESS_STEP;
        wait_until("reserving continues", async || {
            self.reserved.load(Ordering::Relaxed) >= goal
        })
        .await;
    }
}

async fn reserve_and_mark(scheme: Arc<dyn Scheme>, ledger: Arc<Ledger>, worker: usize) {
    let mut round = worker;
    while !ledger.stop.load(Ordering::Relaxed) {
        round += 1;
        let reserved = match scheme.allocate(lane(1), request()).await {
            Ok(reserved) => reserved,
            Err(error) if error.is_worth_repeating() => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let before = ledger
            .held
            .lock()
            .unwrap()
            .insert(reserved.nonce, reserved.holder);
        assert_eq!(before, None, "nonce {} was reserved twice", reserved.nonce);
        ledger.reserved.fetch_add(1, Ordering::Relaxed);
        let mark = match round % 3 {
            0 => Mark::Used(B256::with_last_byte(1)),
            1 => {
                // The next holder may have it before this answer comes.
                ledger.held.lock().unwrap().remove(&reserved.nonce);
                Mark::Recyclable {
                    reason: "not needed".into(),
                    asked: None,
                }
            }
            _ => continue,
        };
        let marked = scheme
            .mark(key(lane(1), reserved.nonce, reserved.holder), mark)
            .await;
        if let Err(error) = marked {
            assert!(error.is_worth_repeating(), "{error:?}");
        }
    }
}

/// Reserves with all schemes while a fault happens.
async fn run_while_reserving(all: &[Arc<dyn Scheme>], fault: impl AsyncFnOnce(&Ledger)) {
    let ledger = Arc::new(Ledger::default());
    let workers: Vec<_> = (0..all.len() * WORKERS_EACH)
        .map(|number| {
            let scheme = Arc::clone(&all[number % all.len()]);
            tokio::spawn(reserve_and_mark(scheme, Arc::clone(&ledger), number))
        })
        .collect();
    ledger.wait_for_progress().await;
    fault(&ledger).await;
    ledger.wait_for_progress().await;
    ledger.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let held = ledger.held.lock().unwrap().clone();
    for (nonce, holder) in held {
        let found = all[0]
            .find_reservation(key(lane(1), nonce, holder))
            .await
            .unwrap();
        let found = found.unwrap_or_else(|| panic!("nonce {nonce} is not its holder's"));
        assert_ne!(found.state, ReservationState::Recyclable);
    }
}

/// Three processes on one Redis.
pub(crate) async fn three_processes(
    hint: &str,
    keeps: Persistence,
) -> (rig::postgres::Database, Server, Vec<Arc<dyn Scheme>>) {
    let (database, server) = (database(hint).await, Server::start(keeps));
    let all = (0..3).map(|_| reserve(database.url(), &server)).collect();
    (database, server, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_restarted_empty() {
    let (_database, server, all) = three_processes("empty", Persistence::Nothing).await;
    run_while_reserving(&all, async |ledger| {
        server.kill();
        ledger.wait_for_progress().await;
        tokio::task::block_in_place(|| server.start_again());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_restarted_with_data() {
    let (_database, server, all) = three_processes("kept", Persistence::Everything).await;
    run_while_reserving(&all, async |ledger| {
        server.kill();
        ledger.wait_for_progress().await;
        tokio::task::block_in_place(|| server.start_again());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_frozen() {
    let (_database, server, all) = three_processes("frozen", Persistence::Nothing).await;
    run_while_reserving(&all, async |ledger| {
        server.freeze();
        ledger.wait_for_progress().await;
        server.thaw();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_flushed() {
    let (_database, server, all) = three_processes("flushed", Persistence::Nothing).await;
    run_while_reserving(&all, async |ledger| {
        for _ in 0..5 {
            tokio::task::block_in_place(|| server.flush());
            ledger.wait_for_progress().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_failover_to_a_lagging_replica() {
    let (_database, mut server, all) = three_processes("lagging", Persistence::Nothing).await;
    run_while_reserving(&all, async |ledger| {
        let mut replica = tokio::task::block_in_place(|| server.replica());
        replica.promote();
        ledger.wait_for_progress().await; // which the replica never receives
        tokio::task::block_in_place(|| replica.take_over(&mut server));
        server = replica;
    })
    .await;
}

/// The old master is demoted and promoted again, with the data of the other, and no connection breaks.
#[tokio::test(flavor = "multi_thread")]
async fn redis_data_is_replaced_on_the_same_connection() {
    let (_database, server, all) = three_processes("turned", Persistence::Nothing).await;
    run_while_reserving(&all, async |ledger| {
        let replica = tokio::task::block_in_place(|| server.replica());
        replica.promote();
        ledger.wait_for_progress().await;
        tokio::task::block_in_place(|| {
            let port = replica.port().to_string();
            server.run_command(&["REPLICAOF", "127.0.0.1", &port]);
            rig::wait_until("it has the data of the other", LONG, || {
                let about = server.run_command(&["INFO", "replication"]);
                about.contains("master_link_status:up").then_some(())
            });
            server.promote();
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_masters_at_once() {
    let (database, old) = (database("split").await, Server::start(Persistence::Nothing));
    let first = reserve(database.url(), &old);
    reserve_nonces(&*first, lane(1), 5).await;
    let new = tokio::task::block_in_place(|| old.replica());
    new.promote();
    let all = [first, reserve(database.url(), &new)];
    // Long enough for several generations to alternate.
    run_while_reserving(&all, async |ledger| {
        for _ in 0..10 {
            ledger.wait_for_progress().await;
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
    run_while_reserving(&all, async |ledger| {
        for _ in 0..5 {
            ledger.wait_for_progress().await;
        }
    })
    .await;
}

/// Every connection to the database breaks repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn database_terminates_all_connections() {
    let database = database("drops").await;
    let server = Server::start(Persistence::Nothing);
    let lease = Duration::from_secs(5);
    let segments: Vec<Arc<dyn Scheme>> = (0..3)
        .map(|_| segment(database.url(), lease) as _)
        .collect();
    let reserves = (0..3).map(|_| reserve(database.url(), &server));
    // Each scheme has its own lane.
    for (all, hint) in [(segments, "segment"), (reserves.collect(), "redis-reserve")] {
        database.exec(
            "DELETE FROM nonce_lane; DELETE FROM nonce_reservation; DELETE FROM nonce_block_holder",
        );
        run_while_reserving(&all, async |ledger| {
            for _ in 0..10 {
                database.exec(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                );
                ledger.wait_for_progress().await;
            }
            eprintln!(
                "{hint}: {} reserved",
                ledger.reserved.load(Ordering::Relaxed)
            );
        })
        .await;
    }
}
