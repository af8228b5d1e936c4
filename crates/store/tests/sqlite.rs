//! The contract of the Store port, against the embedded store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::Timestamp;
use engine::ports::Store;
use rusqlite::Connection;
use store::sqlite::SqliteStore;
use store_contract::Backend;
use tempfile::TempDir;

store_contract::contract_tests!(sqlite => Embedded::fresh());

/// A store in a folder of its own, with a clock that is moved by hand.
struct Embedded {
    store: Arc<SqliteStore>,
    clock_ms: Arc<AtomicU64>,
    /// Last, so that it outlives the store.
    folder: TempDir,
}

impl Embedded {
    fn fresh() -> Self {
        let clock_ms = Arc::new(AtomicU64::new(1_800_000_000_000));
        let shown = Arc::clone(&clock_ms);
        let now = Arc::new(move || Timestamp(shown.load(Ordering::SeqCst)));
        let folder = tempfile::tempdir().expect("a folder");
        SqliteStore::migrate(folder.path()).expect("migrate");
        let store = SqliteStore::open_with(folder.path(), now).expect("a fresh store");
        Self {
            store: Arc::new(store),
            clock_ms,
            folder,
        }
    }
}

#[async_trait]
impl Backend for Embedded {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn advance(&self, by: Duration) {
        let by_ms = u64::try_from(by.as_millis()).expect("the suite moves by seconds");
        self.clock_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    async fn change_history(&self) {
        let beside = Connection::open(self.folder.path().join("lanekeeper.db"));
        let beside = beside.expect("the store's file");
        beside
            .busy_timeout(Duration::from_secs(5))
            .expect("a timeout");
        let changed = beside.execute("UPDATE store_identity SET restores = restores + 1", []);
        assert_eq!(changed, Ok(1));
    }
}
