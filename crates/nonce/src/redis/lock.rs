//! A lock per lane that keeps crowds off the lane's row in PostgreSQL. It is a courtesy: the row lock decides, and
//! whoever cannot have this one in time goes without.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Script;
use domain::LaneKey;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Away, Link, Redis};

static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// How many crowds are told apart inside a process. Two lanes that share a place wait for each other.
const PLACES: usize = 1_024;

/// How soon a taken lock is tried again: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(30);

/// How long a lock is held and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConfig {
    /// It opens by itself after this long: its owner may be dead.
    pub hold: Duration,
    /// Who has waited this long in his own process is told to come back; who has waited this long for another
    /// process goes without.
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
    /// One of each process asks for the lock at a time, in turn; the others do not trouble Redis.
    places: Vec<Mutex<()>>,
}

/// A turn, with the lock or without.
pub struct Held<'a> {
    lock: &'a LaneLock,
    key: String,
    owner: String,
    /// The connection on which the lock was taken; none: without the lock.
    link: Option<Link>,
    _turn: MutexGuard<'a, ()>,
}

/// Too many wait in this process already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

impl LaneLock {
    /// Locks in this Redis.
    #[must_use]
    pub fn new(redis: Arc<Redis>, config: LockConfig) -> Self {
        Self {
            redis,
            config,
            places: (0..PLACES).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Waits for a turn. `owner` must be fresh. Without the lock when Redis is away, or when another process has
    /// it for too long.
    pub async fn turn(&self, lane: LaneKey, owner: Uuid) -> Result<Held<'_>, Crowded> {
        let until = Instant::now() + self.config.wait;
        let place = self.places[place(lane)].lock();
        let turn = tokio::time::timeout_at(until, place).await;
        let turn = turn.map_err(|_elapsed| Crowded)?;
        let mut held = Held {
            lock: self,
            key: self.redis.key(lane, "lock"),
            owner: owner.to_string(),
            link: None,
            _turn: turn,
        };
        let mut retry = RETRY_FIRST;
        loop {
            match self.try_take(&held.key, &held.owner).await {
                Ok(Some(link)) => {
                    held.link = Some(link);
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

    /// Where the locks are.
    #[must_use]
    pub fn redis(&self) -> &Arc<Redis> {
        &self.redis
    }

    async fn try_take(&self, key: &str, owner: &str) -> Result<Option<Link>, Away> {
        let link = self.redis.link().await?;
        let mut set = ::redis::cmd("SET");
        let hold = u64::try_from(self.config.hold.as_millis()).unwrap_or(u64::MAX);
        set.arg(key).arg(owner).arg("NX").arg("PX").arg(hold);
        let taken: Option<String> = self.redis.command(&link, &set).await?;
        Ok(taken.map(|_ok| link))
    }
}

impl Held<'_> {
    /// Whether the lock itself was had.
    #[must_use]
    pub fn has_lock(&self) -> bool {
        self.link.is_some()
    }

    /// Opens the lock if it is still ours. To be called when the work is committed; a turn that is dropped
    /// instead leaves the lock to its time-out, because its work may still be under way.
    pub async fn release(self) {
        let Some(link) = &self.link else { return };
        let mut release = RELEASE.key(&self.key);
        release.arg(&self.owner);
        let released: Result<u64, Away> = self.lock.redis.run(link, &release).await;
        if let Err(away) = released {
            tracing::debug!(why = away.0, "a lock is left to its time-out");
        }
    }
}

fn place(lane: LaneKey) -> usize {
    let signer = lane.signer.as_slice();
    let word = u16::from_be_bytes([signer[18], signer[19]]);
    let chain = usize::try_from(lane.chain_id.0 % 1_021).expect("it is small");
    (usize::from(word) ^ chain) % PLACES
}
