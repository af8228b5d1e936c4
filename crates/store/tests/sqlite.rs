//! The contract of the Store port, against the embedded store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::Timestamp;
use engine::ports::Store;
use store::sqlite::SqliteStore;
use store_contract::Backend;

store_contract::contract_tests!(sqlite => Embedded::fresh());

/// A store in a folder of its own, with a clock that is moved by hand.
struct Embedded {
    store: Arc<SqliteStore>,
    clock_ms: Arc<AtomicU64>,
}

impl Embedded {
    fn fresh() -> Self {
        let clock_ms = Arc::new(AtomicU64::new(1_800_000_000_000));
        let shown = Arc::clone(&clock_ms);
        let now = Arc::new(move || Timestamp(shown.load(Ordering::SeqCst)));
        let store = SqliteStore::temporary_with(now).expect("a fresh store");
        Self {
            store: Arc::new(store),
            clock_ms,
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
}
