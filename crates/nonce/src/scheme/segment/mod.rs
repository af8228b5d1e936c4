//! Scheme `segment`: a process takes a block of nonces from PostgreSQL and issues them from its memory.
//!
//! A block (segment) belongs to one token with a lease, so a nonce is in the memory of at most one process, and a process
//! issues nonces only while it trusts the lease. Reservations and marks are recorded in batches behind the callers; a mark
//! returns when it is durable. When the lease of a dead process ends, its nonces may have been issued without a record:
//! they stay reserved for the token until the last such reservation is expired, and are freed only if the chain shows
//! nothing of them. An idle process returns its unissued nonces after a third of the lease, because they are a gap for all
//! nonces above them. This scheme has the lowest latency and needs no Redis.

mod lane_segments;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{LaneKey, Mark, Nonce, Reservation};
use engine::ports::{Clock, LaneReservations, ReservationError};
use uuid::Uuid;

use super::write_behind::{self, BlockLease, Writer, enqueue_handout};
use super::{
    ConditionalVerdict, ReservationKey, ReserveRequest, Scheme, SchemeKind, Verdict,
    WatchedReservation,
};
use crate::Result;
use crate::postgres::{BlockLeaseTerms, BlockRequest, Ledger, Pool};
use lane_segments::LaneSegments;

/// Settings of the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentConfig {
    /// Number of nonces per refill.
    pub size: usize,
    /// Lease of a segment. The process trusts two thirds of it.
    pub lease: Duration,
    /// How many reservations and marks may wait to be recorded.
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

/// After so many refills that gave the caller no nonce, the call is refused with `Busy`.
const TRIES_MAX: usize = 8;

/// The scheme `segment`.
pub struct Segment {
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    config: SegmentConfig,
    segments: Arc<LaneSegments>,
    writer: Writer,
    is_closed: AtomicBool,
}

impl Segment {
    /// Uses the ledger in this database.
    #[must_use]
    pub fn new(db: Arc<Pool>, clock: Arc<dyn Clock>, config: SegmentConfig) -> Self {
        let config = SegmentConfig {
            size: config.size.max(1),
            ..config
        };
        let ledger = Arc::new(Ledger::new(db, SchemeKind::Segment));
        let segments = Arc::new(LaneSegments::default());
        let observer = Arc::clone(&segments) as _;
        let max = config.unwritten_max;
        Self {
            writer: Writer::new(Arc::clone(&ledger), Arc::clone(&clock), observer, max),
            ledger,
            clock,
            config,
            segments,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Issues a nonce from memory, if there is an issuable one.
    fn issue_from_memory(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Option<Reservation>> {
        let slot = self.writer.acquire_slot()?;
        let issued = self.segments.issue(lane, request, self.clock.monotonic());
        Ok(issued.map(|(nonce, handout)| {
            let key = ReservationKey {
                lane,
                nonce,
                holder: request.holder,
            };
            enqueue_handout(&self.writer, slot, key, handout)
        }))
    }

    /// Takes more nonces for a lane, or only renews its lease (`take_max` 0).
    async fn refill(
        &self,
        lane: LaneKey,
        at_least: Nonce,
        reservation_max: Duration,
        (take_max, fresh_max): (usize, usize),
    ) -> Result<()> {
        let requested_at = self.clock.monotonic();
        let fresh_token = || Uuid::from_u128(self.clock.random());
        let refill = self.segments.begin_refill(lane, at_least, fresh_token);
        let (token, is_new) = (refill.token, refill.is_new);
        let duration = self.config.lease;
        let wanted = BlockRequest {
            at_least,
            take_max,
            fresh_max,
            skipped: &refill.skipped(),
        };
        let lease = BlockLeaseTerms {
            duration,
            reservation_max,
        };
        match self
            .ledger
            .take_block(lane, token, is_new, lease, wanted)
            .await
        {
            Ok(Some(taken)) => {
                let lease = BlockLease {
                    token,
                    requested_at,
                    answered_at: self.clock.monotonic(),
                    now: taken.now,
                    duration,
                    reservation_max: taken.reservation_max,
                };
                let nonces = taken
                    .nonces
                    .into_iter()
                    .map(|nonce| (nonce, taken.allocation_id));
                refill.complete(lease, nonces.collect());
                Ok(())
            }
            Ok(None) => {
                drop(refill); // abandons the token, which is void
                Ok(())
            }
            Err(error) => {
                // If the outcome is unknown, the token may have nonces that this process does not know.
                if !matches!(error, ReservationError::Unknown(_)) {
                    refill.revert();
                }
                Err(error)
            }
        }
    }

    /// Returns the unissued nonces of a lane.
    async fn return_unused(&self, lane: LaneKey) -> Result<()> {
        let Some((token, unused)) = self.segments.take_unused(lane) else {
            return Ok(());
        };
        self.ledger.return_unused(token, &unused).await
    }

    /// Renews the leases of segments in use and returns idle ones: unissued nonces are a gap for all nonces above them.
    async fn maintain_leases(&self) -> Result<()> {
        for lane in self.segments.lanes_with_segment() {
            if self.maintenance_due(lane).is_none() {
                continue;
            }
            // Another call may have used the segment while this one waited.
            let _refill_lock = self.segments.lock_refill(lane).await;
            match self.maintenance_due(lane) {
                Some(Maintenance::ReturnUnused) => self.return_unused(lane).await?,
                Some(Maintenance::Renew(reservation_max)) => {
                    let at_least = self.segments.chain_nonce(lane);
                    self.refill(lane, at_least, reservation_max, (0, 0)).await?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// What a lane's segment needs now.
    fn maintenance_due(&self, lane: LaneKey) -> Option<Maintenance> {
        let (lease, last_used_at) = self.segments.lease_of(lane)?;
        let now = self.clock.monotonic();
        if now.since(last_used_at) >= self.config.lease / 3 {
            return Some(Maintenance::ReturnUnused);
        }
        lease
            .needs_renewal(now)
            .then_some(Maintenance::Renew(lease.reservation_max))
    }
}

/// Maintenance of a segment.
enum Maintenance {
    ReturnUnused,
    /// With this maximum duration of a reservation.
    Renew(Duration),
}

#[async_trait]
impl Scheme for Segment {
    fn kind(&self) -> SchemeKind {
        SchemeKind::Segment
    }

    async fn allocate(&self, lane: LaneKey, request: ReserveRequest) -> Result<Reservation> {
        let request = write_behind::clamp_request(request)?;
        for _ in 0..TRIES_MAX {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(super::closed_error());
            }
            if let Some(reservation) = self.issue_from_memory(lane, request)? {
                return Ok(reservation);
            }
            // One call of this process refills; the others find its nonces.
            let _refill_lock = self.segments.lock_refill(lane).await;
            if let Some(reservation) = self.issue_from_memory(lane, request)? {
                return Ok(reservation);
            }
            let size = self.config.size;
            let counts = match self.segments.has_free(lane, request.at_least) {
                true => (size, 0), // only recyclable ones, or a longer reservation
                false => (size, size),
            };
            let reservation_max = request.timeout;
            self.refill(lane, request.at_least, reservation_max, counts)
                .await?;
            if let Some(reservation) = self.issue_from_memory(lane, request)? {
                return Ok(reservation);
            }
        }
        Err(ReservationError::Busy)
    }

    async fn mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let recycle_target = || {
            let is_closed = self.is_closed.load(Ordering::Acquire);
            let recycle_target =
                self.segments
                    .recycle_target(key.lane, key.nonce, self.clock.monotonic());
            recycle_target.filter(|_| !is_closed)
        };
        write_behind::record_mark(&self.writer, &*self.clock, key, mark, recycle_target).await
    }

    async fn find_reservation(&self, key: ReservationKey) -> Result<Option<Reservation>> {
        write_behind::find_reservation(&self.writer, &self.ledger, &*self.clock, key).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.writer.flush().await?;
        self.ledger.list_reservations(lane).await
    }

    async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.maintain_leases().await?;
        self.ledger.end_expired_blocks().await?;
        self.writer.flush().await?;
        self.ledger.list_watched(limit).await
    }

    async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        self.ledger.list_overdue(limit).await
    }

    async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        self.ledger.apply_verdicts(verdicts).await?;
        for conditional in verdicts {
            if conditional.verdict == Verdict::Free {
                let freed = &conditional.seen.reservation;
                self.segments.note_recyclable(freed.lane, freed.nonce);
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        // Issued nonces are recorded first.
        self.writer.flush().await?;
        for lane in self.segments.lanes_with_segment() {
            let _refill_lock = self.segments.lock_refill(lane).await;
            self.return_unused(lane).await?;
        }
        // Calls that raced with the close found no nonce any more.
        self.writer.flush().await
    }
}
