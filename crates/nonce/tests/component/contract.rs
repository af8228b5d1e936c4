//! The contract, on every scheme. Adding one is a line.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nonce::postgres::{Db, DbConfig, Plain, prepare};
use nonce::redis::{LaneLock, LockConfig, Redis, RedisConfig};
use nonce::{
    RedisIssue, RedisReserve, RedisReserveConfig, RowLock, Scheme, SchemeKind, Segment,
    SegmentConfig,
};
use rig::postgres::{Schema, majors, shared};

use super::kit::{FakeChain, MemoryBooks, Nodes, Rows, TestClock, WITHIN};
use super::suite::{Books, contract};

contract!(memory => Memory(Rows::new()));
contract!(row_lock => Server::fresh(|server| server.row_lock()).await);
contract!(row_lock_with_redis => Server::fresh(|server| server.row_lock_with_redis()).await);
contract!(redis_issue => Server::fresh(|server| server.redis_issue()).await);
contract!(redis_reserve => Server::fresh(|server| server.redis_reserve()).await);
contract!(segment => Server::fresh(|server| server.segment()).await);
contract!(lane, while time stands still => Keepers(Nodes::new()));

/// How long an issued nonce may be on its way to its reservation.
const GRACE: Duration = Duration::from_millis(500);

/// The rules in their simplest form: what no scheme could keep shows itself here.
struct Memory(Rows);

#[async_trait]
impl Books for Memory {
    async fn open(&self, _chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        MemoryBooks::over(self.0.clone())
    }
}

/// Nodes that keep the lane one after the other, and look after its loans by themselves.
struct Keepers(Nodes);

#[async_trait]
impl Books for Keepers {
    async fn open(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        self.0.start(chains).await
    }

    fn looks_after_itself(&self) -> bool {
        true
    }
}

/// Real servers, shared by all clauses: to each a schema of its own in PostgreSQL, and keys of its own in Redis.
pub(crate) struct Server {
    schema: Schema,
    open: Opens,
}

pub(crate) type Opens = fn(&Server) -> Arc<dyn Scheme>;

impl Server {
    pub(crate) async fn fresh(open: Opens) -> Self {
        let schema = shared(majors()[0]).schema("contract");
        let connected = tokio_postgres::connect(schema.url(), tokio_postgres::NoTls).await;
        let (mut client, wire) = connected.expect("the server is there");
        // A broken connection is seen by the client's next call.
        let driver = tokio::spawn(async move { wire.await.ok() });
        prepare(&mut client, None)
            .await
            .expect("the books are made");
        drop(client);
        driver.await.expect("it ends with its client");
        Self { schema, open }
    }

    /// Connections of one process.
    fn db(&self) -> Arc<Db> {
        let config = DbConfig {
            connection_within: WITHIN,
            ..DbConfig::default()
        };
        let plain = Plain::parse(self.schema.url()).expect("an address");
        Arc::new(Db::new(Arc::new(plain), config))
    }

    fn redis(&self) -> Arc<Redis> {
        let config = RedisConfig {
            prefix: self.schema.name().to_owned(), // nobody else's
            // No clause is about a slow Redis, and a machine with much to do makes it one.
            connect_within: WITHIN,
            answer_within: WITHIN,
            ..RedisConfig::at(&rig::redis::shared())
        };
        Redis::new(config, Arc::new(TestClock::new())).expect("an address")
    }

    pub(crate) fn row_lock(&self) -> Arc<dyn Scheme> {
        Arc::new(RowLock::new(self.db(), None))
    }

    fn row_lock_with_redis(&self) -> Arc<dyn Scheme> {
        let lock = LaneLock::new(self.redis(), LockConfig::default());
        Arc::new(RowLock::new(self.db(), Some(lock)))
    }

    fn redis_reserve(&self) -> Arc<dyn Scheme> {
        let config = RedisReserveConfig {
            block: 16,
            ..RedisReserveConfig::default()
        };
        let clock = Arc::new(TestClock::new());
        Arc::new(RedisReserve::new(self.db(), self.redis(), clock, config))
    }

    fn segment(&self) -> Arc<dyn Scheme> {
        let config = SegmentConfig {
            size: 16,
            ..SegmentConfig::default()
        };
        Arc::new(Segment::new(self.db(), Arc::new(TestClock::new()), config))
    }

    fn redis_issue(&self) -> Arc<dyn Scheme> {
        Arc::new(RedisIssue::new(self.db(), self.redis(), GRACE))
    }
}

#[async_trait]
impl Books for Server {
    async fn open(&self, _chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        (self.open)(self)
    }

    async fn open_other(&self) -> Option<Arc<dyn Scheme>> {
        Some(match (self.open)(self).kind() {
            SchemeKind::RowLock => self.redis_issue(),
            SchemeKind::RedisIssue
            | SchemeKind::RedisReserve
            | SchemeKind::Lane
            | SchemeKind::Segment => self.row_lock(),
        })
    }
}
