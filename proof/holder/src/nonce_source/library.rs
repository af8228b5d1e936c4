//! The library in this process, set up like in any application: ledger, optional Redis, chain, component and sweep.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::lane::Finality;
use domain::{ChainId, LaneKey, Reservation};
use engine::ports::{Clock, ReservationError};
use nonce::postgres::{Connector, Pool, PoolConfig, Timeouts, prepare};
use nonce::redis::{LaneLock, LockConfig, Redis, RedisConfig};
use nonce::{
    NonceComponent, RedisIssue, RedisReserve, RedisReserveConfig, ReservationChain, RowLock,
    Scheme, Segment, SegmentConfig, SystemClock,
};
use proof::Outcome;
use proof::network::signer;
use tokio::task::JoinHandle;

use super::{Mark, NonceSource, Refusal, ReservedNonce};
use crate::journal::{Entry, Journal};
use crate::settings::{Settings, SourceSettings, Times};

/// Finality depth of the proof's chain.
const FINAL_DEPTH: u64 = 2;
const WATCH_DEPTH: u64 = 64;
/// How often the state of Redis is polled.
const POLL_EVERY: Duration = Duration::from_millis(20);
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Library {
    component: NonceComponent,
    lane: LaneKey,
    sweep: JoinHandle<()>,
}

impl Library {
    pub(super) async fn open(settings: &Settings, journal: Arc<Journal>) -> Outcome<Self> {
        let SourceSettings::Library {
            scheme,
            postgres,
            redis,
            times,
        } = &settings.source
        else {
            return Err("the settings name no library".into());
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let connector = Connector::parse(postgres, &Timeouts::default())?;
        prepare(connector.connect().await?.client_mut(), None).await?;
        let db = Arc::new(Pool::new(connector, PoolConfig::default()));
        let redis = match redis {
            Some(url) => Some(open_redis(url, times, &clock)?),
            None => None,
        };
        if let Some(redis) = &redis {
            tokio::spawn(watch_redis(Arc::clone(redis), journal));
        }
        let scheme = open_scheme(scheme, times, db, redis, &clock)?;
        let chain_id = ChainId(settings.chain_id);
        let rpc = RpcChainConfig::new(chain_id, vec![EndpointUrl::parse(&settings.rpc)?]);
        let chain = ReservationChain {
            chain: Arc::new(RpcChain::new(rpc)?),
            finality: Finality::Depth(FINAL_DEPTH),
            watch_depth: WATCH_DEPTH,
        };
        let rules = nonce::Settings {
            reservation_timeout: Duration::from_millis(times.reservation_ms),
            sweep_interval: Duration::from_millis(times.sweep_ms),
            free_grace: Duration::from_millis(times.free_grace_ms),
            ..nonce::Settings::default()
        };
        let component = NonceComponent::start(rules, scheme, vec![chain], clock)?;
        let sweep = tokio::spawn(component.sweep().run());
        let lane = LaneKey {
            chain_id,
            signer: signer(settings.account).parse()?,
        };
        Ok(Self {
            component,
            lane,
            sweep,
        })
    }
}

fn open_redis(url: &str, times: &Times, clock: &Arc<dyn Clock>) -> Outcome<Arc<Redis>> {
    let config = RedisConfig {
        probe_every: Duration::from_millis(times.probe_ms),
        ..RedisConfig::new(url)
    };
    Ok(Redis::new(config, Arc::clone(clock))?)
}

fn open_scheme(
    name: &str,
    times: &Times,
    db: Arc<Pool>,
    redis: Option<Arc<Redis>>,
    clock: &Arc<dyn Clock>,
) -> Outcome<Arc<dyn Scheme>> {
    let lease = Duration::from_millis(times.lease_ms);
    let needs_redis = || format!("scheme {name} needs Redis");
    Ok(match name {
        "row-lock" => {
            let lock = redis.map(|redis| LaneLock::new(redis, LockConfig::default()));
            Arc::new(RowLock::new(db, lock))
        }
        "redis-issue" => {
            let grace = Duration::from_millis(times.issue_grace_ms);
            Arc::new(RedisIssue::new(db, redis.ok_or_else(needs_redis)?, grace))
        }
        "redis-reserve" => {
            let config = RedisReserveConfig {
                block_size: times.block,
                lease,
                ..RedisReserveConfig::default()
            };
            let redis = redis.ok_or_else(needs_redis)?;
            Arc::new(RedisReserve::new(db, redis, Arc::clone(clock), config))
        }
        "segment" => {
            let config = SegmentConfig {
                size: times.block,
                lease,
                ..SegmentConfig::default()
            };
            Arc::new(Segment::new(db, Arc::clone(clock), config))
        }
        other => return Err(format!("unknown scheme: {other}").into()),
    })
}

/// Writes to the journal whenever Redis comes into use or goes out of use.
async fn watch_redis(redis: Arc<Redis>, journal: Arc<Journal>) {
    let mut was_available = true;
    loop {
        let is_available = redis.is_available();
        if is_available != was_available {
            was_available = is_available;
            if let Err(error) = journal.write(&Entry::Redis(is_available)) {
                eprintln!("holder: {error}");
                return;
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

#[async_trait]
impl NonceSource for Library {
    async fn allocate(&self) -> Result<ReservedNonce, Refusal> {
        let answer = self.component.allocate(self.lane).await;
        let Reservation {
            nonce,
            holder,
            expires_at,
            ..
        } = answer.map_err(refusal)?;
        Ok(ReservedNonce {
            nonce,
            holder,
            expires_at,
        })
    }

    async fn mark(&self, reserved: &ReservedNonce, mark: &Mark) -> Result<(), Refusal> {
        let (lane, component) = (self.lane, &self.component);
        let (nonce, holder) = (reserved.nonce, reserved.holder);
        let marked = match mark {
            Mark::Submitted(hash) => component.mark_submitted(lane, nonce, holder, *hash).await,
            Mark::Used(hash) => component.mark_used(lane, nonce, holder, *hash).await,
            Mark::Recyclable => {
                let reason = "not needed";
                component.mark_recyclable(lane, nonce, holder, reason).await
            }
        };
        marked.map(drop).map_err(refusal)
    }

    async fn close(&self) {
        self.sweep.abort();
        if let Err(error) = self.component.close(CLOSE_WITHIN).await {
            eprintln!("holder: {error}");
        }
    }
}

fn refusal(error: ReservationError) -> Refusal {
    match error {
        ReservationError::Refused(_)
        | ReservationError::UnknownChain(_)
        | ReservationError::UnknownSigner(..)
        | ReservationError::NotReservable(_) => Refusal::Permanent(error.to_string()),
        ReservationError::MayBeMined { .. } => Refusal::Retryable("may be mined"),
        ReservationError::Busy => Refusal::Retryable("busy"),
        ReservationError::Unavailable(_) => Refusal::Retryable("unavailable"),
        ReservationError::Unknown(_) => Refusal::Retryable("unknown"),
    }
}
