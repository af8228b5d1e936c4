//! The nonce component as this process runs it: which scheme keeps the books, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::LaneKey;
use domain::lane::Finality;
use engine::node::{NodeConfig, NodeHandle};
use engine::ports::{Chain, Clock, NonceReservations, Signer};
use nonce::postgres::{Connect, Connection, Db, DbConfig, bind_lanes, check, prepare};
use nonce::redis::{LaneLock, LockConfig, Redis, RedisConfig};
use nonce::scheme::{
    LaneScheme, RedisIssue, RedisReserve, RedisReserveConfig, RowLock, Segment, SegmentConfig,
};
use nonce::{LentChain, Mode, NonceComponent, QueueSettings, Scheme, SchemeKind, Settings};
use store::postgres::Beside;
use tokio::task::JoinHandle;

use crate::config::{Config, NonceMode, StoreUrl};
use crate::failure::Failure;

/// What a nonce was issued for and did not become within this time is free again.
const ISSUE_GRACE: Duration = Duration::from_secs(15);
/// How long the component may take to end.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Lends nonces in this process.
pub(crate) struct ReservationRules {
    component: NonceComponent,
    sweep: JoinHandle<()>,
}

impl ReservationRules {
    /// The component, where an account lends its nonces.
    pub(crate) async fn start(
        config: &Config,
        node: &NodeHandle,
        chains: &[Arc<dyn Chain>],
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>, Failure> {
        if config.external().next().is_none() {
            return Ok(None);
        }
        let scheme = scheme(config, node, clock).await?;
        let chains = chains.iter().map(|chain| lent_chain(config, chain));
        let component = NonceComponent::start(
            settings(config),
            scheme,
            chains.collect(),
            Arc::clone(clock),
        )
        .map_err(|e| Failure::refused("nonces cannot be lent", &e))?;
        let sweep = tokio::spawn(component.sweep().run());
        Ok(Some(Self { component, sweep }))
    }

    /// For the HTTP door.
    pub(crate) fn lender(&self) -> Arc<dyn NonceReservations> {
        Arc::new(self.component.clone())
    }

    /// Lends nothing any more, and writes down what is left.
    pub(crate) async fn close(self) {
        self.sweep.abort();
        if let Err(error) = self.component.close(CLOSE_WITHIN).await {
            tracing::warn!(%error, "lent nonces: what was left in memory comes back by itself");
        }
    }
}

/// A lane belongs to one scheme, or to its own txs. This node's lanes are its own from here on, and what the books lend
/// from by another scheme is refused.
pub(crate) async fn bind_own_lanes(
    config: &Config,
    node: &NodeConfig,
    signer: &dyn Signer,
) -> Result<(), Failure> {
    let StoreUrl::Postgres(_) = &config.store.url else {
        return Ok(()); // there are no books
    };
    let lanes: Vec<LaneKey> = node
        .lanes(signer)
        .into_iter()
        .map(|(lane, _)| lane)
        .collect();
    let unreached = |why| Failure::Unreachable(format!("the books of lent nonces: {why}"));
    let connection = beside(config)?.connect().await.map_err(unreached)?;
    let lent = bind_lanes(connection.client(), &lanes).await;
    match lent.map_err(|e| Failure::refused("the books of lent nonces", &e))? {
        None => Ok(()),
        Some(lane) => Err(Failure::Refused(format!(
            "nonces of {lane} were lent by another scheme, and a lane belongs to one scheme for ever: set the \
             account's kind to external and nonce.scheme as it was, or use another account"
        ))),
    }
}

/// Brings the books of those schemes up to date that have their own, and says which versions were applied.
pub(crate) async fn migrate(config: &Config, role: Option<&str>) -> Result<Vec<i64>, Failure> {
    let StoreUrl::Postgres(_) = &config.store.url else {
        return Ok(Vec::new()); // scheme "lane" has none of its own, and no other one can be used here
    };
    let refused = |why: String| Failure::Refused(format!("the books of lent nonces: {why}"));
    let mut connection = beside(config)?.connect().await.map_err(refused)?;
    let applied = prepare(connection.client_mut(), role).await;
    applied.map_err(|e| Failure::refused("the books of lent nonces cannot be migrated", &e))
}

async fn scheme(
    config: &Config,
    node: &NodeHandle,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Scheme>, Failure> {
    let kind = config.nonce.scheme;
    if kind == SchemeKind::Lane {
        return Ok(Arc::new(LaneScheme::new(node.clone())));
    }
    let connect = beside(config)?;
    let unreached = |why| Failure::Unreachable(format!("the books of lent nonces: {why}"));
    let connection = connect.connect().await.map_err(unreached)?;
    check(connection.client())
        .await
        .map_err(|e| Failure::refused("nonces cannot be lent", &e))?;
    let db = Arc::new(Db::new(Arc::new(connect), DbConfig::default()));
    let redis = redis(config, clock)?;
    let at_once = usize::try_from(config.nonce.segment_size).unwrap_or(usize::MAX);
    let needs_redis = || Failure::Usage("redis.url is not set".to_owned());
    Ok(match kind {
        SchemeKind::Lane => unreachable!("answered above"),
        SchemeKind::RowLock => {
            let lock = redis.map(|redis| LaneLock::new(redis, LockConfig::default()));
            Arc::new(RowLock::new(db, lock))
        }
        SchemeKind::RedisIssue => {
            let redis = redis.ok_or_else(needs_redis)?;
            Arc::new(RedisIssue::new(db, redis, ISSUE_GRACE))
        }
        SchemeKind::RedisReserve => {
            let redis = redis.ok_or_else(needs_redis)?;
            let settings = RedisReserveConfig {
                block: at_once,
                ..RedisReserveConfig::default()
            };
            Arc::new(RedisReserve::new(db, redis, Arc::clone(clock), settings))
        }
        SchemeKind::Segment => {
            let settings = SegmentConfig {
                size: at_once,
                ..SegmentConfig::default()
            };
            Arc::new(Segment::new(db, Arc::clone(clock), settings))
        }
    })
}

fn redis(config: &Config, clock: &Arc<dyn Clock>) -> Result<Option<Arc<Redis>>, Failure> {
    let Some(url) = &config.redis.url else {
        return Ok(None);
    };
    let settings = RedisConfig {
        degrade: config.redis.degrade_on_failure,
        failures_to_degrade: u32::try_from(config.redis.failures_to_degrade).unwrap_or(u32::MAX),
        probe_every: config.redis.probe_interval,
        ..RedisConfig::at(&url.0)
    };
    let redis = Redis::new(settings, Arc::clone(clock));
    redis
        .map(Some)
        .map_err(|e| Failure::refused("redis.url cannot be used", &e))
}

fn lent_chain(config: &Config, chain: &Arc<dyn Chain>) -> LentChain {
    let rules = config.chains.iter().find(|one| one.id == chain.id().0);
    let finality = rules.map_or(Finality::Depth(config.confirmations.required), |rules| {
        config.finality(rules)
    });
    LentChain {
        chain: Arc::clone(chain),
        finality,
        watch_depth: config.watch_depth(finality),
    }
}

fn settings(config: &Config) -> Settings {
    let nonce = &config.nonce;
    let at_most = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Settings {
        mode: match nonce.mode {
            NonceMode::Basic => Mode::Basic,
            NonceMode::WorkerQueue => Mode::WorkerQueue(QueueSettings {
                workers: at_most(nonce.worker_count),
                capacity: at_most(nonce.worker_queue_capacity),
                reject: nonce.worker_queue_reject_policy,
                ..QueueSettings::default()
            }),
        },
        chain_query: nonce.chain_query,
        state_timeout: nonce.state_timeout,
        max_chain_jump: nonce.max_chain_jump,
        reservation_timeout: nonce.reservation_timeout,
        ..Settings::default()
    }
}

/// The store's database, reached as the store reaches it.
struct BesideTheStore(Beside);

fn beside(config: &Config) -> Result<BesideTheStore, Failure> {
    let StoreUrl::Postgres(url) = &config.store.url else {
        return Err(Failure::Usage(
            "lent nonces of this scheme need a postgres:// store".to_owned(),
        ));
    };
    Beside::parse(url.secret(), config.lease.duration)
        .map(BesideTheStore)
        .map_err(|e| Failure::refused("store.url", &e))
}

#[async_trait]
impl Connect for BesideTheStore {
    async fn connect(&self) -> Result<Connection, String> {
        let (client, words) = self.0.dial().await.map_err(|e| e.to_string())?;
        Connection::drive(client, words).await
    }
}
