//! The in-memory twins of the Store port pass its contract suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::{Clock, Store};
use sim::network::{Link, LinkFaults};
use sim::rng::Rng;
use sim::store::{MemoryStore, RemoteStore};
use store_contract::Backend;

store_contract::contract_tests!(memory => InMemory::fresh());
// Over a healthy network only the time differs; at the server every verb is a transaction of steps.
store_contract::contract_tests!(remote => InMemory::remote());

struct InMemory {
    store: Arc<dyn Store>,
    database: MemoryStore,
    clock: Arc<HandClock>,
}

impl InMemory {
    fn fresh() -> Self {
        let (database, clock) = parts();
        Self {
            store: Arc::new(database.clone()),
            database,
            clock,
        }
    }

    fn remote() -> Self {
        // No clause waits in real time.
        tokio::time::pause();
        let (database, clock) = parts();
        let link = Link::new(Rng::new(1), LinkFaults::healthy(2));
        Self {
            store: Arc::new(RemoteStore::new(database.clone(), link)),
            database,
            clock,
        }
    }
}

fn parts() -> (MemoryStore, Arc<HandClock>) {
    let clock = Arc::new(HandClock {
        now: AtomicU64::new(1_800_000_000_000),
    });
    (MemoryStore::new(clock.clone()), clock)
}

#[async_trait]
impl Backend for InMemory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).expect("a short time");
        self.clock.now.fetch_add(millis, Ordering::SeqCst);
    }

    async fn change_history(&self) {
        self.database.fail_over();
    }
}

/// A clock that the test sets.
struct HandClock {
    now: AtomicU64,
}

#[async_trait]
impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(self.now.load(Ordering::SeqCst).saturating_mul(1_000))
    }

    async fn sleep(&self, _duration: Duration) {
        tokio::task::yield_now().await;
    }

    fn random(&self) -> u128 {
        0
    }
}
