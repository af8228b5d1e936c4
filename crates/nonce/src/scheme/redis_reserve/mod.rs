//! Scheme 3: Redis issues and reserves in one script; PostgreSQL is told in batches.
//!
//! Redis hands out only what PostgreSQL set aside for one *generation*: one life of one server, under a token and a
//! lease. Every script checks that the server is still that one and that nothing of its state is missing. After a
//! restart, a failover or a flush the next generation begins, with other nonces; what the last one may have handed
//! out is reserved by its token until the last such loan is overdue, and free only if the chain shows nothing of it.
//! A process hands out under a generation only while it trusts the lease, so an old master that is still reachable
//! serves nobody for longer than that. While Redis is away PostgreSQL lends by itself what no generation keeps.

mod care;
mod notes;
mod scripts;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{Clock, LaneReservations, ReservationError};

use super::kept::{self, Writer};
use super::{Borrow, Scheme, SchemeKind, Settlement, Verdict, Watched};
use crate::postgres::{Books, Db};
use crate::redis::Redis;
use serve::Server;

/// How generations are made and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisReserveConfig {
    /// How many nonces are set aside for Redis at once.
    pub block: usize,
    /// How long a generation lasts that no process confirms. Each trusts it for two thirds.
    pub permission: Duration,
    /// How old a generation must be before the next one may take its place.
    pub patience: Duration,
    /// How many loans and marks may wait to be written down.
    pub unwritten_max: usize,
}

impl Default for RedisReserveConfig {
    fn default() -> Self {
        Self {
            block: 100,
            permission: Duration::from_secs(15),
            patience: Duration::from_secs(1),
            unwritten_max: 10_000,
        }
    }
}

/// Redis issues and reserves.
pub struct RedisReserve {
    server: Arc<Server>,
    writer: Arc<Writer>,
    is_closed: AtomicBool,
}

impl RedisReserve {
    /// With books in this database.
    #[must_use]
    pub fn new(
        db: Arc<Db>,
        redis: Arc<Redis>,
        clock: Arc<dyn Clock>,
        config: RedisReserveConfig,
    ) -> Self {
        let config = RedisReserveConfig {
            block: config.block.max(1),
            ..config
        };
        let books = Arc::new(Books::new(db, SchemeKind::RedisReserve));
        let max = config.unwritten_max;
        let server = Arc::new(Server::new(
            Arc::clone(&books),
            redis,
            Arc::clone(&clock),
            config,
        ));
        let aftermath = Arc::clone(&server) as _;
        Self {
            writer: Arc::new(Writer::new(books, clock, aftermath, max)),
            server,
            is_closed: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl Scheme for RedisReserve {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RedisReserve
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed());
        }
        let borrow = kept::within_bounds(borrow)?;
        match self.server.lend(&self.writer, lane, borrow).await? {
            Some(lent) => Ok(lent),
            None => self.server.books.lend_loose(lane, borrow).await,
        }
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let loan = (lane, nonce, holder);
        kept::mark(&self.writer, &*self.server.clock, loan, mark, || None).await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        let loan = (lane, nonce, holder);
        let server = &self.server;
        kept::reservation(&self.writer, &server.books, &*server.clock, loan).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.writer.settled().await?;
        self.server.books.lent_by_keepers(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        self.server.look_after_generations(&self.writer).await?;
        let ended = self.server.books.reap().await?;
        if ended > 0 {
            metrics::counter!("lanekeeper_nonce_keepers_ended_total").increment(ended);
            tracing::info!(ended, "generations without Redis are for the sweep");
        }
        self.writer.settled().await?;
        self.server.books.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.server.books.settle(settlements).await?;
        for settlement in settlements {
            if settlement.verdict == Verdict::Free {
                let lane = settlement.seen.reservation.lane;
                self.server.notes.with(lane, |note| note.has_free = true);
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), ReservationError> {
        self.is_closed.store(true, Ordering::Release);
        self.writer.settled().await?;
        self.server.put_all_back().await?;
        self.writer.settled().await
    }
}
