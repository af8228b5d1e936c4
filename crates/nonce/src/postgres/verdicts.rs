//! Listing reservations, and applying the chain's verdicts on them.

use domain::{LaneKey, Nonce, Reservation};
use engine::ports::LaneReservations;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::ledger::{FROM_THE_START, Ledger};
use super::rows::{self, Lane, column, scheme_number, signed, state_number, unsigned};
use super::{Param, QueryError, read_error, write_error};
use crate::Result;
use crate::scheme::{ConditionalVerdict, ReservationKey, Verdict, WatchedReservation};

/// How many open reservations of a lane are listed.
const RESERVATIONS_MAX: usize = 1_000;

/// How many verdicts one statement applies.
const VERDICTS_MAX: usize = 500;

/// How many open reservations one statement examines to find overdue ones.
const OVERDUE_EXAMINED_MAX: i32 = 50_000;

/// The reason of a reservation that became recyclable without its holder's mark.
const EXPIRED: &str = "it expired and the chain shows no transaction with this nonce";

/// A lane with its open reservations, one more than is listed.
macro_rules! open_reservations {
    (next: $next:literal, and: $and:literal) => {
        concat!(
            "SELECT l.scheme AS bound, ",
            $next,
            " AS next, r.state, r.nonce, r.holder, r.tx_hash, r.was_replaced, \
               nonce_ms(r.expires_at) AS expires_ms, r.reason \
             FROM nonce_lane AS l LEFT JOIN LATERAL ( \
               SELECT * FROM nonce_reservation AS x WHERE x.lane_id = l.lane_id \
                 AND (x.state <> 1 OR (x.closed_number IS NULL AND NOT x.is_final)) ",
            $and,
            " ORDER BY x.nonce LIMIT $3 \
             ) AS r ON true WHERE l.chain_id = $1 AND l.signer = $2 ORDER BY r.nonce"
        )
    };
}

impl Ledger {
    /// The reservation of this nonce, if this is its present or last holder.
    pub(crate) async fn find_reservation(
        &self,
        key: ReservationKey,
    ) -> Result<Option<Reservation>> {
        let found = self.find_row(key.lane, key.nonce).await?;
        let found = found.map(|(reservation, _)| reservation);
        Ok(found.filter(|reservation| reservation.holder == key.holder))
    }

    /// The open reservations of a lane, as far as they are written, also those that their holder marked as used while
    /// the chain has not shown it. Nonces of a block that were never reserved are not listed.
    pub(crate) async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        let sql = match self.has_blocks() {
            true => open_reservations!(
                next: "nonce_top_reserved(l)",
                and: "AND (x.state <> 2 OR x.block_holder IS DISTINCT FROM x.holder)"
            ),
            false => open_reservations!(next: "nonce_top(l)", and: ""),
        };
        let one_more = i64::try_from(RESERVATIONS_MAX + 1).expect("it is small");
        let rows = self.query_lane(lane, sql, one_more).await?;
        let read = || {
            let next_nonce = match rows.first() {
                Some(row) => Nonce(unsigned(column(row, "next")?)?),
                None => Nonce(0),
            };
            let mut open = Vec::with_capacity(rows.len());
            for row in &rows {
                open.extend(optional_reservation(lane, row)?);
            }
            let has_more = open.len() > RESERVATIONS_MAX;
            open.truncate(RESERVATIONS_MAX);
            Ok(LaneReservations {
                next_nonce,
                open,
                has_more,
            })
        };
        read().map_err(read_error)
    }

    pub(super) async fn query_lane(
        &self,
        lane: LaneKey,
        sql: &str,
        third: i64,
    ) -> Result<Vec<Row>> {
        let key = Lane::of(lane)?;
        let params: [Param<'_>; 3] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&third, Type::INT8),
        ];
        let rows = self.pool.query(sql, &params).await;
        let rows = rows.map_err(read_error)?;
        if let Some(row) = rows.first() {
            self.expect_ours(lane, row)?;
        }
        Ok(rows)
    }

    /// Reservations for which the chain should be queried: page by page, and from the start again after the last one.
    pub(crate) async fn list_watched(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        const SQL: &str = "SELECT * FROM nonce_list_watched($1, $2, $3, $4)";
        let (lane, nonce) = *self.watched.lock();
        let page_max = i32::try_from(limit).unwrap_or(i32::MAX);
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 4] = [
            (&scheme, Type::INT2),
            (&lane, Type::INT4),
            (&nonce, Type::INT8),
            (&page_max, Type::INT4),
        ];
        let rows = self.pool.query(SQL, &params).await;
        let rows = rows.map_err(read_error)?;
        let read = || {
            let last = match rows.last() {
                Some(row) if rows.len() >= limit => {
                    (column(row, "lane_id")?, column(row, "nonce")?)
                }
                Some(_) | None => FROM_THE_START,
            };
            *self.watched.lock() = last;
            rows.iter().map(rows::watched).collect::<Result<_, _>>()
        };
        read().map_err(read_error)
    }

    /// Overdue reservations: page by page among the open ones, and from the start again after the last one.
    pub(crate) async fn list_overdue(&self, limit: usize) -> Result<Vec<WatchedReservation>> {
        const SQL: &str = "SELECT * FROM nonce_list_overdue($1, $2, $3, $4, $5)";
        let (lane, nonce) = *self.overdue.lock();
        let page_max = i32::try_from(limit).unwrap_or(i32::MAX);
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 5] = [
            (&scheme, Type::INT2),
            (&lane, Type::INT4),
            (&nonce, Type::INT8),
            (&OVERDUE_EXAMINED_MAX, Type::INT4),
            (&page_max, Type::INT4),
        ];
        let rows = self.pool.query(SQL, &params).await;
        let rows = rows.map_err(read_error)?;
        let read = || {
            let mut found = Vec::with_capacity(rows.len());
            let mut next = FROM_THE_START;
            for row in &rows {
                let edge: Option<i32> = column(row, "edge_lane")?;
                if let Some(edge) = edge {
                    next = (edge, column(row, "edge_nonce")?);
                }
                let lane: Option<i32> = column(row, "lane_id")?;
                if let Some(lane) = lane {
                    found.push((lane, column(row, "nonce")?, rows::watched(row)?));
                }
            }
            if let Some((lane, nonce, _)) = found.last().filter(|_| found.len() >= limit) {
                next = (*lane, *nonce);
            }
            *self.overdue.lock() = next;
            let found = found.into_iter();
            Ok(found.map(|(_, _, watched)| watched).collect())
        };
        read().map_err(read_error)
    }

    /// Applies verdicts, each only if the reservation is unchanged since it was read.
    pub(crate) async fn apply_verdicts(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        for chunk in verdicts.chunks(VERDICTS_MAX) {
            self.apply_chunk(chunk).await?;
        }
        Ok(())
    }

    async fn apply_chunk(&self, verdicts: &[ConditionalVerdict]) -> Result<()> {
        const SQL: &str = "SELECT nonce_apply_verdicts($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
             $13, $14, $15)";
        let mut columns = VerdictColumns::default();
        for conditional in verdicts {
            columns.push(conditional)?;
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
            (&EXPIRED, Type::TEXT),
        ];
        let applied = self.pool.query_one(SQL, &params).await;
        applied.map(drop).map_err(write_error)
    }
}

/// Verdicts turned into columns: the statement takes one array per column.
#[derive(Default)]
struct VerdictColumns<'a> {
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

impl<'a> VerdictColumns<'a> {
    fn push(&mut self, conditional: &'a ConditionalVerdict) -> Result<()> {
        let WatchedReservation {
            reservation: seen,
            closed_in,
        } = &conditional.seen;
        let (verdict, used_by, block) = match &conditional.verdict {
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

/// The reservation of a row that may have only its lane.
pub(super) fn optional_reservation(
    lane: LaneKey,
    row: &Row,
) -> Result<Option<Reservation>, QueryError> {
    let nonce: Option<i64> = column(row, "nonce")?;
    nonce.map(|_| rows::reservation(lane, row)).transpose()
}
