//! The ledger of one scheme: each method is one call to a function in `schema/`.

use std::sync::Arc;
use std::time::Duration;

use domain::{Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, Timestamp};
use engine::ports::ReservationError;
use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::rows::{self, Lane, column, not_reservable, scheme_number, signed, unsigned};
use super::{Param, Pool, QueryError, read_error, write_error};
use crate::Result;
use crate::scheme::{ReservationKey, ReserveRequest, SchemeKind};

/// How many nonces are inserted as recyclable when the chain has passed them, newest first.
pub(super) const SKIPPED_MAX: i64 = 1_024;

/// How many bytes of a reason are stored.
const REASON_MAX: usize = 1_000;

/// The reservation ledger, as one scheme uses it.
pub struct Ledger {
    pub(super) pool: Arc<Pool>,
    pub(super) kind: SchemeKind,
    /// The last reservation that was returned to the sweep: the next page begins after it.
    pub(super) watched: Mutex<(i32, i64)>,
    /// The same for overdue reservations.
    pub(super) overdue: Mutex<(i32, i64)>,
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
            overdue: Mutex::new(FROM_THE_START),
        }
    }

    /// Whether this scheme takes blocks of nonces, whose holders hand them out.
    pub(super) fn has_blocks(&self) -> bool {
        matches!(self.kind, SchemeKind::RedisReserve | SchemeKind::Segment)
    }

    /// Reserves the smallest recyclable nonce, or the next one, under the lane's row lock. Outside all blocks, where the
    /// scheme has blocks.
    pub(crate) async fn reserve_next(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation> {
        let sql = match self.has_blocks() {
            true => "SELECT * FROM nonce_reserve_outside_blocks($1, $2, $3, $4, $5, $6, $7)",
            false => "SELECT * FROM nonce_reserve_next($1, $2, $3, $4, $5, $6, $7)",
        };
        let params: [Param<'_>; 4] = [
            (&request.holder.0, Type::UUID),
            (&signed(request.at_least.0)?, Type::INT8),
            (&millis(request.timeout), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
        ];
        let row = self.call(sql, lane, &params, write_error).await?;
        reservation_from_row(lane, request.holder, &row).map_err(write_error)
    }

    /// The smallest nonce at which an external counter of the lane may stand.
    pub(crate) async fn query_next_nonce(&self, lane: LaneKey, at_least: Nonce) -> Result<Nonce> {
        const SQL: &str = "SELECT * FROM nonce_query_next($1, $2, $3, $4)";
        let params: [Param<'_>; 1] = [(&signed(at_least.0)?, Type::INT8)];
        let row = self.call(SQL, lane, &params, read_error).await?;
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
    ) -> Result<ReserveOutcome> {
        const SQL: &str = "SELECT * FROM nonce_reserve_issued($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let issued = issued.map(|nonce| signed(nonce.0)).transpose()?;
        let params: [Param<'_>; 6] = [
            (&request.holder.0, Type::UUID),
            (&signed(request.at_least.0)?, Type::INT8),
            (&millis(request.timeout), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
            (&issued, Type::INT8),
            (&ahead_max, Type::INT8),
        ];
        let row = self.call(SQL, lane, &params, write_error).await?;
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
    pub(crate) async fn close_gaps(&self, after_lane: i32, grace: Duration) -> Result<(i32, u64)> {
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
    pub(crate) async fn mark(&self, key: ReservationKey, mark: &Mark) -> Result<Reservation> {
        const SQL: &str = "SELECT * FROM nonce_mark($1, $2, $3, $4, $5, $6, $7, $8)";
        let Ok(which) = signed(key.nonce.0) else {
            return Err(MarkRefusal::NotReserved(key.nonce).into());
        };
        let (what, hash, reason) = mark_columns(mark);
        let params: [Param<'_>; 5] = [
            (&which, Type::INT8),
            (&key.holder.0, Type::UUID),
            (&what, Type::INT2),
            (&hash, Type::BYTEA),
            (&reason, Type::TEXT),
        ];
        let row = self.call(SQL, key.lane, &params, write_error).await?;
        let verdict: i16 = column(&row, "verdict").map_err(write_error)?;
        if verdict == 1 {
            return Err(MarkRefusal::NotReserved(key.nonce).into());
        }
        let found = rows::reservation(key.lane, &row).map_err(write_error)?;
        match verdict {
            0 => Ok(found),
            _ => Err(refusal(found, key.holder, mark)),
        }
    }

    /// Calls a function whose first parameters are the lane and the scheme, and which answers for a lane of another
    /// scheme only with that scheme.
    pub(super) async fn call(
        &self,
        sql: &str,
        lane: LaneKey,
        rest: &[Param<'_>],
        failed: fn(QueryError) -> ReservationError,
    ) -> Result<Row> {
        let (key, scheme) = (Lane::of(lane)?, scheme_number(self.kind));
        let mut params: Vec<Param<'_>> = vec![
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme, Type::INT2),
        ];
        params.extend_from_slice(rest);
        let row = self.pool.query_one(sql, &params).await.map_err(failed)?;
        self.expect_ours(lane, &row)?;
        Ok(row)
    }

    pub(super) fn expect_ours(&self, lane: LaneKey, row: &Row) -> Result<()> {
        let bound: i16 = column(row, "bound").map_err(read_error)?;
        match bound == scheme_number(self.kind) {
            true => Ok(()),
            false => Err(not_reservable(lane, bound, self.kind)),
        }
    }
}

/// From columns `reserved` and `expires_ms`.
fn reservation_from_row(
    lane: LaneKey,
    holder: Holder,
    row: &Row,
) -> Result<Reservation, QueryError> {
    let key = ReservationKey {
        lane,
        nonce: Nonce(unsigned(column(row, "reserved")?)?),
        holder,
    };
    let expires_at = Timestamp(unsigned(column(row, "expires_ms")?)?);
    Ok(rows::new_reservation(key, expires_at))
}

/// The kind of a mark, its hash and its reason.
pub(super) fn mark_columns(mark: &Mark) -> (i16, Option<&[u8]>, Option<String>) {
    match mark {
        Mark::Submitted(hash) => (0, Some(hash.as_slice()), None),
        Mark::Used(hash) => (1, Some(hash.as_slice()), None),
        Mark::Recyclable { reason, asked } => {
            let asked = asked.as_ref().map(domain::B256::as_slice);
            (2, asked, Some(truncate_reason(reason)))
        }
    }
}

/// Why a mark is refused: the rules in `domain` have the texts.
pub(super) fn refusal(mut found: Reservation, holder: Holder, mark: &Mark) -> ReservationError {
    match found.mark(holder, mark) {
        Err(refused) => refused.into(),
        Ok(()) => ReservationError::Unavailable(format!(
            "nonce {}: the database refused a mark that the rules accept",
            found.nonce
        )),
    }
}

pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The part of a reason that fits into a row.
fn truncate_reason(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_MAX);
    reason[..end].replace('\0', " ")
}
