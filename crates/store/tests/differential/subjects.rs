//! The stores, each emptied between sequences and with a clock that can be moved.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::{Clock, Store};
use rig::postgres::{Database, shared};
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use sim::store::{MemoryStore, RemoteStore};
use store::postgres::{PostgresConfig, PostgresStore, migrate};
use store::sqlite::SqliteStore;
use store_contract::Backend;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

/// Where the clocks that are moved by hand begin.
const HAND_BEGIN: u64 = 1_800_000_000_000;
/// Deleting the few rows of a sequence is quicker than truncating, but leaves them on disk.
const DELETES_MAX: u32 = 50;

/// A store under comparison.
#[async_trait]
pub(crate) trait Subject: Backend {
    /// How it is called in a report.
    fn name(&self) -> &'static str;

    /// The clock of its leases.
    fn now(&self) -> Timestamp;

    /// Empties it.
    async fn clear(&mut self);

    /// Whether the gate itself puts events into the feed.
    fn feeds_in_gate(&self) -> bool {
        false
    }
}

/// What a declared restore does to the history of a store.
const ANOTHER_HISTORY: &str = "UPDATE store_identity SET restores = restores + 1";

/// A clock that is moved by hand.
struct HandClock(AtomicU64);

impl HandClock {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(HAND_BEGIN)))
    }

    fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).expect("hours");
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(self.0.load(Ordering::SeqCst).saturating_mul(1_000))
    }

    async fn sleep(&self, _duration: Duration) {
        tokio::task::yield_now().await;
    }

    fn random(&self) -> u128 {
        0
    }
}

/// The simulator's.
pub(crate) struct Twin {
    store: MemoryStore,
    clock: Arc<HandClock>,
}

impl Twin {
    pub(crate) fn new() -> Self {
        let clock = HandClock::new();
        Self {
            store: MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>),
            clock,
        }
    }
}

#[async_trait]
impl Backend for Twin {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn change_history(&self) {
        self.store.fail_over();
    }
}

#[async_trait]
impl Subject for Twin {
    fn name(&self) -> &'static str {
        "the twin"
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn clear(&mut self) {
        *self = Self::new();
    }
}

/// The same behind a network without faults, as the simulator's nodes see it: every verb that writes is a
/// transaction of steps.
pub(crate) struct Served {
    twin: Twin,
    store: RemoteStore,
}

impl Served {
    pub(crate) fn new() -> Self {
        let twin = Twin::new();
        let link = Link::new(Rng::new(1), LinkFaults::healthy(2));
        Self {
            store: RemoteStore::new(twin.store.clone(), link),
            twin,
        }
    }
}

#[async_trait]
impl Backend for Served {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn advance(&self, by: Duration) {
        self.twin.advance(by).await;
    }

    async fn change_history(&self) {
        self.twin.change_history().await;
    }
}

#[async_trait]
impl Subject for Served {
    fn name(&self) -> &'static str {
        "the twin's server"
    }

    fn now(&self) -> Timestamp {
        self.twin.now()
    }

    async fn clear(&mut self) {
        *self = Self::new();
    }
}

/// The embedded one.
pub(crate) struct Embedded {
    store: Arc<SqliteStore>,
    clock: Arc<HandClock>,
    /// Beside the store, to empty it.
    eraser: Mutex<rusqlite::Connection>,
    /// Last, so that it outlives the store.
    _folder: TempDir,
}

impl Embedded {
    pub(crate) fn new() -> Self {
        // This process is never killed to test durability: a folder in memory suffices.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.expect("a folder of one's own");
        SqliteStore::migrate(folder.path()).expect("migrate");
        let clock = HandClock::new();
        let shown = Arc::clone(&clock);
        let now = Arc::new(move || shown.now());
        let store = SqliteStore::open_with(folder.path(), now).expect("open");
        let eraser = rusqlite::Connection::open(folder.path().join("lanekeeper.db"));
        let eraser = eraser.expect("the store's file");
        eraser
            .busy_timeout(Duration::from_secs(5))
            .expect("a time-out");
        Self {
            store: Arc::new(store),
            clock,
            eraser: Mutex::new(eraser),
            _folder: folder,
        }
    }
}

#[async_trait]
impl Backend for Embedded {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn change_history(&self) {
        let eraser = self.eraser.lock().unwrap_or_else(PoisonError::into_inner);
        eraser
            .execute_batch(ANOTHER_HISTORY)
            .expect("the store's file");
    }
}

#[async_trait]
impl Subject for Embedded {
    fn name(&self) -> &'static str {
        "the embedded store"
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn clear(&mut self) {
        let erase = "BEGIN IMMEDIATE;
             DELETE FROM signer_lease; DELETE FROM signer_nonce_cursor; DELETE FROM lane;
             DELETE FROM managed_tx; DELETE FROM tx_attempt; DELETE FROM queued_tx;
             DELETE FROM lane_event; DELETE FROM chain_header; DELETE FROM node;
             UPDATE store_identity SET restores = 0;
             COMMIT;";
        let eraser = self.eraser.get_mut().expect("nobody else has it");
        eraser.execute_batch(erase).expect("it is empty");
        self.clock.0.store(HAND_BEGIN, Ordering::SeqCst);
    }

    fn feeds_in_gate(&self) -> bool {
        true
    }
}

/// PostgreSQL.
pub(crate) struct Cluster {
    store: Arc<PostgresStore>,
    /// Beside the store, to empty it and to move its leases.
    eraser: Client,
    deletes: u32,
    /// Last, so that it outlives the store's connections.
    _database: Database,
}

impl Cluster {
    pub(crate) async fn new(major: u32) -> Self {
        let database = shared(major).database("differential");
        let name = database.name();
        database.exec(&format!(
            "ALTER DATABASE \"{name}\" SET synchronous_commit = off"
        ));
        let lease = Duration::from_secs(30);
        let url = database.url().to_owned();
        migrate(&url, None, lease).await.expect("migrate");
        let (eraser, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let config = PostgresConfig {
            url,
            pool_size: 5,
            lease,
        };
        let store = PostgresStore::open(config).await.expect("open");
        Self {
            store: Arc::new(store),
            eraser,
            deletes: DELETES_MAX,
            _database: database,
        }
    }

    async fn exec(&self, sql: &str) {
        self.eraser
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[async_trait]
impl Backend for Cluster {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// The server's clock cannot be moved; its leases can.
    async fn advance(&self, by: Duration) {
        let by_ms = by.as_millis();
        self.exec(&format!(
            "UPDATE signer_lease SET expires_at = expires_at - {by_ms} WHERE expires_at <> 0"
        ))
        .await;
    }

    async fn change_history(&self) {
        self.exec(ANOTHER_HISTORY).await;
    }
}

#[async_trait]
impl Subject for Cluster {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    /// The server is on this machine.
    fn now(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("after 1970").as_millis();
        Timestamp(u64::try_from(now).expect("before the year 292277026596"))
    }

    async fn clear(&mut self) {
        const TRUNCATE: &str = "TRUNCATE lane, signer_lease, signer_nonce_cursor, managed_tx, tx_attempt, \
             queued_tx, lane_event, event_feed, lane_feed, chain_header, node RESTART IDENTITY; \
             UPDATE feed_head SET position = 0, history = ''; UPDATE store_identity SET restores = 0";
        const DELETE: &str = "DELETE FROM lane; DELETE FROM signer_lease; DELETE FROM signer_nonce_cursor; \
             DELETE FROM managed_tx; DELETE FROM tx_attempt; DELETE FROM queued_tx; DELETE FROM lane_event; \
             DELETE FROM event_feed; DELETE FROM lane_feed; DELETE FROM chain_header; DELETE FROM node; \
             UPDATE feed_head SET position = 0, history = ''; UPDATE store_identity SET restores = 0";
        let is_due = self.deletes >= DELETES_MAX;
        self.deletes = if is_due { 0 } else { self.deletes + 1 };
        self.exec(if is_due { TRUNCATE } else { DELETE }).await;
    }
}
