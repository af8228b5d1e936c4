//! The contract of the Store port, against PostgreSQL: the oldest and the newest major.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use engine::ports::Store;
use rig::postgres::{Database, shared};
use store::postgres::{PostgresConfig, PostgresStore, migrate};
use store_contract::Backend;

store_contract::contract_tests!(postgres_15 => Cluster::fresh(15).await);
store_contract::contract_tests!(postgres_18 => Cluster::fresh(18).await);

/// A store in a database of its own.
struct Cluster {
    store: Arc<PostgresStore>,
    database: Database,
}

impl Cluster {
    async fn fresh(major: u32) -> Self {
        let database = shared(major).database("suite");
        let lease = Duration::from_secs(10);
        let url = database.url().to_owned();
        migrate(&url, None, lease).await.expect("migrate");
        let config = PostgresConfig {
            url,
            pool_size: 9,
            lease,
        };
        let store = PostgresStore::open(config).await.expect("open");
        Self {
            store: Arc::new(store),
            database,
        }
    }
}

#[async_trait]
impl Backend for Cluster {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn advance(&self, by: Duration) {
        let by_ms = by.as_millis();
        self.database.exec(&format!(
            "UPDATE signer_lease SET expires_at = expires_at - {by_ms} WHERE expires_at <> 0"
        ));
    }

    fn clock_tolerance(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn change_history(&self) {
        self.database
            .exec("UPDATE store_identity SET restores = restores + 1");
    }
}
