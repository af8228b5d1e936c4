//! Reading the books, and closing them by what the chain shows.

use std::sync::PoisonError;

use domain::{Holder, LaneKey, Nonce, Reservation};
use engine::ports::{LaneReservations, ReservationError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::books::{Books, FROM_THE_START};
use super::rows::{self, Lane, column, scheme_number, signed, state_number, unsigned};
use super::{Fault, Param};
use crate::scheme::{Settlement, Verdict, Watched};

/// How many open reservations of a lane are listed.
pub(super) const RESERVATIONS_MAX: usize = 1_000;

/// How many verdicts go into one statement.
const SETTLE_MAX: usize = 500;

/// Why a reservation is free that nobody gave back.
const TIMED_OUT: &str = "its time is over and the chain shows nothing of it";

impl Books {
    /// What was lent to this holder, if it still is, or was last.
    pub async fn reservation(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<Reservation>, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, r.state, r.nonce, r.holder, r.tx_hash, \
             r.was_replaced, nonce_ms_1(r.expires_at) AS expires_ms, r.reason FROM nonce_lane AS l \
             LEFT JOIN nonce_reservation AS r ON r.lane_id = l.lane_id AND r.nonce = $3 \
             WHERE l.chain_id = $1 AND l.signer = $2";
        let Ok(which) = signed(nonce.0) else {
            return Ok(None);
        };
        let rows = self.rows_of(lane, SQL, which).await?;
        let found = rows.first().map(|row| optional(lane, row)).transpose();
        let found = found.map_err(Fault::of_read)?.flatten();
        Ok(found.filter(|reservation| reservation.holder == holder))
    }

    /// What is lent of a lane at present, also what its holder calls used while the chain has not shown it.
    pub async fn list_reservations(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, nonce_top_1(l) AS next, r.state, r.nonce, \
             r.holder, r.tx_hash, r.was_replaced, nonce_ms_1(r.expires_at) AS expires_ms, r.reason \
             FROM nonce_lane AS l LEFT JOIN LATERAL ( \
               SELECT * FROM nonce_reservation AS x WHERE x.lane_id = l.lane_id \
                 AND (x.state <> 1 OR (x.closed_number IS NULL AND NOT x.is_buried)) \
               ORDER BY x.nonce LIMIT $3 \
             ) AS r ON true WHERE l.chain_id = $1 AND l.signer = $2 ORDER BY r.nonce";
        let one_more = i64::try_from(RESERVATIONS_MAX + 1).expect("it is small");
        let rows = self.rows_of(lane, SQL, one_more).await?;
        listed(lane, &rows)
    }

    pub(super) async fn rows_of(
        &self,
        lane: LaneKey,
        sql: &str,
        third: i64,
    ) -> Result<Vec<Row>, ReservationError> {
        let key = Lane::of(lane)?;
        let params: [Param<'_>; 3] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&third, Type::INT8),
        ];
        let rows = self.db.call(sql, &params).await;
        let rows = rows.map_err(Fault::of_read)?;
        if let Some(row) = rows.first() {
            self.expect_ours(lane, row)?;
        }
        Ok(rows)
    }

    /// What the chain should be asked about: page by page, and from the start again behind the last one.
    pub async fn to_watch(&self, limit: usize) -> Result<Vec<Watched>, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_watch_2($1, $2, $3, $4)";
        let (lane, nonce) = *self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let page_max = i32::try_from(limit).unwrap_or(i32::MAX);
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 4] = [
            (&scheme, Type::INT2),
            (&lane, Type::INT4),
            (&nonce, Type::INT8),
            (&page_max, Type::INT4),
        ];
        let rows = self.db.call(SQL, &params).await;
        let rows = rows.map_err(Fault::of_read)?;
        let read = || {
            let last = match rows.last() {
                Some(row) if rows.len() >= limit => {
                    (column(row, "lane_id")?, column(row, "nonce")?)
                }
                Some(_) | None => FROM_THE_START,
            };
            *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = last;
            rows.iter().map(rows::watched).collect::<Result<_, _>>()
        };
        read().map_err(Fault::of_read)
    }

    /// Takes verdicts, each only if the reservation is still as it was seen.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        for some in settlements.chunks(SETTLE_MAX) {
            self.settle_some(some).await?;
        }
        Ok(())
    }

    async fn settle_some(&self, settlements: &[Settlement]) -> Result<(), ReservationError> {
        const SQL: &str = "SELECT nonce_settle_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
             $13, $14, $15)";
        let mut columns = Columns::default();
        for settlement in settlements {
            columns.push(settlement)?;
        }
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 15] = [
            (&scheme, Type::INT2),
            (&columns.chains, Type::INT8_ARRAY),
            (&columns.signers, Type::BYTEA_ARRAY),
            (&columns.nonces, Type::INT8_ARRAY),
            (&columns.holders, Type::UUID_ARRAY),
            (&columns.states, Type::INT2_ARRAY),
            (&columns.hashes, Type::BYTEA_ARRAY),
            (&columns.closed, Type::BYTEA_ARRAY),
            (&columns.verdicts, Type::INT2_ARRAY),
            (&columns.used_by, Type::BYTEA_ARRAY),
            (&columns.numbers, Type::INT8_ARRAY),
            (&columns.blocks, Type::BYTEA_ARRAY),
            (&columns.parents, Type::BYTEA_ARRAY),
            (&columns.times, Type::INT8_ARRAY),
            (&TIMED_OUT, Type::TEXT),
        ];
        let done = self.db.call_one(SQL, &params).await;
        done.map_err(Fault::of_write)?;
        Ok(())
    }
}

/// From columns `next` and those of a reservation, one more row than is listed.
pub(super) fn listed(lane: LaneKey, rows: &[Row]) -> Result<LaneReservations, ReservationError> {
    let read = || {
        let next_nonce = match rows.first() {
            Some(row) => Nonce(unsigned(column(row, "next")?)?),
            None => Nonce(0),
        };
        let mut open = Vec::with_capacity(rows.len());
        for row in rows {
            open.extend(optional(lane, row)?);
        }
        let has_more = open.len() > RESERVATIONS_MAX;
        open.truncate(RESERVATIONS_MAX);
        Ok(LaneReservations {
            next_nonce,
            open,
            has_more,
        })
    };
    read().map_err(Fault::of_read)
}

/// Verdicts turned into columns: the statement takes one array per column.
#[derive(Default)]
struct Columns<'a> {
    chains: Vec<i64>,
    signers: Vec<&'a [u8]>,
    nonces: Vec<i64>,
    holders: Vec<Uuid>,
    states: Vec<i16>,
    hashes: Vec<Option<&'a [u8]>>,
    closed: Vec<Option<&'a [u8]>>,
    verdicts: Vec<i16>,
    used_by: Vec<Option<&'a [u8]>>,
    numbers: Vec<Option<i64>>,
    blocks: Vec<Option<&'a [u8]>>,
    parents: Vec<Option<&'a [u8]>>,
    times: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, settlement: &'a Settlement) -> Result<(), ReservationError> {
        let Watched {
            reservation: seen,
            closed_in,
        } = &settlement.seen;
        let (verdict, used_by, block) = match &settlement.verdict {
            Verdict::Free => (0, None, None),
            Verdict::Used { tx_hash, block } => (1, tx_hash.as_ref(), Some(block)),
            Verdict::Reopened => (2, None, None),
            Verdict::Buried => (3, None, None),
        };
        self.chains.push(signed(seen.lane.chain_id.0)?);
        self.signers.push(seen.lane.signer.as_slice());
        self.nonces.push(signed(seen.nonce.0)?);
        self.holders.push(seen.holder.0);
        self.states.push(state_number(seen.state));
        self.hashes
            .push(seen.tx_hash.as_ref().map(|hash| hash.as_slice()));
        self.closed
            .push(closed_in.as_ref().map(|header| header.hash.as_slice()));
        self.verdicts.push(verdict);
        self.used_by.push(used_by.map(|hash| hash.as_slice()));
        self.numbers
            .push(block.map(|header| signed(header.number)).transpose()?);
        self.blocks.push(block.map(|header| header.hash.as_slice()));
        self.parents
            .push(block.map(|header| header.parent_hash.as_slice()));
        self.times
            .push(block.map(|header| signed(header.timestamp)).transpose()?);
        Ok(())
    }
}

/// A reservation, where the row has one beside its lane.
pub(super) fn optional(lane: LaneKey, row: &Row) -> Result<Option<Reservation>, Fault> {
    let nonce: Option<i64> = column(row, "nonce")?;
    nonce.map(|_| rows::reservation(lane, row)).transpose()
}
