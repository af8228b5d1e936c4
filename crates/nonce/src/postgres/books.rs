//! The verbs on the books of one scheme: each is one call to a function of `schema.sql`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState, Timestamp};
use engine::ports::ReservationError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::rows::{self, Lane, column, not_lendable, scheme_number, signed, unsigned};
use super::{Db, Fault};
use crate::scheme::{Borrow, SchemeKind};

/// How many nonces are written down as free when the chain went past them, newest first.
pub(super) const SKIPPED_MAX: i64 = 1_024;

/// How many bytes of a reason are kept.
const REASON_MAX: usize = 1_000;

/// The books of one scheme.
#[derive(Debug)]
pub struct Books {
    pub(super) db: Arc<Db>,
    pub(super) kind: SchemeKind,
    /// The last reservation that was given to the sweep: the next page begins behind it.
    pub(super) watched: Mutex<(i32, i64)>,
}

/// Before the first reservation of the first lane.
pub(super) const FROM_THE_START: (i32, i64) = (0, -1);

/// What became of a nonce that somebody else issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// It, or a smaller one that was free, is lent.
    LaneReservations {
        /// To whom it was asked for.
        reservation: Reservation,
        /// Whether another one is free.
        has_free: bool,
    },
    /// It cannot be lent, or there is none; its issuer's counter belongs here.
    Refused {
        /// The next one that was never lent.
        next: Nonce,
    },
}

impl Books {
    /// The books of this scheme in this database.
    #[must_use]
    pub fn new(db: Arc<Db>, kind: SchemeKind) -> Self {
        Self {
            db,
            kind,
            watched: Mutex::new(FROM_THE_START),
        }
    }

    /// The database they are in.
    #[must_use]
    pub fn db(&self) -> &Arc<Db> {
        &self.db
    }

    /// Lends the smallest free nonce, or the next one: issued and reserved here, under the lane's row lock.
    pub async fn lend(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_lend_1($1, $2, $3, $4, $5, $6, $7)";
        let key = Lane::of(lane)?;
        let (at_least, timeout) = (signed(borrow.at_least.0)?, millis(borrow.timeout));
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&borrow.holder.0 as _, Type::UUID),
            (&at_least as _, Type::INT8),
            (&timeout as _, Type::INT8),
            (&SKIPPED_MAX as _, Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        reservation_from_row(lane, borrow.holder, &row).map_err(Fault::of_write)
    }

    /// Where a lane's counter must stand at least.
    pub async fn next(&self, lane: LaneKey, at_least: Nonce) -> Result<Nonce, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_next_1($1, $2, $3, $4)";
        let (key, at_least) = (Lane::of(lane)?, signed(at_least.0)?);
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&at_least as _, Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_read)?;
        self.expect_ours(lane, &row)?;
        let next = column(&row, "next").and_then(unsigned);
        next.map(Nonce).map_err(Fault::of_read)
    }

    /// Reserves a nonce that somebody else issued, or a smaller one that is free: then the issued one is free in
    /// its place. With nothing issued only a free one is lent. One that is `ahead_max` or more above all others is refused: its issuer cannot be right.
    pub async fn reserve(
        &self,
        lane: LaneKey,
        borrow: Borrow,
        issued: Option<Nonce>,
        ahead_max: i64,
    ) -> Result<Reserved, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_reserve_1($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let key = Lane::of(lane)?;
        let (at_least, timeout) = (signed(borrow.at_least.0)?, millis(borrow.timeout));
        let issued = issued.map(|nonce| signed(nonce.0)).transpose()?;
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&borrow.holder.0 as _, Type::UUID),
            (&at_least as _, Type::INT8),
            (&timeout as _, Type::INT8),
            (&SKIPPED_MAX as _, Type::INT8),
            (&issued as _, Type::INT8),
            (&ahead_max as _, Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            let next: Option<i64> = column(&row, "next")?;
            Ok(match next {
                Some(next) => Reserved::Refused {
                    next: Nonce(unsigned(next)?),
                },
                None => Reserved::LaneReservations {
                    reservation: reservation_from_row(lane, borrow.holder, &row)?,
                    has_free: column(&row, "has_free")?,
                },
            })
        };
        read().map_err(Fault::of_write)
    }

    /// Frees nonces that were issued and never reserved, once they are missing for longer than the grace. Goes
    /// through the lanes in pages; gives where the next page begins, and how many were freed.
    pub async fn close_holes(
        &self,
        after_lane: i32,
        grace: Duration,
    ) -> Result<(i32, u64), ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_holes_1($1, $2, $3, $4, $5, $6)";
        const LANES_MAX: i32 = 100;
        const SCAN_MAX: i64 = 10_000;
        let grace = millis(grace);
        let params = [
            (&scheme_number(self.kind) as _, Type::INT2),
            (&after_lane as _, Type::INT4),
            (&LANES_MAX as _, Type::INT4),
            (&SCAN_MAX as _, Type::INT8),
            (&SKIPPED_MAX as _, Type::INT8),
            (&grace as _, Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_read)?;
        let read = || {
            let last: Option<i32> = column(&row, "last_lane")?;
            Ok((last.unwrap_or(0), unsigned(column(&row, "closed")?)?))
        };
        read().map_err(Fault::of_read)
    }

    /// Takes what a holder says.
    pub async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_mark_2($1, $2, $3, $4, $5, $6, $7, $8)";
        let Ok(which) = signed(nonce.0) else {
            return Err(MarkRefusal::NotLent(nonce).into());
        };
        let key = Lane::of(lane)?;
        let (what, hash, reason): (i16, Option<&[u8]>, Option<String>) = match mark {
            Mark::Submitted(hash) => (0, Some(hash.as_slice()), None),
            Mark::Used(hash) => (1, Some(hash.as_slice()), None),
            Mark::Recyclable { reason, asked } => {
                let asked = asked.as_ref().map(domain::B256::as_slice);
                (2, asked, Some(kept(reason)))
            }
        };
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&which as _, Type::INT8),
            (&holder.0 as _, Type::UUID),
            (&what as _, Type::INT2),
            (&hash as _, Type::BYTEA),
            (&reason as _, Type::TEXT),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        let verdict: i16 = column(&row, "verdict").map_err(Fault::of_write)?;
        match verdict {
            0 => rows::reservation(lane, &row).map_err(Fault::of_write),
            1 => Err(MarkRefusal::NotLent(nonce).into()),
            // The one table of rules words its own refusals.
            _ => {
                let mut found = rows::reservation(lane, &row).map_err(Fault::of_write)?;
                match found.mark(holder, mark) {
                    Err(refused) => Err(refused.into()),
                    Ok(()) => Err(ReservationError::Unavailable(format!(
                        "nonce {nonce} is refused by the database and not by the rules"
                    ))),
                }
            }
        }
    }

    pub(super) fn expect_ours(&self, lane: LaneKey, row: &Row) -> Result<(), ReservationError> {
        let bound: i16 = column(row, "bound").map_err(Fault::of_read)?;
        match bound == scheme_number(self.kind) {
            true => Ok(()),
            false => Err(not_lendable(lane, bound, self.kind)),
        }
    }
}

/// From columns `lent` and `expires_ms`.
pub(super) fn reservation_from_row(
    lane: LaneKey,
    holder: Holder,
    row: &Row,
) -> Result<Reservation, Fault> {
    Ok(Reservation {
        lane,
        nonce: Nonce(unsigned(column(row, "lent")?)?),
        holder,
        state: ReservationState::Reserved,
        tx_hash: None,
        was_replaced: false,
        expires_at: Timestamp(unsigned(column(row, "expires_ms")?)?),
        reason: None,
    })
}

pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// What of a reason fits into a row.
pub(super) fn kept(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_MAX);
    reason[..end].replace('\0', " ")
}
