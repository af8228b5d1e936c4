//! Scheme 5: a process takes a segment of nonces from PostgreSQL under a token and a lease, and hands them out from
//! its memory. What it handed out, and what holders say, is written down in batches.
//!
//! A nonce is in the memory of at most one process, because PostgreSQL gave it to one token; and it is handed out
//! only while the lease is trusted. When the lease of a dead process is over, what it kept may be lent to somebody
//! who was not written down: it is reserved by the token until the last such loan is overdue, and free only if the
//! chain shows nothing of it then.

mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Holder, LaneKey, Mark, Nonce, Reservation, ReservationState};
use engine::ports::{Clock, LaneReservations, ReservationError};
use uuid::Uuid;

use super::kept::{self, Grant, Writer};
use super::{Borrow, Scheme, SchemeKind, Settlement, Verdict, Watched};
use crate::postgres::{Books, Db, Entry, Lease, Wanted, What};
use memory::{HandOut, Memory};

/// How segments are taken and held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentConfig {
    /// How many nonces are taken at once.
    pub size: usize,
    /// How long a process may be silent before its segment is not its own any more. It is trusted for two thirds.
    pub lease: Duration,
    /// How many loans and marks may wait to be written down.
    pub unwritten_max: usize,
}

impl Default for SegmentConfig {
    fn default() -> Self {
        Self {
            size: 100,
            lease: Duration::from_secs(30),
            unwritten_max: 10_000,
        }
    }
}

/// After so many segments that were gone before one of their nonces was handed out, the caller comes back.
const TRIES_MAX: usize = 8;

/// Segments from PostgreSQL, handed out from memory.
pub struct Segment {
    books: Arc<Books>,
    clock: Arc<dyn Clock>,
    config: SegmentConfig,
    memory: Arc<Memory>,
    writer: Writer,
    is_closed: AtomicBool,
}

impl Segment {
    /// With books in this database.
    #[must_use]
    pub fn new(db: Arc<Db>, clock: Arc<dyn Clock>, config: SegmentConfig) -> Self {
        let config = SegmentConfig {
            size: config.size.max(1),
            ..config
        };
        let books = Arc::new(Books::new(db, SchemeKind::Segment));
        let memory = Arc::new(Memory::default());
        let aftermath = Arc::clone(&memory) as _;
        let max = config.unwritten_max;
        Self {
            writer: Writer::new(Arc::clone(&books), Arc::clone(&clock), aftermath, max),
            books,
            clock,
            config,
            memory,
            is_closed: AtomicBool::new(false),
        }
    }

    /// One from memory, if there is one that may be handed out now.
    fn hand_out(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Option<Reservation>, ReservationError> {
        let room = self.writer.room()?;
        let Some(out) = self.memory.hand_out(lane, borrow, self.clock.monotonic()) else {
            return Ok(None);
        };
        let HandOut {
            nonce,
            token,
            stint,
            expires_at,
        } = out;
        let holder = borrow.holder;
        let what = What::LaneReservations {
            token,
            stint,
            expires_at,
        };
        let entry = Entry {
            lane,
            nonce,
            holder,
            what,
        };
        self.writer.hand_out(entry, room);
        Ok(Some(Reservation {
            lane,
            nonce,
            holder,
            state: ReservationState::Reserved,
            tx_hash: None,
            was_replaced: false,
            expires_at,
            reason: None,
        }))
    }

    /// Takes more for a lane, or renews its lease with nothing more (`take_max` 0).
    async fn take(
        &self,
        lane: LaneKey,
        at_least: Nonce,
        loan: Duration,
        (take_max, fresh_max): (usize, usize),
    ) -> Result<(), ReservationError> {
        let asked_at = self.clock.monotonic();
        let fresh_token = || Uuid::from_u128(self.clock.random());
        let asking = self.memory.ask(lane, at_least, fresh_token);
        let (token, is_new) = (asking.token, asking.is_new);
        let lasts = self.config.lease;
        let wanted = Wanted {
            at_least,
            take_max,
            fresh_max,
            passed: &asking.passed(),
        };
        let lease = Lease { lasts, loan };
        match self.books.take(lane, token, is_new, lease, wanted).await {
            Ok(Some(taken)) => {
                let grant = Grant {
                    token,
                    asked_at,
                    heard_at: self.clock.monotonic(),
                    now: taken.now,
                    lasts,
                    loan: taken.loan,
                };
                let nonces = taken.nonces.into_iter().map(|nonce| (nonce, taken.stint));
                asking.given(grant, nonces.collect());
                Ok(())
            }
            Ok(None) => {
                drop(asking); // the token is void
                Ok(())
            }
            Err(error) => {
                // Otherwise it may have been given something that nobody heard of.
                if !matches!(error, ReservationError::Unknown(_)) {
                    asking.refused();
                }
                Err(error)
            }
        }
    }

    /// Gives back what is left of a lane's segment.
    async fn put_back(&self, lane: LaneKey) -> Result<(), ReservationError> {
        let Some((token, unused)) = self.memory.clear(lane) else {
            return Ok(());
        };
        self.books.put_back(token, &unused).await
    }

    /// Renews leases that are in use and gives back what nobody asks for: a tail that is set aside is a gap in
    /// front of everything above it.
    async fn look_after_leases(&self) -> Result<(), ReservationError> {
        for lane in self.memory.with_segment() {
            if self.care(lane).is_none() {
                continue;
            }
            // Somebody may have borrowed while we waited for our turn.
            let _turn = self.memory.turn(lane).await;
            match self.care(lane) {
                Some(Care::PutBack) => self.put_back(lane).await?,
                Some(Care::Renew(loan)) => {
                    let at_least = self.memory.floor(lane);
                    self.take(lane, at_least, loan, (0, 0)).await?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// What a lane's segment needs at this moment.
    fn care(&self, lane: LaneKey) -> Option<Care> {
        let (grant, used_at) = self.memory.grant(lane)?;
        let now = self.clock.monotonic();
        if now.since(used_at) >= self.config.lease / 3 {
            return Some(Care::PutBack);
        }
        grant.is_ageing(now).then_some(Care::Renew(grant.loan))
    }
}

/// What a segment needs when nobody borrows.
enum Care {
    PutBack,
    /// With loans of this length.
    Renew(Duration),
}

#[async_trait]
impl Scheme for Segment {
    fn kind(&self) -> SchemeKind {
        SchemeKind::Segment
    }

    async fn allocate(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        let borrow = kept::within_bounds(borrow)?;
        for _ in 0..TRIES_MAX {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(super::closed());
            }
            if let Some(lent) = self.hand_out(lane, borrow)? {
                return Ok(lent);
            }
            // One of this process asks; the others find what he was given.
            let _turn = self.memory.turn(lane).await;
            if let Some(lent) = self.hand_out(lane, borrow)? {
                return Ok(lent);
            }
            let size = self.config.size;
            let counts = match self.memory.has_any(lane, borrow.at_least) {
                true => (size, 0), // only what is free, or a longer loan
                false => (size, size),
            };
            let loan = borrow.timeout;
            self.take(lane, borrow.at_least, loan, counts).await?;
            if let Some(lent) = self.hand_out(lane, borrow)? {
                return Ok(lent);
            }
        }
        Err(ReservationError::Busy)
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let keep = || {
            let is_closed = self.is_closed.load(Ordering::Acquire);
            let keep = self.memory.keep(lane, nonce, self.clock.monotonic());
            keep.filter(|_| !is_closed)
        };
        kept::mark(
            &self.writer,
            &*self.clock,
            (lane, nonce, holder),
            mark,
            keep,
        )
        .await
    }

    async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        let loan = (lane, nonce, holder);
        kept::reservation(&self.writer, &self.books, &*self.clock, loan).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
        self.writer.settled().await?;
        self.books.lent_by_keepers(lane).await
    }

    async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        self.look_after_leases().await?;
        let ended = self.books.reap().await?;
        if ended > 0 {
            metrics::counter!("lanekeeper_nonce_keepers_ended_total").increment(ended);
            tracing::info!(
                ended,
                "segments of processes that are gone are for the sweep"
            );
        }
        self.writer.settled().await?;
        self.books.to_watch(limit).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        self.books.settle(settlements).await?;
        for settlement in settlements {
            if settlement.verdict == Verdict::Free {
                let freed = &settlement.seen.reservation;
                self.memory.note_free(freed.lane, freed.nonce);
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), ReservationError> {
        self.is_closed.store(true, Ordering::Release);
        // Whatever was handed out is written down first.
        self.writer.settled().await?;
        for lane in self.memory.with_segment() {
            let _turn = self.memory.turn(lane).await;
            self.put_back(lane).await?;
        }
        // Those who were in between found nothing any more.
        self.writer.settled().await
    }
}
