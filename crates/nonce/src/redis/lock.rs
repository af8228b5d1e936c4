//! A Redis lock per lane that keeps waiting processes off the lane's row in PostgreSQL. It is an optimisation: the row
//! lock decides, and a call that cannot acquire this lock in time proceeds without it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Script;
use domain::LaneKey;
use engine::ports::ReservationError;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Redis, RedisConnection, RedisUnavailable};
use crate::Result;

static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release_lock.lua")));

/// Number of in-process queues. Lanes that share a stripe wait for each other.
const STRIPES: usize = 1_024;

/// Delay before a taken lock is tried again: initial and maximum.
const RETRY_FIRST: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(30);

/// Timeouts of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConfig {
    /// The lock expires after this time: its owner may be dead.
    pub hold: Duration,
    /// Maximum wait. A call that waited this long inside its own process is refused with `Busy`; one that waited for
    /// another process proceeds without the lock.
    pub wait: Duration,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(1),
            wait: Duration::from_secs(2),
        }
    }
}

/// The locks of all lanes.
pub struct LaneLock {
    redis: Arc<Redis>,
    config: LockConfig,
    /// One call per process and stripe tries to acquire the Redis lock; the others wait here.
    stripes: Vec<Mutex<()>>,
}

/// Exclusivity in this process, with or without the Redis lock.
pub struct LaneLockGuard<'a> {
    lock: &'a LaneLock,
    key: String,
    owner: String,
    /// The connection on which the lock was acquired; `None`: without the lock.
    connection: Option<RedisConnection>,
    _stripe_guard: MutexGuard<'a, ()>,
}

impl LaneLock {
    /// Locks in this Redis.
    #[must_use]
    pub fn new(redis: Arc<Redis>, config: LockConfig) -> Self {
        Self {
            redis,
            config,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Waits for the lock. `owner` must be fresh. Returns without the lock when Redis is unavailable or another process
    /// holds it for too long. Fails with `Busy` after too long a wait inside this process.
    pub async fn acquire(&self, lane: LaneKey, owner: Uuid) -> Result<LaneLockGuard<'_>> {
        let until = Instant::now() + self.config.wait;
        let stripe = self.stripes[stripe(lane)].lock();
        let guard = tokio::time::timeout_at(until, stripe).await;
        let guard = guard.map_err(|_elapsed| ReservationError::Busy)?;
        let mut held = LaneLockGuard {
            lock: self,
            key: self.redis.key(lane, "lock"),
            owner: owner.to_string(),
            connection: None,
            _stripe_guard: guard,
        };
        let mut retry = RETRY_FIRST;
        loop {
            match self.try_acquire(&held.key, &held.owner).await {
                Ok(Some(connection)) => {
                    held.connection = Some(connection);
                    return Ok(held);
                }
                Ok(None) if Instant::now() + retry < until => {
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
                Ok(None) | Err(_) => {
                    metrics::counter!("lanekeeper_nonce_lock_skipped_total").increment(1);
                    return Ok(held);
                }
            }
        }
    }

    pub(crate) fn redis(&self) -> &Arc<Redis> {
        &self.redis
    }

    async fn try_acquire(
        &self,
        key: &str,
        owner: &str,
    ) -> Result<Option<RedisConnection>, RedisUnavailable> {
        let connection = self.redis.connection().await?;
        let mut set = ::redis::cmd("SET");
        let hold = u64::try_from(self.config.hold.as_millis()).unwrap_or(u64::MAX);
        set.arg(key).arg(owner).arg("NX").arg("PX").arg(hold);
        let taken: Option<String> = self.redis.command(&connection, &set).await?;
        Ok(taken.map(|_ok| connection))
    }
}

impl LaneLockGuard<'_> {
    /// Whether the Redis lock was acquired.
    #[must_use]
    pub fn has_lock(&self) -> bool {
        self.connection.is_some()
    }

    /// Releases the lock if it is still ours. Call it when the work is committed; a guard that is dropped instead leaves
    /// the lock to its expiry, because the work may still be in progress.
    pub async fn release(self) {
        let Some(connection) = &self.connection else {
            return;
        };
        let mut release = RELEASE.key(&self.key);
        release.arg(&self.owner);
        let released: Result<u64, RedisUnavailable> =
            self.lock.redis.run(connection, &release).await;
        if let Err(unavailable) = released {
            tracing::debug!(
                why = unavailable.0,
                "the lock was not released and expires by itself"
            );
        }
    }
}

fn stripe(lane: LaneKey) -> usize {
    let signer = lane.signer.as_slice();
    let word = u16::from_be_bytes([signer[18], signer[19]]);
    let chain = usize::try_from(lane.chain_id.0 % 1_021).expect("below 1,021");
    (usize::from(word) ^ chain) % STRIPES
}
