//! The ledger of one scheme: each method is one call to a function in `schema/`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState, Timestamp};
use engine::ports::ReservationError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::rows::{self, Lane, column, not_reservable, scheme_number, signed, unsigned};
use super::{Pool, QueryError, read_error, write_error};
use crate::scheme::{ReserveRequest, SchemeKind};

/// How many nonces are inserted as recyclable when the chain has passed them, newest first.
pub(super) const SKIPPED_MAX: i64 = 1_024;

/// How many bytes of a reason are stored.
const REASON_MAX: usize = 1_000;

/// The reservation ledger, as one scheme uses it.
#[derive(Debug)]
pub struct Ledger {
    pub(super) pool: Arc<Pool>,
    pub(super) kind: SchemeKind,
    /// The last reservation that was returned to the sweep: the next page begins after it.
    pub(super) watched: Mutex<(i32, i64)>,
}

/// Before the first reservation of the first lane.
pub(super) const FROM_THE_START: (i32, i64) = (0, -1);

/// The outcome for a nonce that Redis issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// It, or a smaller recyclable one, is reserved.
    Reserved {
        /// The reservation.
        reservation: Reservation,
        /// Whether another nonce is recyclable.
        has_free: bool,
    },
    /// It cannot be reserved, or none was issued; the counter belongs at `next`.
    Refused {
        /// The next nonce that was never reserved.
        next: Nonce,
    },
}

impl Ledger {
    /// The ledger of this scheme in this database.
    #[must_use]
    pub fn new(pool: Arc<Pool>, kind: SchemeKind) -> Self {
        Self {
            pool,
            kind,
            watched: Mutex::new(FROM_THE_START),
        }
    }

    /// The connections that it uses.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Reserves the smallest recyclable nonce, or the next one, under the lane's row lock.
    pub async fn reserve_next(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_reserve_next($1, $2, $3, $4, $5, $6, $7)";
        let key = Lane::of(lane)?;
        let (at_least, timeout) = (signed(request.at_least.0)?, millis(request.timeout));
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&request.holder.0 as _, Type::UUID),
            (&at_least as _, Type::INT8),
            (&timeout as _, Type::INT8),
            (&SKIPPED_MAX as _, Type::INT8),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        reservation_from_row(lane, request.holder, &row).map_err(write_error)
    }

    /// The smallest nonce at which an external counter of the lane may stand.
    pub async fn query_next_nonce(
        &self,
        lane: LaneKey,
        at_least: Nonce,
    ) -> Result<Nonce, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_query_next($1, $2, $3, $4)";
        let (key, at_least) = (Lane::of(lane)?, signed(at_least.0)?);
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&at_least as _, Type::INT8),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(read_error)?;
        self.expect_ours(lane, &row)?;
        let next = column(&row, "next").and_then(unsigned);
        next.map(Nonce).map_err(read_error)
    }

    /// Reserves a nonce that Redis issued, or a smaller recyclable one: then the issued one is recyclable in its place.
    /// Without an issued nonce only a recyclable one is reserved. One that is `ahead_max` or more above all others is
    /// refused: its counter must be wrong.
    pub async fn reserve_issued(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
        issued: Option<Nonce>,
        ahead_max: i64,
    ) -> Result<ReserveOutcome, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_reserve_issued($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let key = Lane::of(lane)?;
        let (at_least, timeout) = (signed(request.at_least.0)?, millis(request.timeout));
        let issued = issued.map(|nonce| signed(nonce.0)).transpose()?;
        let params = [
            (&key.chain as _, Type::INT8),
            (&key.signer as _, Type::BYTEA),
            (&scheme_number(self.kind) as _, Type::INT2),
            (&request.holder.0 as _, Type::UUID),
            (&at_least as _, Type::INT8),
            (&timeout as _, Type::INT8),
            (&SKIPPED_MAX as _, Type::INT8),
            (&issued as _, Type::INT8),
            (&ahead_max as _, Type::INT8),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            let next: Option<i64> = column(&row, "next")?;
            Ok(match next {
                Some(next) => ReserveOutcome::Refused {
                    next: Nonce(unsigned(next)?),
                },
                None => ReserveOutcome::Reserved {
                    reservation: reservation_from_row(lane, request.holder, &row)?,
                    has_free: column(&row, "has_free")?,
                },
            })
        };
        read().map_err(write_error)
    }

    /// Makes nonces recyclable that were issued and never reserved, once they are missing for longer than `grace`.
    /// Scans the lanes in pages; returns where the next page begins, and how many nonces were closed.
    pub async fn close_gaps(
        &self,
        after_lane: i32,
        grace: Duration,
    ) -> Result<(i32, u64), ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_close_gaps($1, $2, $3, $4, $5, $6)";
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
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(read_error)?;
        let read = || {
            let last: Option<i32> = column(&row, "last_lane")?;
            Ok((last.unwrap_or(0), unsigned(column(&row, "closed")?)?))
        };
        read().map_err(read_error)
    }

    /// Applies a holder's mark.
    pub async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: &Mark,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_mark($1, $2, $3, $4, $5, $6, $7, $8)";
        let Ok(which) = signed(nonce.0) else {
            return Err(MarkRefusal::NotReserved(nonce).into());
        };
        let key = Lane::of(lane)?;
        let (what, hash, reason): (i16, Option<&[u8]>, Option<String>) = match mark {
            Mark::Submitted(hash) => (0, Some(hash.as_slice()), None),
            Mark::Used(hash) => (1, Some(hash.as_slice()), None),
            Mark::Recyclable { reason, asked } => {
                let asked = asked.as_ref().map(domain::B256::as_slice);
                (2, asked, Some(truncate_reason(reason)))
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
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        let verdict: i16 = column(&row, "verdict").map_err(write_error)?;
        match verdict {
            0 => rows::reservation(lane, &row).map_err(write_error),
            1 => Err(MarkRefusal::NotReserved(nonce).into()),
            // The rules in `domain` have the texts of their refusals.
            _ => {
                let mut found = rows::reservation(lane, &row).map_err(write_error)?;
                match found.mark(holder, mark) {
                    Err(refused) => Err(refused.into()),
                    Ok(()) => Err(ReservationError::Unavailable(format!(
                        "nonce {nonce}: the database refused a mark that the rules accept"
                    ))),
                }
            }
        }
    }

    pub(super) fn expect_ours(&self, lane: LaneKey, row: &Row) -> Result<(), ReservationError> {
        let bound: i16 = column(row, "bound").map_err(read_error)?;
        match bound == scheme_number(self.kind) {
            true => Ok(()),
            false => Err(not_reservable(lane, bound, self.kind)),
        }
    }
}

/// From columns `reserved` and `expires_ms`.
pub(super) fn reservation_from_row(
    lane: LaneKey,
    holder: Holder,
    row: &Row,
) -> Result<Reservation, QueryError> {
    Ok(Reservation {
        lane,
        nonce: Nonce(unsigned(column(row, "reserved")?)?),
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

/// The part of a reason that fits into a row.
pub(super) fn truncate_reason(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_MAX);
    reason[..end].replace('\0', " ")
}
