//! A database and schemes on it, each with its own connections, as in its own process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Address, ChainId, Holder, LaneKey, MonotonicTime, Nonce, Timestamp};
use engine::ports::Clock;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use nonce::postgres::{Connector, Pool, PoolConfig, SCHEMA_VERSION, Timeouts, prepare};
use nonce::redis::{Redis, RedisConfig};
use nonce::{ReservationKey, ReserveRequest, Scheme};
use rig::postgres::{Database, majors, shared};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// Every awaited condition is met well before this.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A database with a ledger.
pub(crate) async fn database(hint: &str) -> Database {
    let database = shared(majors()[0]).database(hint);
    let applied = prepare(&mut client(database.url()).await, None).await;
    assert_eq!(applied.unwrap(), (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    database
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, wire) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // A broken connection fails the client's next call.
    tokio::spawn(async move { wire.await.ok() });
    client
}

pub(crate) fn db(url: &str, connections: usize) -> Arc<Pool> {
    let config = PoolConfig {
        connections,
        connection_within: WITHIN,
        ..PoolConfig::default()
    };
    let connector = Connector::parse(url, &Timeouts::default()).unwrap();
    Arc::new(Pool::new(connector, config))
}

/// A Redis that is bypassed after three failures and probed often.
pub(crate) fn redis(url: &str) -> Arc<Redis> {
    redis_with(RedisConfig::new(url))
}

pub(crate) fn redis_with(config: RedisConfig) -> Arc<Redis> {
    let config = RedisConfig {
        probe_every: Duration::from_millis(100),
        ..config
    };
    redis_as_given(config)
}

pub(crate) fn redis_as_given(config: RedisConfig) -> Arc<Redis> {
    Redis::new(config, Arc::new(TokioClock(Instant::now()))).unwrap()
}

pub(crate) fn lane(number: u8) -> LaneKey {
    LaneKey {
        chain_id: ChainId(31_337),
        signer: Address::repeat_byte(number),
    }
}

pub(crate) fn holder() -> Holder {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    Holder(Uuid::from_u128(u128::from(number)))
}

pub(crate) fn key(lane: LaneKey, nonce: Nonce, holder: Holder) -> ReservationKey {
    ReservationKey {
        lane,
        nonce,
        holder,
    }
}

pub(crate) fn request() -> ReserveRequest {
    request_at_least(0)
}

pub(crate) fn request_at_least(nonce: u64) -> ReserveRequest {
    ReserveRequest {
        holder: holder(),
        at_least: Nonce(nonce),
        timeout: LONG,
    }
}

/// Reserves this many nonces one after the other.
pub(crate) async fn reserve_nonces(scheme: &dyn Scheme, lane: LaneKey, count: usize) -> Vec<u64> {
    let mut nonces = Vec::new();
    for _ in 0..count {
        let reserved = scheme.allocate(lane, request()).await.unwrap();
        nonces.push(reserved.nonce.0);
    }
    nonces
}

/// The metrics of this process from the first call on, by the recorder that the program uses. It is global, because a
/// local one does not see other threads.
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    pub(crate) fn record() -> Self {
        static RECORDER: LazyLock<PrometheusHandle> =
            LazyLock::new(|| PrometheusBuilder::new().install_recorder().unwrap());
        Self(RECORDER.clone())
    }

    /// The value of a metric without labels; `None` before it is first recorded.
    pub(crate) fn read(&self, name: &str) -> Option<f64> {
        let page = self.0.render();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }
}

/// Polls until the condition is met.
pub(crate) async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looked = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(WITHIN, looked).await;
    in_time.unwrap_or_else(|_| panic!("after {WITHIN:?} still not: {what}"));
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(TokioClock(Instant::now()))
}

struct TokioClock(Instant);

#[async_trait]
impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000).plus(self.0.elapsed())
    }

    fn monotonic(&self) -> MonotonicTime {
        MonotonicTime(1_000_000).plus(self.0.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn random(&self) -> u128 {
        holder().0.as_u128()
    }
}
