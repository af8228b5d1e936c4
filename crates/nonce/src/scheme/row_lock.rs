//! Scheme 1: PostgreSQL issues and reserves under the lane's row lock, in one call. A Redis lock in front keeps
//! crowds off that row; it is left out when Redis is away, and nothing depends on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};

use super::{Borrow, Scheme, SchemeKind, Settlement, Watched};
use crate::postgres::{Books, Db};
use crate::redis::LaneLock;

/// The scheme with the fewest parts.
pub struct RowLock {
    books: Books,
    lock: Option<LaneLock>,
    is_closed: AtomicBool,
}

impl RowLock {
    /// With books in this database, and perhaps a lock in front of them.
    #[must_use]
    pub fn new(db: Arc<Db>, lock: Option<LaneLock>) -> Self {
        Self {
            books: Books::new(db, SchemeKind::RowLock),
            lock,
            is_closed: AtomicBool::new(false),
        }
    }

    async fn allocate_in_turn(
        &self,
        lock: &LaneLock,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        let turn = lock.turn(lane, borrow.holder.0).await;
        let turn = turn.map_err(|_crowded| ReservationError::Busy)?;
        let must_have = !lock.redis().config().degrade;
        if must_have && !turn.has_lock() {
            return Err(ReservationError::Unavailable(
                "the lane's lock is not to be had".into(),
            ));
        }
        let lent = self.books.lend(lane, borrow).await;
        match &lent {
            // It may still be under way: the lock opens by its own time-out.
            Err(ReservationError::Unknown(_)) => {}
            Ok(_) | Err(_) => turn.release().await,
        }
        lent
    }
}

#[async_trait]
impl Scheme for RowLock {
    fn kind(&self) -> SchemeKind {
        SchemeKind::RowLock
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(super::closed());
        }
        match &self.lock {
            Some(lock) => self.allocate_in_turn(lock, lane, borrow).await,
            None => self.books.lend(lane, borrow).await,
        }
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        self.books.mark(lane, nonce, holder, &mark).await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        self.books.reservation(lane, nonce, holder).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.books.list_reservations(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        self.books.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.books.settle(settlements).await
    }

    async fn close(&self) -> Result<(), ReservationError> {
        // Everything is in PostgreSQL already.
        self.is_closed.store(true, Ordering::Release);
        Ok(())
    }
}
