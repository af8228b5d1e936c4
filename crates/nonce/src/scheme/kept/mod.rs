//! What the schemes share that hand nonces out first and write them down afterwards.

mod writer;

use std::time::Duration;

use domain::{Holder, LaneKey, Mark, MonotonicTime, Nonce, Reservation, Timestamp};
use engine::ports::{Clock, ReservationError};
use uuid::Uuid;

use super::Borrow;
use crate::postgres::{Books, Entry, What, Written, signed};

pub(super) use writer::{Aftermath, Writer};

/// How long a mark waits for another process to write down what it handed out.
const NOT_YET_MAX: Duration = Duration::from_secs(2);

/// How soon it looks again: at first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(3);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// No loan is longer: the database could not write its deadline.
const LOAN_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// What can be lent at all, with a time that can be written down.
pub(super) fn within_bounds(borrow: Borrow) -> Result<Borrow, ReservationError> {
    signed(borrow.at_least.0)?;
    Ok(Borrow {
        timeout: borrow.timeout.min(LOAN_MAX),
        ..borrow
    })
}

/// A right that the database gave, as this process may trust it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) token: Uuid,
    /// Read before the database was asked.
    pub(super) asked_at: MonotonicTime,
    /// Read after it had answered.
    pub(super) heard_at: MonotonicTime,
    /// The database's time when it answered.
    pub(super) now: Timestamp,
    pub(super) lasts: Duration,
    /// No loan under it may be longer.
    pub(super) loan: Duration,
}

impl Grant {
    /// Two thirds of what was granted, counted from before the question: clocks need not run equally fast.
    pub(super) fn is_trusted(&self, now: MonotonicTime) -> bool {
        now.since(self.asked_at) < self.lasts * 2 / 3
    }

    /// Whether it is time to ask again.
    pub(super) fn is_ageing(&self, now: MonotonicTime) -> bool {
        now.since(self.asked_at) >= self.lasts / 3
    }

    /// When a loan ends that begins now, by the database's clock; never too late, and too early by no more than the
    /// answer was on its way.
    pub(super) fn deadline(&self, now: MonotonicTime, timeout: Duration) -> Timestamp {
        self.now.plus(now.since(self.heard_at)).plus(timeout)
    }
}

/// Writes a mark down. `keep` says who would keep the nonce if it is given back.
pub(super) async fn mark(
    writer: &Writer,
    clock: &dyn Clock,
    (lane, nonce, holder): (LaneKey, Nonce, Holder),
    mark: Mark,
    keep: impl Fn() -> Option<(Uuid, i64)>,
) -> Result<Reservation, ReservationError> {
    let began = clock.monotonic();
    let mut look = LOOK_FIRST;
    loop {
        let what = match mark.clone() {
            Mark::Submitted(hash) => What::Submitted(hash),
            Mark::Used(hash) => What::Used(hash),
            Mark::Recyclable { reason, asked } => What::Recyclable {
                reason,
                asked,
                keep: keep(),
            },
        };
        let entry = Entry {
            lane,
            nonce,
            holder,
            what,
        };
        match writer.write(entry).await? {
            Written::Done { reservation, .. } => return Ok(reservation),
            Written::Refused(why) => return Err(why),
            Written::NotYet if clock.monotonic().since(began) < NOT_YET_MAX => {
                clock.sleep(look).await;
                look = (look * 2).min(LOOK_MAX);
            }
            // Whoever keeps it may have lent it and not have come to write: nobody can say that it is not lent.
            Written::NotYet => {
                return Err(ReservationError::Unavailable(format!(
                    "nonce {nonce} is not written down as lent yet; repeat it"
                )));
            }
        }
    }
}

/// What was lent to this holder, when everything that this process handed out is written down.
pub(super) async fn reservation(
    writer: &Writer,
    books: &Books,
    clock: &dyn Clock,
    (lane, nonce, holder): (LaneKey, Nonce, Holder),
) -> Result<Option<Reservation>, ReservationError> {
    writer.settled().await?;
    let began = clock.monotonic();
    let mut look = LOOK_FIRST;
    loop {
        let Some(found) = books.found(lane, nonce).await? else {
            return Ok(None);
        };
        if found.reservation.holder == holder {
            return Ok(Some(found.reservation));
        }
        if !found.is_live_for || clock.monotonic().since(began) >= NOT_YET_MAX {
            return Ok(None);
        }
        clock.sleep(look).await;
        look = (look * 2).min(LOOK_MAX);
    }
}
