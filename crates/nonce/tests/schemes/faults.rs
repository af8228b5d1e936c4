//! Redis breaks in every way while three processes borrow: nothing is lent twice, and it comes back by itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{B256, Holder, Mark, Nonce, ReservationState};
use engine::ports::ReservationError;
use nonce::redis::{LaneLock, LockConfig, Redis};
use nonce::{RedisIssue, RowLock, Scheme};
use rig::redis::{Keeps, Redis as Server};

use crate::kit::{borrow, database, db, lane, redis, until};

/// Three processes; each has connections of its own.
const PROCESSES: usize = 3;
const BORROWERS_EACH: usize = 2;

/// How many more must be lent before and after each step of a fault.
const ENOUGH: u64 = 40;

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

/// Who holds what at this moment, as the borrowers know it.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<Nonce, Holder>>,
    lent: AtomicU64,
    stop: AtomicBool,
}

struct Process {
    scheme: Arc<dyn Scheme>,
    redis: Arc<Redis>,
}

async fn borrow_and_mark(scheme: Arc<dyn Scheme>, ledger: Arc<Ledger>, borrower: usize) {
    let mut round = borrower;
    while !ledger.stop.load(Ordering::Relaxed) {
        round += 1;
        let lent = match scheme.allocate(lane(1), borrow()).await {
            Ok(lent) => lent,
            Err(ReservationError::Busy) => continue,
            Err(error) => panic!("PostgreSQL is well: {error:?}"),
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
        scheme
            .mark(lane(1), lent.nonce, lent.holder, mark)
            .await
            .unwrap();
    }
}

async fn more_are_lent(ledger: &Ledger) {
    let goal = ledger.lent.load(Ordering::Relaxed) + ENOUGH;
    until("borrowing goes on", async || {
        ledger.lent.load(Ordering::Relaxed) >= goal
    })
    .await;
}

/// The server that stands at the address afterwards.
async fn strike(mut server: Server, fault: Fault, ledger: &Ledger, all: &[Process]) -> Server {
    match fault {
        Fault::KilledAndEmpty | Fault::KilledAndKept => {
            server.kill();
            is_left_out(ledger, all).await;
            tokio::task::block_in_place(|| server.start_again());
        }
        Fault::Frozen => {
            server.freeze();
            is_left_out(ledger, all).await;
            server.thaw();
        }
        Fault::Flushed => {
            for _ in 0..5 {
                tokio::task::block_in_place(|| server.flush());
                more_are_lent(ledger).await;
            }
        }
        Fault::LaggingReplicaPromoted => {
            let mut replica = tokio::task::block_in_place(|| server.replica());
            replica.promote();
            more_are_lent(ledger).await; // which the replica never hears of
            tokio::task::block_in_place(|| replica.take_over(&mut server));
            server = replica;
        }
    }
    server
}

async fn is_left_out(ledger: &Ledger, all: &[Process]) {
    more_are_lent(ledger).await;
    until("Redis is left out", async || {
        all.iter().all(|p| !p.redis.is_well())
    })
    .await;
    more_are_lent(ledger).await;
}

async fn survives(fault: Fault, make: impl Fn(&str, Arc<Redis>) -> Arc<dyn Scheme>) {
    let database = database("faults").await;
    let keeps = match fault {
        Fault::KilledAndKept => Keeps::Everything,
        Fault::KilledAndEmpty | Fault::Frozen | Fault::Flushed | Fault::LaggingReplicaPromoted => {
            Keeps::Nothing
        }
    };
    let server = Server::start(keeps);
    let ledger = Arc::new(Ledger::default());
    let all: Vec<Process> = (0..PROCESSES)
        .map(|_| {
            let redis = redis(&server.url());
            let scheme = make(database.url(), Arc::clone(&redis));
            Process { scheme, redis }
        })
        .collect();
    let borrowers: Vec<_> = (0..PROCESSES * BORROWERS_EACH)
        .map(|number| {
            let scheme = Arc::clone(&all[number % PROCESSES].scheme);
            tokio::spawn(borrow_and_mark(scheme, Arc::clone(&ledger), number))
        })
        .collect();
    more_are_lent(&ledger).await;
    let server = strike(server, fault, &ledger, &all).await;
    more_are_lent(&ledger).await;
    until("Redis is used again", async || {
        all.iter().all(|p| p.redis.is_well())
    })
    .await;
    let asked = || server.ask(&["INFO", "commandstats"]);
    let before = asked();
    more_are_lent(&ledger).await;
    assert_ne!(asked(), before, "Redis is asked again");
    ledger.stop.store(true, Ordering::Relaxed);
    for borrower in borrowers {
        borrower.await.unwrap();
    }
    agrees(&ledger, all[0].scheme.as_ref(), &database).await;
    drop(server);
}

/// The books say the same as the borrowers, and nothing is missing in between.
async fn agrees(ledger: &Ledger, scheme: &dyn Scheme, database: &rig::postgres::Database) {
    let held = ledger.held.lock().unwrap().clone();
    for (nonce, holder) in &held {
        let found = scheme.reservation(lane(1), *nonce, *holder).await.unwrap();
        let found = found.unwrap_or_else(|| panic!("nonce {nonce} is not its holder's"));
        assert_ne!(found.state, ReservationState::Recyclable);
    }
    until("no nonce is missing", async || {
        scheme.to_watch(10).await.unwrap();
        let missing = "SELECT max(nonce) + 1 - count(*) FROM nonce_reservation";
        database.ask(missing).as_deref() == Some("0")
    })
    .await;
    let open = "SELECT count(*) FROM nonce_reservation WHERE state <> 2";
    assert_eq!(database.ask(open), Some(held.len().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_lock_with_a_lock_in_front() {
    for fault in FAULTS {
        survives(fault, |url, redis| {
            let lock = LaneLock::new(redis, LockConfig::default());
            Arc::new(RowLock::new(db(url, 2), Some(lock)))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_issue_under_the_unique_key() {
    for fault in FAULTS {
        survives(fault, |url, redis| {
            Arc::new(RedisIssue::new(db(url, 2), redis, Duration::ZERO))
        })
        .await;
    }
}
