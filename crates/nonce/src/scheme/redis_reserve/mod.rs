//! Scheme `redis-reserve`: one Redis script allocates and reserves; PostgreSQL records it in batches.
//!
//! Redis issues only nonces that PostgreSQL set aside for one *generation*: one incarnation of one server, identified by a
//! token with a lease. Every script checks that the server is still that one and that none of its state is missing. After
//! a restart, a failover or a flush the next generation starts with other nonces; what the previous one may have issued
//! stays reserved for its token until the last such reservation is expired, and is freed only if the chain shows nothing.
//! A process uses a generation only while it trusts the lease, so a former master that is still reachable stops issuing
//! after that. While Redis is unavailable PostgreSQL reserves nonces that belong to no generation.

mod issuer;
mod lane_states;
mod maintenance;
mod scripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Mark, Reservation};
use engine::ports::{Clock, LaneReservations};

use super::write_behind::{self, Writer};
use super::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, Verdict,
    WatchedReservation,
};
use crate::Result;
use crate::postgres::{Ledger, Pool};
use crate::redis::Redis;
use issuer::RedisIssuer;
use lane_states::LaneStates;

/// Settings of the generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisReserveConfig {
    /// Number of nonces that are set aside for Redis at once.
    pub block_size: usize,
    /// Lease of a generation. Every process trusts two thirds of it.
    pub lease: Duration,
    /// Minimum age of a generation before the next one may replace it.
    pub generation_age_min: Duration,
    /// How many reservations and marks may wait to be recorded.
    pub unwritten_max: usize,
}

impl Default for RedisReserveConfig {
    fn default() -> Self {
        Self {
            block_size: 100,
            lease: Duration::from_secs(15),
            generation_age_min: Duration::from_secs(1),
            unwritten_max: 10_000,
        }
    }
}

/// The scheme `redis-reserve`.
pub struct RedisReserve {
    issuer: Arc<RedisIssuer>,
    writer: Arc<Writer>,
    is_closed: AtomicBool,
}

impl RedisReserve {
    /// Uses the ledger in this database.
    #[must_use]
    pub fn new(
        db: Arc<Pool>,
        redis: Arc<Redis>,
        clock: Arc<dyn Clock>,
        config: RedisReserveConfig,
    ) -> Self {
        let config = RedisReserveConfig {
            block_size: config.block_size.max(1),
            ..config
        };
        let ledger = Arc::new(Ledger::new(db, SchemeKind::RedisReserve));
        let max = config.unwritten_max;
        let issuer = Arc::new(RedisIssuer {
            ledger: Arc::clone(&ledger),
            clock: Arc::clone(&clock),
            lane_states: LaneStates::default(),
            redis,
            config,
        });
        let observer = Arc::clone(&issuer) as _;
        Self {
            writer: Arc::new(Writer::new(ledger, clock, observer, max)),
            issuer,
            is_closed: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl Scheme for RedisReserve {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RedisReserve
    }

    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed_error());
        }
        let request = write_behind::clamp_request(request)?;
        match self.issuer.try_reserve(&self.writer, lane, request).await? {
            Some(reservation) => Ok(reservation),
            None => self.issuer.ledger.reserve_next(lane, request).await,
        }
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        write_behind::record_mark(&self.writer, &*self.issuer.clock, key, mark, || None).await
    }

    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>> {
        let issuer = &self.issuer;
        write_behind::find_reservation(&self.writer, &issuer.ledger, &*issuer.clock, key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.writer.flush().await?;
        self.issuer.ledger.list_reservations(lane).await
    }

    async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.issuer.maintain_generations(&self.writer).await?;
        self.issuer.ledger.end_expired_blocks().await?;
        self.writer.flush().await?;
        self.issuer.ledger.list_watched(limit).await
    }

    async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.issuer.ledger.list_overdue(limit).await
    }

    async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        self.issuer.ledger.apply_verdicts(verdicts).await?;
        for conditional in verdicts {
            if conditional.verdict == Verdict::Free {
                let lane = conditional.seen.reservation.lane;
                self.issuer
                    .lane_states
                    .with(lane, |state| state.has_free = true);
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        self.writer.flush().await?;
        self.issuer.return_all_unused().await?;
        self.writer.flush().await
    }
}
