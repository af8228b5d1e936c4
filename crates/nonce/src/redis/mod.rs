//! Redis: quicker than the database, and never trusted. Whatever it loses, repeats or makes up may cost time and
//! nothing else.

mod connection;
mod health;
mod lock;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{Client, Cmd, FromRedisValue, ScriptInvocation};
use domain::LaneKey;
use engine::ports::Clock;
use thiserror::Error;

pub use connection::Link;
pub use health::{Change, Gate, Health};
pub use lock::{Held, LaneLock, LockConfig};

/// How Redis is reached, and when it is left out.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://user:password@host:6379/0`
    pub url: String,
    /// What every key begins with.
    pub prefix: String,
    /// How long a new connection may take.
    pub connect_within: Duration,
    /// How long an answer may take.
    pub answer_within: Duration,
    /// Whether the database serves alone while Redis is away. If not, nothing is lent meanwhile.
    pub degrade: bool,
    /// After how many failures in a row it is not asked any more.
    pub failures_to_degrade: u32,
    /// How often it is then looked for.
    pub probe_every: Duration,
}

impl RedisConfig {
    /// With the defaults.
    #[must_use]
    pub fn at(url: &str) -> Self {
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

/// Without the address: it may hold a password.
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

/// Redis did not answer, or not as it should, or is left out at present. What was asked may have happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Redis is away: {0}")]
pub struct Away(pub String);

/// One Redis, through one connection at a time.
pub struct Redis {
    client: Client,
    config: RedisConfig,
    clock: Arc<dyn Clock>,
    health: Health,
    link: Mutex<Option<Link>>,
    /// Held by the one who connects; the others wait for his connection.
    connecting: tokio::sync::Mutex<()>,
    links_made: AtomicU64,
}

impl Redis {
    /// Connects to nothing yet. Fails if the address is none.
    pub fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Away> {
        let client = Client::open(config.url.as_str());
        // Its text may repeat the address.
        let client = client.map_err(|error| Away(error.category().to_owned()))?;
        Ok(Arc::new(Self {
            client,
            health: Health::new(config.failures_to_degrade, config.probe_every),
            config,
            clock,
            link: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            links_made: AtomicU64::new(0),
        }))
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// Whether it is in use at present, and not left out.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.health.is_well()
    }

    /// The key of a lane for one purpose.
    #[must_use]
    pub fn key(&self, lane: LaneKey, purpose: &str) -> String {
        format!("{}:nonce:{{{lane}}}:{purpose}", self.config.prefix)
    }

    /// The present connection, or a new one. While Redis is left out this answers at once, and now and then has
    /// somebody look for it, for whom nobody waits.
    pub async fn link(self: &Arc<Self>) -> Result<Link, Away> {
        match self.health.gate(self.clock.monotonic()) {
            Gate::Open => {}
            Gate::Shut => return Err(left_out()),
            Gate::Probe => {
                // It ends by itself, within the time for a connection.
                tokio::spawn(Arc::clone(self).probe());
                return Err(left_out());
            }
        }
        if let Some(link) = self.present().as_ref() {
            return Ok(link.clone());
        }
        let opened = tokio::time::timeout(self.config.connect_within, self.connect()).await;
        let opened = opened.unwrap_or_else(|_elapsed| Err(Away("no connection in time".into())));
        // That it lets us in is no success: a server that answers nothing else must be left out too.
        if opened.is_err() {
            self.heard(&opened);
        }
        opened
    }

    /// Runs a script on a connection.
    pub async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Away> {
        let answer = link.run(script).await;
        self.judge(link, answer)
    }

    /// Runs a command on a connection.
    pub async fn command<T: FromRedisValue>(&self, link: &Link, command: &Cmd) -> Result<T, Away> {
        let answer = link.command(command).await;
        self.judge(link, answer)
    }

    /// Does not use a connection any more: its server is not what it was.
    pub fn leave(&self, link: &Link) {
        self.drop_link(link.number());
    }

    /// A connection on which anything failed is not used again: its next answers may be late ones, and the next
    /// connection may find another server.
    fn judge<T>(&self, link: &Link, answer: Result<T, Away>) -> Result<T, Away> {
        if answer.is_err() {
            self.drop_link(link.number());
        }
        self.heard(&answer);
        answer
    }

    async fn connect(&self) -> Result<Link, Away> {
        let _turn = self.connecting.lock().await;
        if let Some(link) = self.present().as_ref() {
            return Ok(link.clone());
        }
        let number = self.links_made.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Link::open(&self.client, &self.config, number).await?;
        *self.present() = Some(link.clone());
        Ok(link)
    }

    async fn probe(self: Arc<Self>) {
        // Whatever was there before it went away is not trusted to be the same.
        *self.present() = None;
        let opened = tokio::time::timeout(self.config.connect_within, self.connect()).await;
        self.heard(&opened.unwrap_or_else(|_elapsed| Err(Away("no connection in time".into()))));
    }

    fn heard<T>(&self, answer: &Result<T, Away>) {
        let change = match answer {
            Ok(_) => self.health.succeeded(),
            Err(_) => {
                metrics::counter!("lanekeeper_nonce_redis_failures_total").increment(1);
                self.health.failed(self.clock.monotonic())
            }
        };
        match (change, answer) {
            (Change::None, _) => {}
            (Change::Degraded, Err(away)) => {
                metrics::gauge!("lanekeeper_nonce_redis_away").set(1.0);
                tracing::warn!(why = away.0, "Redis is left out until it answers again");
            }
            (Change::Degraded | Change::Returned, _) => {
                metrics::gauge!("lanekeeper_nonce_redis_away").set(0.0);
                tracing::info!("Redis is back in use");
            }
        }
    }

    fn drop_link(&self, number: u64) {
        let mut link = self.present();
        if link.as_ref().is_some_and(|link| link.number() == number) {
            *link = None;
        }
    }

    fn present(&self) -> MutexGuard<'_, Option<Link>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left_out() -> Away {
    Away("it failed too often and is looked for now and then".into())
}
