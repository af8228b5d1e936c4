//! The contract suite on every scheme. A scheme is added with one line.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nonce::postgres::{Connector, Pool, PoolConfig, Timeouts, prepare};
use nonce::redis::{LaneLock, LockConfig, Redis, RedisConfig};
use nonce::{
    RedisIssue, RedisReserve, RedisReserveConfig, RowLock, Scheme, SchemeKind, Segment,
    SegmentConfig,
};
use rig::postgres::{Schema, majors, shared};

use super::kit::{FakeChain, LaneCluster, LedgerRows, MemoryLedger, TestClock, WITHIN};
use super::suite::{Backend, contract};

contract!(memory => Memory(LedgerRows::new()));
contract!(row_lock => ServerBackend::new(|server| server.row_lock()).await);
contract!(row_lock_with_redis => ServerBackend::new(|server| server.row_lock_with_redis()).await);
contract!(redis_issue => ServerBackend::new(|server| server.redis_issue()).await);
contract!(redis_reserve => ServerBackend::new(|server| server.redis_reserve()).await);
contract!(segment => ServerBackend::new(|server| server.segment()).await);
contract!(lane, paused => LaneNodes(LaneCluster::in_memory()));
contract!(lane_on_postgres => LaneNodes(LaneCluster::on_postgres().await));

/// How long a nonce that Redis allocated may take until it is reserved.
const GRACE: Duration = Duration::from_millis(500);

/// The rules in their simplest form: a clause that no scheme could fulfil fails here.
struct Memory(LedgerRows);

#[async_trait]
impl Backend for Memory {
    async fn open_process(&self, _chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        MemoryLedger::over(self.0.clone())
    }
}

/// Nodes that keep the lane one after the other and handle expiry, receipts and reorgs by themselves.
struct LaneNodes(LaneCluster);

#[async_trait]
impl Backend for LaneNodes {
    async fn open_process(&self, chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        self.0.start(chains).await
    }

    fn sweeps_itself(&self) -> bool {
        true
    }

    async fn pass_time(&self, by: Duration) {
        self.0.pass_time(by).await;
    }
}

/// Real servers, shared by all clauses: each has a schema of its own in PostgreSQL and keys of its own in Redis.
pub(crate) struct ServerBackend {
    schema: Schema,
    open: OpenScheme,
}

pub(crate) type OpenScheme = fn(&ServerBackend) -> Arc<dyn Scheme>;

impl ServerBackend {
    pub(crate) async fn new(open: OpenScheme) -> Self {
        let schema = shared(majors()[0]).schema("contract");
        let connected = tokio_postgres::connect(schema.url(), tokio_postgres::NoTls).await;
        let (mut client, wire) = connected.expect("PostgreSQL answers");
        // A broken connection fails the client's next call.
        let driver = tokio::spawn(async move { wire.await.ok() });
        prepare(&mut client, None)
            .await
            .expect("the ledger is created");
        drop(client);
        driver.await.expect("the driver ends with its client");
        Self { schema, open }
    }

    /// Connections of one process.
    fn db(&self) -> Arc<Pool> {
        let config = PoolConfig {
            connection_within: WITHIN,
            ..PoolConfig::default()
        };
        let connector = Connector::parse(self.schema.url(), &Timeouts::default());
        Arc::new(Pool::new(connector.expect("a valid address"), config))
    }

    fn redis(&self) -> Arc<Redis> {
        let config = RedisConfig {
            prefix: self.schema.name().to_owned(), // unique
            // No clause is about a slow Redis, and a loaded machine makes it slow.
            connect_within: WITHIN,
            answer_within: WITHIN,
            ..RedisConfig::new(&rig::redis::shared())
        };
        Redis::new(config, Arc::new(TestClock::new())).expect("a valid address")
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
            block_size: 16,
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
impl Backend for ServerBackend {
    async fn open_process(&self, _chains: &[Arc<FakeChain>]) -> Arc<dyn Scheme> {
        (self.open)(self)
    }

    async fn open_other_scheme(&self) -> Option<Arc<dyn Scheme>> {
        Some(match (self.open)(self).kind() {
            SchemeKind::RowLock => self.redis_issue(),
            SchemeKind::RedisIssue
            | SchemeKind::RedisReserve
            | SchemeKind::Lane
            | SchemeKind::Segment => self.row_lock(),
        })
    }
}
