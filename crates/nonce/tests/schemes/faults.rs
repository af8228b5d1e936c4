//! Redis fails in every way while three processes reserve: no nonce is reserved twice, and Redis is used again by itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{B256, Holder, Mark, Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::redis::{LaneLock, LockConfig, Redis};
use nonce::{RedisIssue, RowLock, Scheme};
use rig::redis::{Persistence, Redis as Server};

use crate::kit::{database, db, key, lane, redis, request, wait_until};

/// Three processes, each with its own connections.
const PROCESSES: usize = 3;
const WORKERS_EACH: usize = 2;

/// How many more reservations are awaited before and after each step of a fault.
const PROGRESS_STEP: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Fault {
    KilledAndEmpty,
    KilledAndKept,
    Frozen,
    Flushed,
    LaggingReplicaPromoted,
}

const FAULTS: [Fault; 5] = [
    Fault::KilledAndEmpty,
    Fault::KilledAndKept,
    Fault::Frozen,
    Fault::Flushed,
    Fault::LaggingReplicaPromoted,
];

/// The present holders, as the workers know them.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<Nonce, Holder>>,
    reserved: AtomicU64,
    stop: AtomicBool,
}

struct Process {
    scheme: Arc<dyn Scheme>,
    redis: Arc<Redis>,
}

async fn reserve_and_mark(scheme: Arc<dyn Scheme>, ledger: Arc<Ledger>, worker: usize) {
    let mut round = worker;
    while !ledger.stop.load(Ordering::Relaxed) {
        round += 1;
        let reserved = match scheme.allocate(lane(1), request()).await {
            Ok(reserved) => reserved,
            Err(ReservationError::Busy) => continue,
            Err(error) => panic!("PostgreSQL is available: {error:?}"),
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
        scheme
            .mark(key(lane(1), reserved.nonce, reserved.holder), mark)
            .await
            .unwrap();
    }
}

async fn wait_for_progress(ledger: &Ledger) {
    let goal = ledger.reserved.load(Ordering::Relaxed) + PROGRESS_STEP;
    wait_until("reserving continues", async || {
        ledger.reserved.load(Ordering::Relaxed) >= goal
    })
    .await;
}

/// Returns the server at the address afterwards.
async fn inject_fault(
    mut server: Server,
    fault: Fault,
    ledger: &Ledger,
    all: &[Process],
) -> Server {
    match fault {
        Fault::KilledAndEmpty | Fault::KilledAndKept => {
            server.kill();
            wait_until_degraded(ledger, all).await;
            tokio::task::block_in_place(|| server.start_again());
        }
        Fault::Frozen => {
            server.freeze();
            wait_until_degraded(ledger, all).await;
            server.thaw();
        }
        Fault::Flushed => {
            for _ in 0..5 {
                tokio::task::block_in_place(|| server.flush());
                wait_for_progress(ledger).await;
            }
        }
        Fault::LaggingReplicaPromoted => {
            let mut replica = tokio::task::block_in_place(|| server.replica());
            replica.promote();
            wait_for_progress(ledger).await; // which the replica never receives
            tokio::task::block_in_place(|| replica.take_over(&mut server));
            server = replica;
        }
    }
    server
}

async fn wait_until_degraded(ledger: &Ledger, all: &[Process]) {
    wait_for_progress(ledger).await;
    wait_until("Redis is bypassed", async || {
        all.iter().all(|p| !p.redis.is_available())
    })
    .await;
    wait_for_progress(ledger).await;
}

async fn run_with_fault(
    fault: Fault,
    build_reservation: impl Fn(&str, Arc<Redis>) -> Arc<dyn Scheme>,
) {
    let database = database("faults").await;
    let keeps = match fault {
        Fault::KilledAndKept => Persistence::Everything,
        Fault::KilledAndEmpty | Fault::Frozen | Fault::Flushed | Fault::LaggingReplicaPromoted => {
            Persistence::Nothing
        }
    };
    let server = Server::start(keeps);
    let ledger = Arc::new(Ledger::default());
    let all: Vec<Process> = (0..PROCESSES)
        .map(|_| {
            let redis = redis(&server.url());
            let scheme = build_reservation(database.url(), Arc::clone(&redis));
            Process { scheme, redis }
        })
        .collect();
    let workers: Vec<_> = (0..PROCESSES * WORKERS_EACH)
        .map(|number| {
            let scheme = Arc::clone(&all[number % PROCESSES].scheme);
            tokio::spawn(reserve_and_mark(scheme, Arc::clone(&ledger), number))
        })
        .collect();
    wait_for_progress(&ledger).await;
    let server = inject_fault(server, fault, &ledger, &all).await;
    wait_for_progress(&ledger).await;
    wait_until("Redis is used again", async || {
        all.iter().all(|p| p.redis.is_available())
    })
    .await;
    let asked = || server.run_command(&["INFO", "commandstats"]);
    let before = asked();
    wait_for_progress(&ledger).await;
    assert_ne!(asked(), before, "Redis is called again");
    ledger.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    assert_ledger_matches(&ledger, all[0].scheme.as_ref(), &database).await;
    drop(server);
}

/// The ledger agrees with the workers, and no nonce is missing in between.
async fn assert_ledger_matches(
    ledger: &Ledger,
    scheme: &dyn Scheme,
    database: &rig::postgres::Database,
) {
    let held = ledger.held.lock().unwrap().clone();
    for (nonce, holder) in &held {
        let found = scheme
            .find_reservation(key(lane(1), *nonce, *holder))
            .await
            .unwrap();
        let found = found.unwrap_or_else(|| panic!("nonce {nonce} is not its holder's"));
        assert_ne!(found.state, ReservationState::Recyclable);
    }
    wait_until("no nonce is missing", async || {
        scheme.list_watched(10).await.unwrap();
        let missing = "SELECT max(nonce) + 1 - count(*) FROM nonce_reservation";
        database.query_value(missing).as_deref() == Some("0")
    })
    .await;
    let open = "SELECT count(*) FROM nonce_reservation WHERE state <> 2";
    assert_eq!(database.query_value(open), Some(held.len().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_lock_with_redis_survives_every_fault() {
    for fault in FAULTS {
        run_with_fault(fault, |url, redis| {
            let lock = LaneLock::new(redis, LockConfig::default());
            Arc::new(RowLock::new(db(url, 2), Some(lock)))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_issue_survives_every_fault() {
    for fault in FAULTS {
        run_with_fault(fault, |url, redis| {
            Arc::new(RedisIssue::new(db(url, 2), redis, Duration::ZERO))
        })
        .await;
    }
}
