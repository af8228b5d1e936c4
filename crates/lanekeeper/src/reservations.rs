//! The nonce component of this process: the configured scheme, its background sweep, and its shutdown.

use std::sync::Arc;
use std::time::Duration;

use cli::Failure;
use domain::LaneKey;
use domain::lane::Finality;
use engine::node::{NodeConfig, NodeHandle};
use engine::ports::{Chain, Clock, NonceReservations, Signer};
use nonce::postgres::{
    ConnectError, Connector, Pool, PoolConfig, Timeouts, bind_lanes, check, prepare,
};
use nonce::redis::{LaneLock, LockConfig, Redis, RedisConfig};
use nonce::scheme::{
    LaneScheme, RedisIssue, RedisReserve, RedisReserveConfig, RowLock, Segment, SegmentConfig,
};
use nonce::{NonceComponent, ReservationChain, Scheme, SchemeKind};
use tokio::task::JoinHandle;

use crate::config::{Config, StoreUrl};

/// A nonce that Redis has issued and PostgreSQL has not reserved within this time is free again.
const ISSUE_GRACE: Duration = Duration::from_secs(15);
/// How long the component may take to write its last reservations.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The running nonce component.
pub(crate) struct ReservationService {
    component: NonceComponent,
    sweep: JoinHandle<()>,
}

impl ReservationService {
    /// Starts the component if the configuration has an external account.
    pub(crate) async fn start(
        config: &Config,
        node: &NodeHandle,
        chains: &[Arc<dyn Chain>],
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>, Failure> {
        if config.external_accounts().next().is_none() {
            return Ok(None);
        }
        let scheme = open_scheme(config, node, clock).await?;
        let chains = chains.iter().map(|chain| reservation_chain(config, chain));
        let component = NonceComponent::start(
            config.reservation_settings(),
            scheme,
            chains.collect(),
            Arc::clone(clock),
        )
        .map_err(|e| Failure::refused("cannot start nonce reservations", &e))?;
        let sweep = tokio::spawn(component.sweep().run());
        Ok(Some(Self { component, sweep }))
    }

    /// The port that the API calls.
    pub(crate) fn port(&self) -> Arc<dyn NonceReservations> {
        Arc::new(self.component.clone())
    }

    /// Stops issuing nonces, and writes the reservations that are still in memory.
    pub(crate) async fn close(self) {
        self.sweep.abort();
        if let Err(error) = self.component.close(CLOSE_TIMEOUT).await {
            tracing::warn!(%error, "reservations in memory were not written: their nonces are free again after their timeout");
        }
    }
}

/// Binds the lanes that this node sends from, so that no reservation scheme uses them. Fails if one of them is
/// already bound to a scheme: a lane belongs to one scheme, or to its own txs.
pub(crate) async fn bind_own_lanes(
    config: &Config,
    node: &NodeConfig,
    signer: &dyn Signer,
) -> Result<(), Failure> {
    let StoreUrl::Postgres(_) = &config.store.url else {
        return Ok(()); // the embedded store has no tables of other schemes
    };
    let lanes: Vec<LaneKey> = node
        .lanes(signer)
        .into_iter()
        .map(|(lane, _)| lane)
        .collect();
    let unreachable =
        |e: ConnectError| Failure::Unreachable(format!("the reservation tables: {e}"));
    let connection = connector(config)?.connect().await.map_err(unreachable)?;
    let bound = bind_lanes(connection.client(), &lanes).await;
    match bound.map_err(|e| Failure::refused("the reservation tables", &e))? {
        None => Ok(()),
        Some(lane) => Err(Failure::Refused(format!(
            "nonces of lane {lane} were reserved with another scheme, and a lane never changes its scheme: set \
             the signer's kind to \"external\" and nonce.scheme to its former value, or use another account"
        ))),
    }
}

/// Migrates the tables of the schemes on PostgreSQL.
pub(crate) async fn migrate_tables(config: &Config, role: Option<&str>) -> Result<(), Failure> {
    let refused = |e: ConnectError| Failure::Refused(format!("the reservation tables: {e}"));
    let mut connection = connector(config)?.connect().await.map_err(refused)?;
    let prepared = prepare(connection.client_mut(), role).await;
    prepared.map_err(|e| Failure::refused("cannot migrate the reservation tables", &e))?;
    Ok(())
}

async fn open_scheme(
    config: &Config,
    node: &NodeHandle,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Scheme>, Failure> {
    let kind = config.nonce.scheme;
    if kind == SchemeKind::Lane {
        return Ok(Arc::new(LaneScheme::new(node.clone())));
    }
    let connector = connector(config)?;
    let unreachable =
        |e: ConnectError| Failure::Unreachable(format!("the reservation tables: {e}"));
    let connection = connector.connect().await.map_err(unreachable)?;
    check(connection.client())
        .await
        .map_err(|e| Failure::refused("cannot start nonce reservations", &e))?;
    let db = Arc::new(Pool::new(connector, PoolConfig::default()));
    let redis = open_redis(config, clock)?;
    let block_size = usize::try_from(config.nonce.segment_size).unwrap_or(usize::MAX);
    let needs_redis = || Failure::Usage("redis.url is not set".to_owned());
    Ok(match kind {
        SchemeKind::Lane => unreachable!("returned above"),
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
                block_size,
                ..RedisReserveConfig::default()
            };
            Arc::new(RedisReserve::new(db, redis, Arc::clone(clock), settings))
        }
        SchemeKind::Segment => {
            let settings = SegmentConfig {
                size: block_size,
                ..SegmentConfig::default()
            };
            Arc::new(Segment::new(db, Arc::clone(clock), settings))
        }
    })
}

fn open_redis(config: &Config, clock: &Arc<dyn Clock>) -> Result<Option<Arc<Redis>>, Failure> {
    let Some(url) = &config.redis.url else {
        return Ok(None);
    };
    let settings = RedisConfig {
        degrade: config.redis.degrade_on_failure,
        failures_to_degrade: u32::try_from(config.redis.failures_to_degrade).unwrap_or(u32::MAX),
        probe_every: config.redis.probe_interval,
        ..RedisConfig::new(&url.0)
    };
    let redis = Redis::new(settings, Arc::clone(clock));
    redis
        .map(Some)
        .map_err(|e| Failure::refused("redis.url is invalid", &e))
}

fn reservation_chain(config: &Config, chain: &Arc<dyn Chain>) -> ReservationChain {
    let rules = config.chains.iter().find(|one| one.id == chain.id().0);
    let finality = rules.map_or(Finality::Depth(config.confirmations.required), |rules| {
        config.finality(rules)
    });
    ReservationChain {
        chain: Arc::clone(chain),
        finality,
        watch_depth: config.watch_depth(finality),
    }
}

/// Connects to the store's database as the store does.
fn connector(config: &Config) -> Result<Connector, Failure> {
    let StoreUrl::Postgres(url) = &config.store.url else {
        return Err(Failure::Usage(
            "this nonce.scheme requires a postgres:// store".to_owned(),
        ));
    };
    Connector::parse(url.secret(), &Timeouts::from_lease(config.lease.duration))
        .map_err(|e| Failure::refused("store.url is invalid", &e))
}
