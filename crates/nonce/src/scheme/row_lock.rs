//! Scheme `row-lock`: PostgreSQL allocates and reserves in one statement under the lane's row lock.
//!
//! The row lock serialises all processes, so the smallest recyclable nonce or the next new one is reserved exactly once.
//! Every call is durable when it returns, and the process keeps no state. An optional Redis lock per lane keeps waiting
//! processes off the row and its connections; it is skipped when Redis is unavailable, and correctness does not depend on
//! it. The cost is one database transaction per call and a throughput per lane that is bound by the row. The expiry sweep
//! frees what holders forget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use domain::{LaneKey, Mark, Reservation};
use engine::ports::{LaneReservations, ReservationError};

use super::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, WatchedReservation,
};
use crate::Result;
use crate::postgres::{Ledger, Pool};
use crate::redis::LaneLock;

/// The scheme `row-lock`.
pub struct RowLock {
    ledger: Ledger,
    lock: Option<LaneLock>,
    is_closed: AtomicBool,
}

impl RowLock {
    /// Uses the ledger in this database, optionally behind a lock in Redis.
    #[must_use]
    pub fn new(db: Arc<Pool>, lock: Option<LaneLock>) -> Self {
        Self {
            ledger: Ledger::new(db, SchemeKind::RowLock),
            lock,
            is_closed: AtomicBool::new(false),
        }
    }

    async fn allocate_under_lock(
        &self,
        lock: &LaneLock,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation> {
        let guard = lock.acquire(lane, request.holder.0).await?;
        let is_required = !lock.redis().config().degrade;
        if is_required && !guard.has_lock() {
            return Err(ReservationError::Unavailable(
                "cannot acquire the lane's Redis lock; retry".into(),
            ));
        }
        let reservation = self.ledger.reserve_next(lane, request).await;
        match &reservation {
            // The statement may still be running: the lock is left to its own timeout.
            Err(ReservationError::Unknown(_)) => {}
            Ok(_) | Err(_) => guard.release().await,
        }
        reservation
    }
}

#[async_trait]
impl Scheme for RowLock {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RowLock
    }

    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed_error());
        }
        match &self.lock {
            Some(lock) => self.allocate_under_lock(lock, lane, request).await,
            None => self.ledger.reserve_next(lane, request).await,
        }
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        self.ledger.mark(key, &mark).await
    }

    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>> {
        self.ledger.find_reservation(key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.ledger.list_reservations(lane).await
    }

    async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.ledger.list_watched(limit).await
    }

    async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.ledger.list_overdue(limit).await
    }

    async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        self.ledger.apply_verdicts(verdicts).await
    }

    async fn close(&self) -> Result<()> {
        // PostgreSQL has everything already.
        self.is_closed.store(true, Ordering::Release);
        Ok(())
    }
}
