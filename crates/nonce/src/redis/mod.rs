//! Redis: faster than the database, and never trusted. Whatever it loses, repeats or invents costs time, never
//! uniqueness.

mod circuit_breaker;
mod connection;
mod lock;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Client, Cmd, FromRedisValue, ScriptInvocation};
use domain::LaneKey;
use engine::ports::{Clock, ReservationError};
use parking_lot::Mutex;
use thiserror::Error;

use circuit_breaker::{BreakerChange, BreakerDecision, CircuitBreaker};

use crate::Result;
pub use connection::RedisConnection;
pub use lock::{LaneLock, LaneLockGuard, LockConfig};

/// Lua scripts count in doubles, which are exact up to here.
pub(crate) const SCRIPT_INTEGER_MAX: u64 = 1 << 52;

/// Connection settings and circuit breaker of Redis.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://user:password@host:6379/0`
    pub url: String,
    /// Prefix of all keys.
    pub prefix: String,
    /// Timeout of a new connection.
    pub connect_within: Duration,
    /// Timeout of an answer.
    pub answer_within: Duration,
    /// Whether the database serves alone while Redis is unavailable. Otherwise nothing is reserved meanwhile.
    pub degrade: bool,
    /// Consecutive failures that open the circuit breaker.
    pub failures_to_degrade: u32,
    /// Interval of the probes while it is open.
    pub probe_every: Duration,
}

impl RedisConfig {
    /// The defaults with this address.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: "lanekeeper".to_owned(),
            connect_within: Duration::from_millis(500),
            answer_within: Duration::from_millis(250),
            degrade: true,
            failures_to_degrade: 3,
            probe_every: Duration::from_secs(5),
        }
    }
}

/// Leaves out the address: it may contain a password.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("prefix", &self.prefix)
            .field("degrade", &self.degrade)
            .field("failures_to_degrade", &self.failures_to_degrade)
            .field("probe_every", &self.probe_every)
            .finish_non_exhaustive()
    }
}

/// Redis did not answer, answered unexpectedly, or the circuit breaker is open. The command may have been executed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Redis is unavailable: {0}")]
pub struct RedisUnavailable(pub String);

/// One Redis server, through one connection at a time.
pub struct Redis {
    client: Client,
    config: RedisConfig,
    clock: Arc<dyn Clock>,
    breaker: CircuitBreaker,
    connection: Mutex<Option<RedisConnection>>,
    /// Held by the call that connects; the others wait for its connection.
    connecting: tokio::sync::Mutex<()>,
    connections_opened: AtomicU64,
}

impl Redis {
    /// Does not connect yet. Fails if the address is invalid.
    pub fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>, RedisUnavailable> {
        let client = Client::open(config.url.as_str());
        // Its text may repeat the address.
        let client = client.map_err(|error| RedisUnavailable(error.category().to_owned()))?;
        Ok(Arc::new(Self {
            client,
            breaker: CircuitBreaker::new(config.failures_to_degrade, config.probe_every),
            config,
            clock,
            connection: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            connections_opened: AtomicU64::new(0),
        }))
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// Whether the circuit breaker is closed.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.breaker.is_available()
    }

    /// The key of a lane for one purpose.
    pub(crate) fn key(&self, lane: LaneKey, purpose: &str) -> String {
        format!("{}:nonce:{{{lane}}}:{purpose}", self.config.prefix)
    }

    /// The current connection, or a new one. While the circuit breaker is open this fails at once; one call per
    /// interval starts a probe in the background.
    pub async fn connection(self: &Arc<Self>) -> Result<RedisConnection, RedisUnavailable> {
        match self.breaker.check(self.clock.monotonic()) {
            BreakerDecision::Open => {}
            BreakerDecision::Reject => return Err(breaker_open()),
            BreakerDecision::Probe => {
                // It ends within the connection timeout.
                tokio::spawn(Arc::clone(self).probe());
                return Err(breaker_open());
            }
        }
        if let Some(connection) = self.connection.lock().as_ref() {
            return Ok(connection.clone());
        }
        let opened = self.connect_in_time().await;
        // A connection alone is no success: a server that answers nothing else must open the breaker too.
        if opened.is_err() {
            self.record_outcome(&opened);
        }
        opened
    }

    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        connection: &RedisConnection,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, RedisUnavailable> {
        let answer = connection.run(script).await;
        self.check_answer(connection, answer)
    }

    pub(crate) async fn command<T: FromRedisValue>(
        &self,
        connection: &RedisConnection,
        command: &Cmd,
    ) -> Result<T, RedisUnavailable> {
        let answer = connection.command(command).await;
        self.check_answer(connection, answer)
    }

    /// What a call without Redis does: PostgreSQL serves it alone (`None`), if the configuration allows that.
    pub(crate) fn fall_back<T>(&self, unavailable: RedisUnavailable) -> Result<Option<T>> {
        match self.config.degrade {
            true => Ok(None),
            false => Err(ReservationError::Unavailable(unavailable.to_string())),
        }
    }

    /// Stops using a connection, for example because its server is no longer the same.
    pub(crate) fn discard(&self, connection: &RedisConnection) {
        let is_this = |current: &mut RedisConnection| current.number() == connection.number();
        self.connection.lock().take_if(is_this);
    }

    /// A connection on which anything failed is not used again: its next answers may be late ones, and the next
    /// connection may reach another server.
    fn check_answer<T>(
        &self,
        connection: &RedisConnection,
        answer: Result<T, RedisUnavailable>,
    ) -> Result<T, RedisUnavailable> {
        if answer.is_err() {
            self.discard(connection);
        }
        self.record_outcome(&answer);
        answer
    }

    async fn connect_in_time(&self) -> Result<RedisConnection, RedisUnavailable> {
        let opened = tokio::time::timeout(self.config.connect_within, self.connect()).await;
        opened.unwrap_or_else(|_elapsed| Err(RedisUnavailable("connection timed out".into())))
    }

    async fn connect(&self) -> Result<RedisConnection, RedisUnavailable> {
        let _turn = self.connecting.lock().await;
        if let Some(connection) = self.connection.lock().as_ref() {
            return Ok(connection.clone());
        }
        let number = self.connections_opened.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = RedisConnection::open(&self.client, &self.config, number).await?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }

    async fn probe(self: Arc<Self>) {
        // The server may have been replaced while it was unavailable.
        *self.connection.lock() = None;
        self.record_outcome(&self.connect_in_time().await);
    }

    fn record_outcome<T>(&self, answer: &Result<T, RedisUnavailable>) {
        let change = match answer {
            Ok(_) => self.breaker.record_success(),
            Err(_) => {
                metrics::counter!("lanekeeper_nonce_redis_failures_total").increment(1);
                self.breaker.record_failure(self.clock.monotonic())
            }
        };
        match (change, answer) {
            (BreakerChange::None, _) => {}
            (BreakerChange::Opened, Err(unavailable)) => {
                metrics::gauge!("lanekeeper_nonce_redis_away").set(1.0);
                tracing::warn!(
                    why = unavailable.0,
                    "Redis is unavailable: not used until a probe succeeds"
                );
            }
            (BreakerChange::Opened | BreakerChange::Closed, _) => {
                metrics::gauge!("lanekeeper_nonce_redis_away").set(0.0);
                tracing::info!("Redis is available again");
            }
        }
    }
}

fn breaker_open() -> RedisUnavailable {
    RedisUnavailable("the circuit breaker is open after repeated failures".into())
}
