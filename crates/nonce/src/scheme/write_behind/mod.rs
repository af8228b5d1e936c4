//! What `segment` and `redis-reserve` share: they issue a nonce first and record the reservation afterwards.

mod writer;

use std::time::Duration;

use domain::{Mark, MonotonicTime, Reservation, Timestamp};
use engine::ports::{Clock, ReservationError};
use uuid::Uuid;

use super::{ReservationKey, ReserveRequest};
use crate::Result;
use crate::postgres::{
    EntryKind, Handout, Ledger, LedgerEntry, WriteOutcome, new_reservation, signed,
};

pub(super) use writer::{WriteObserver, WriteSlot, Writer};

/// How long a mark waits until another process has recorded its reservation.
const UNRECORDED_WAIT_MAX: Duration = Duration::from_secs(2);

/// Delay before the next check: initial and maximum.
const POLL_FIRST: Duration = Duration::from_millis(3);
const POLL_MAX: Duration = Duration::from_millis(100);

/// Maximum duration of a reservation: the database could not store a later expiry.
const RESERVATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Checks the range of a request and limits its timeout to what the database can store.
pub(super) fn clamp_request(request: ReserveRequest) -> Result<ReserveRequest> {
    signed(request.at_least.0)?;
    Ok(ReserveRequest {
        timeout: request.timeout.min(RESERVATION_MAX),
        ..request
    })
}

/// The lease of an allocation block holder, as this process may trust it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLease {
    pub(super) token: Uuid,
    /// Read before the request was sent.
    pub(super) requested_at: MonotonicTime,
    /// Read after the answer arrived.
    pub(super) answered_at: MonotonicTime,
    /// The database's time of the answer.
    pub(super) now: Timestamp,
    pub(super) duration: Duration,
    /// Maximum duration of a reservation under this lease.
    pub(super) reservation_max: Duration,
}

impl BlockLease {
    /// Trusted for two thirds of its duration, counted from before the request, because clocks differ in speed.
    pub(super) fn is_trusted(&self, now: MonotonicTime) -> bool {
        now.since(self.requested_at) < self.duration * 2 / 3
    }

    /// Whether the lease should be renewed.
    pub(super) fn needs_renewal(&self, now: MonotonicTime) -> bool {
        now.since(self.requested_at) >= self.duration / 3
    }

    /// Expiry of a reservation that starts now, by the database's clock: never too late, and too early by at most the
    /// duration of the answer.
    pub(super) fn reservation_deadline(&self, now: MonotonicTime, timeout: Duration) -> Timestamp {
        self.now.plus(now.since(self.answered_at)).plus(timeout)
    }
}

/// Queues a hand-out to be recorded, and returns its reservation.
pub(super) fn enqueue_handout(
    writer: &Writer,
    slot: WriteSlot,
    key: ReservationKey,
    handout: Handout,
) -> Reservation {
    let kind = EntryKind::Reserved(handout);
    writer.enqueue(LedgerEntry { key, kind }, slot);
    new_reservation(key, handout.expires_at)
}

pub(super) fn warn_late_reservation(entry: &LedgerEntry, why: &ReservationError) {
    metrics::counter!("lanekeeper_nonce_late_loans_total").increment(1);
    let (lane, nonce) = (entry.key.lane, entry.key.nonce);
    tracing::warn!(%lane, %nonce, %why, "a reservation was recorded too late and is void");
}

/// Records a mark. `recycle_target` returns the allocation block that takes the nonce if it is recycled.
pub(super) async fn record_mark(
    writer: &Writer,
    clock: &dyn Clock,
    key: ReservationKey,
    mark: Mark,
    recycle_target: impl Fn() -> Option<(Uuid, i64)>,
) -> Result<Reservation> {
    let began = clock.monotonic();
    let mut delay = POLL_FIRST;
    loop {
        let kind = EntryKind::Marked {
            recycle_target: match mark {
                Mark::Recyclable { .. } => recycle_target(),
                Mark::Submitted(_) | Mark::Used(_) => None,
            },
            mark: mark.clone(),
        };
        let entry = LedgerEntry { key, kind };
        match writer.write(entry).await? {
            WriteOutcome::Done { reservation, .. } => return Ok(reservation),
            WriteOutcome::Refused(why) => return Err(why),
            WriteOutcome::NotYet if clock.monotonic().since(began) < UNRECORDED_WAIT_MAX => {
                clock.sleep(delay).await;
                delay = (delay * 2).min(POLL_MAX);
            }
            // The block holder may have issued it and not recorded it yet, so "not reserved" would be a guess.
            WriteOutcome::NotYet => {
                return Err(ReservationError::Unavailable(format!(
                    "the reservation of nonce {} is not recorded yet; retry",
                    key.nonce
                )));
            }
        }
    }
}

/// The holder's reservation, once everything that this process issued is recorded.
pub(super) async fn find_reservation(
    writer: &Writer,
    ledger: &Ledger,
    clock: &dyn Clock,
    key: ReservationKey,
) -> Result<Option<Reservation>> {
    writer.flush().await?;
    let began = clock.monotonic();
    let mut delay = POLL_FIRST;
    loop {
        let Some((found, is_in_block)) = ledger.find_row(key.lane, key.nonce).await? else {
            return Ok(None);
        };
        if found.holder == key.holder {
            return Ok(Some(found));
        }
        if !is_in_block || clock.monotonic().since(began) >= UNRECORDED_WAIT_MAX {
            return Ok(None);
        }
        clock.sleep(delay).await;
        delay = (delay * 2).min(POLL_MAX);
    }
}
