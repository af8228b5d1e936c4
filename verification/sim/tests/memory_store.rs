//! The in-memory store keeps the contract of the Store port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{MonotonicTime, Timestamp};
use engine::ports::{Clock, Store};
use sim::rng::Rng;
use sim::store::{MemoryStore, RemoteStore};
use sim::store_suite::Backend;
use sim::wire::{Wire, WireFaults};

sim::store_suite!(memory => InMemory::fresh());
// A healthy network changes nothing but the time; at its end every verb is a transaction of steps.
sim::store_suite!(remote => InMemory::remote());

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
        let wire = Wire::new(Rng::new(1), WireFaults::healthy(2));
        Self {
            store: Arc::new(RemoteStore::new(database.clone(), wire)),
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

    async fn forget_history(&self) -> bool {
        self.database.fail_over();
        true
    }
}

/// A clock that is turned by hand.
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
