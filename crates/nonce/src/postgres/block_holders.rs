//! Allocation blocks, whose holders hand nonces out before that is written: see `schema/block_holders.sql`.

use std::time::Duration;

use domain::{B256, Holder, LaneKey, MarkRefusal, Nonce, Reservation, Timestamp};
use engine::ports::{LaneReservations, ReservationError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::ledger::{Ledger, SKIPPED_MAX, millis, reservation_from_row, truncate_reason};
use super::rows::{self, Lane, column, not_reservable, scheme_number, signed, unsigned};
use super::verdicts::{RESERVATIONS_MAX, optional_reservation};
use super::{Param, QueryError, read_error, write_error};
use crate::scheme::ReserveRequest;

/// How many block holders are ended in one call.
const ENDED_MAX: i32 = 100;

/// The lease of a block holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLeaseTerms {
    /// How long it lasts, from the database's answer on.
    pub duration: Duration,
    /// The longest reservation under it.
    pub reservation_max: Duration,
}

/// The nonces that a block holder requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest<'a> {
    /// No nonce below.
    pub at_least: Nonce,
    /// At most this many.
    pub take_max: usize,
    /// Among them at most this many new ones.
    pub fresh_max: usize,
    /// Nonces of its block that it has not handed out, and will not: the chain has passed them, and they become free
    /// for all.
    pub skipped: &'a [Nonce],
}

/// The nonces that were allocated to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBlock {
    /// In order; may be empty.
    pub nonces: Vec<Nonce>,
    /// Distinguishes this allocation of them from any other.
    pub allocation_id: i64,
    /// The database's time.
    pub now: Timestamp,
    /// The longest reservation that the token allows.
    pub reservation_max: Duration,
}

/// The run of a Redis server that may hand out nonces of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its token.
    pub token: Uuid,
    /// Its server.
    pub server: String,
    /// Whether it was created by this call.
    pub is_new: bool,
    /// The database's time.
    pub now: Timestamp,
    /// The longest reservation that it allows.
    pub reservation_max: Duration,
}

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The account.
    pub lane: LaneKey,
    /// The nonce.
    pub nonce: Nonce,
    /// The holder of its reservation.
    pub holder: Holder,
    /// The change.
    pub kind: EntryKind,
}

/// A change to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It was handed out.
    Reserved {
        /// By this block holder.
        token: Uuid,
        /// In this allocation of it.
        allocation_id: i64,
        /// The end of its reservation.
        expires_at: Timestamp,
    },
    /// Its holder's mark.
    Submitted(B256),
    /// Its holder's mark.
    Used(B256),
    /// Its holder's mark.
    Recyclable {
        /// The holder's reason.
        reason: String,
        /// The transaction for which the chain was checked, see [`domain::Mark::Recyclable`].
        asked: Option<B256>,
        /// The block holder and allocation that it returns to; without them it is free for all.
        recycle_target: Option<(Uuid, i64)>,
    },
}

/// The outcome of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was applied.
    Done {
        /// The reservation after the change.
        reservation: Reservation,
        /// Whether this entry put it into a block.
        is_in_block: bool,
    },
    /// A mark that the rules refuse, or a reservation that was handed out too late.
    Refused(ReservationError),
    /// A mark on a nonce in a block, whose holder may have handed it out without having written that yet.
    NotYet,
}

/// A nonce in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// Its reservation.
    pub reservation: Reservation,
    /// Whether it is in a block, whose holder may have handed it out since.
    pub is_in_block: bool,
}

impl Ledger {
    /// Allocates nonces to a block, and renews its holder's lease. `None`: the lease was over, and the token is void.
    pub async fn take_block(
        &self,
        lane: LaneKey,
        token: Uuid,
        is_new: bool,
        lease: BlockLeaseTerms,
        request: BlockRequest<'_>,
    ) -> Result<Option<TakenBlock>, ReservationError> {
        const SQL: &str =
            "SELECT * FROM nonce_take_block($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let (key, at_least) = (Lane::of(lane)?, signed(request.at_least.0)?);
        let skipped: Result<Vec<i64>, _> = request.skipped.iter().map(|n| signed(n.0)).collect();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let params: [Param<'_>; 12] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&token, Type::UUID),
            (&is_new, Type::BOOL),
            (&millis(lease.duration), Type::INT8),
            (&millis(lease.reservation_max), Type::INT8),
            (&at_least, Type::INT8),
            (&count(request.take_max), Type::INT8),
            (&count(request.fresh_max), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
            (&skipped?, Type::INT8_ARRAY),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            if !column::<bool>(&row, "is_live")? {
                return Ok(None);
            }
            let nonces: Vec<i64> = column(&row, "nonces")?;
            let nonces = nonces.into_iter().map(|n| unsigned(n).map(Nonce));
            Ok(Some(TakenBlock {
                nonces: nonces.collect::<Result<_, _>>()?,
                allocation_id: column(&row, "allocation_id")?,
                now: Timestamp(unsigned(column(&row, "now_ms")?)?),
                reservation_max: Duration::from_millis(unsigned(column(
                    &row,
                    "reservation_max_ms",
                )?)?),
            }))
        };
        read().map_err(write_error)
    }

    /// Reserves one nonce outside all blocks.
    pub async fn reserve_outside_blocks(
        &self,
        lane: LaneKey,
        request: ReserveRequest,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_reserve_outside_blocks($1, $2, $3, $4, $5, $6, $7)";
        let (key, at_least) = (Lane::of(lane)?, signed(request.at_least.0)?);
        let params: [Param<'_>; 7] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&request.holder.0, Type::UUID),
            (&at_least, Type::INT8),
            (&millis(request.timeout), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        reservation_from_row(lane, request.holder, &row).map_err(write_error)
    }

    /// The generation of a lane for a process that reaches this server; with the proposed token if a new one
    /// begins. `broken`: this generation has lost its state there.
    pub async fn renew_generation(
        &self,
        lane: LaneKey,
        at_least: Nonce,
        server: &str,
        (proposed, broken): (Uuid, Option<Uuid>),
        lease: BlockLeaseTerms,
        patience: Duration,
    ) -> Result<Generation, ReservationError> {
        const SQL: &str =
            "SELECT * FROM nonce_renew_generation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let (key, at_least) = (Lane::of(lane)?, signed(at_least.0)?);
        let params: [Param<'_>; 10] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&at_least, Type::INT8),
            (&proposed, Type::UUID),
            (&server, Type::TEXT),
            (&broken, Type::UUID),
            (&millis(lease.duration), Type::INT8),
            (&millis(lease.reservation_max), Type::INT8),
            (&millis(patience), Type::INT8),
        ];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(write_error)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            Ok(Generation {
                token: column(&row, "token")?,
                server: column(&row, "server")?,
                is_new: column(&row, "is_new")?,
                now: Timestamp(unsigned(column(&row, "now_ms")?)?),
                reservation_max: Duration::from_millis(unsigned(column(
                    &row,
                    "reservation_max_ms",
                )?)?),
            })
        };
        read().map_err(write_error)
    }

    /// Writes a batch, in its order; one outcome per entry.
    pub async fn write(&self, batch: &[LedgerEntry]) -> Result<Vec<WriteOutcome>, QueryError> {
        const SQL: &str = "SELECT * FROM nonce_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let mut columns = EntryColumns::default();
        for entry in batch {
            columns.push(entry);
        }
        let params: [Param<'_>; 11] = [
            (&scheme_number(self.kind), Type::INT2),
            (&columns.chains, Type::INT8_ARRAY),
            (&columns.signers, Type::BYTEA_ARRAY),
            (&columns.nonces, Type::INT8_ARRAY),
            (&columns.holders, Type::UUID_ARRAY),
            (&columns.kinds, Type::INT2_ARRAY),
            (&columns.hashes, Type::BYTEA_ARRAY),
            (&columns.reasons, Type::TEXT_ARRAY),
            (&columns.tokens, Type::UUID_ARRAY),
            (&columns.allocation_ids, Type::INT8_ARRAY),
            (&columns.deadlines, Type::INT8_ARRAY),
        ];
        let rows = self.pool.query(SQL, &params).await?;
        if rows.len() != batch.len() {
            return Err(QueryError::Unknown("not one answer for each entry".into()));
        }
        let answers = batch.iter().zip(&rows);
        answers
            .map(|(entry, row)| self.read_outcome(entry, row))
            .collect()
    }

    fn read_outcome(
        &self,
        entry: &LedgerEntry,
        row: &tokio_postgres::Row,
    ) -> Result<WriteOutcome, QueryError> {
        let bound: i16 = column(row, "bound")?;
        if bound != scheme_number(self.kind) {
            return Ok(WriteOutcome::Refused(not_reservable(
                entry.lane, bound, self.kind,
            )));
        }
        let verdict: i16 = column(row, "verdict")?;
        Ok(match verdict {
            0 => WriteOutcome::Done {
                reservation: rows::reservation(entry.lane, row)?,
                is_in_block: column(row, "is_in_block")?,
            },
            1 => WriteOutcome::Refused(MarkRefusal::NotReserved(entry.nonce).into()),
            6 => WriteOutcome::NotYet,
            _ => WriteOutcome::Refused(refusal(entry, rows::reservation(entry.lane, row)?)),
        })
    }

    /// Frees nonces that a block holder did not hand out, each with its allocation, and ends it if its block is then
    /// empty. May be repeated or late: a nonce that was allocated again has another allocation.
    pub async fn return_unused(
        &self,
        token: Uuid,
        unused: &[(Nonce, i64)],
    ) -> Result<(), ReservationError> {
        const SQL: &str = "SELECT nonce_return_unused($1, $2, $3)";
        let nonces: Result<Vec<i64>, _> = unused.iter().map(|(nonce, _)| signed(nonce.0)).collect();
        let allocation_ids: Vec<i64> = unused
            .iter()
            .map(|(_, allocation_id)| *allocation_id)
            .collect();
        let params: [Param<'_>; 3] = [
            (&token, Type::UUID),
            (&nonces?, Type::INT8_ARRAY),
            (&allocation_ids, Type::INT8_ARRAY),
        ];
        let returned = self.pool.query_one(SQL, &params).await;
        returned.map_err(write_error)?;
        Ok(())
    }

    /// The nonces of a block above one (without it: from the start), at most `page_max`, each with its allocation.
    pub async fn list_block(
        &self,
        token: Uuid,
        after: Option<Nonce>,
        page_max: usize,
    ) -> Result<Vec<(Nonce, i64)>, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_list_block($1, $2, $3)";
        let after = after.map_or(Ok(-1), |nonce| signed(nonce.0))?;
        let page_max = i32::try_from(page_max).unwrap_or(i32::MAX);
        let params: [Param<'_>; 3] = [
            (&token, Type::UUID),
            (&after, Type::INT8),
            (&page_max, Type::INT4),
        ];
        let rows = self.pool.query(SQL, &params).await;
        let rows = rows.map_err(read_error)?;
        let read = |row| {
            Ok((
                Nonce(unsigned(column(row, "nonce")?)?),
                column(row, "allocation_id")?,
            ))
        };
        let read: Result<_, QueryError> = rows.iter().map(read).collect();
        read.map_err(read_error)
    }

    /// Ends block holders whose lease is over, and returns how many.
    pub async fn end_expired_blocks(&self) -> Result<u64, ReservationError> {
        const SQL: &str = "SELECT nonce_end_expired_block_holders($1, NULL, $2) AS ended";
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 2] = [(&scheme, Type::INT2), (&ENDED_MAX, Type::INT4)];
        let row = self.pool.query_one(SQL, &params).await;
        let row = row.map_err(read_error)?;
        let ended = column(&row, "ended").and_then(unsigned);
        ended.map_err(read_error)
    }

    /// A nonce in the ledger, whatever its holder.
    pub async fn find_row(
        &self,
        lane: LaneKey,
        nonce: Nonce,
    ) -> Result<Option<LedgerRow>, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, r.state, r.nonce, r.holder, r.tx_hash, \
             r.was_replaced, nonce_ms(r.expires_at) AS expires_ms, r.reason, \
             r.state = 2 AND r.block_holder IS NOT NULL AS is_in_block FROM nonce_lane AS l \
             LEFT JOIN nonce_reservation AS r ON r.lane_id = l.lane_id AND r.nonce = $3 \
             WHERE l.chain_id = $1 AND l.signer = $2";
        let Ok(which) = signed(nonce.0) else {
            return Ok(None);
        };
        let rows = self.query_lane(lane, SQL, which).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let read = || {
            let Some(reservation) = optional_reservation(lane, row)? else {
                return Ok(None);
            };
            let is_in_block = column(row, "is_in_block")?;
            Ok(Some(LedgerRow {
                reservation,
                is_in_block,
            }))
        };
        read().map_err(read_error)
    }

    /// The open reservations of a lane, as far as they are written. Nonces of a block that were never reserved are not
    /// listed.
    pub async fn list_reservations_with_blocks(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, nonce_top_reserved(l) AS next, r.state, r.nonce, \
             r.holder, r.tx_hash, r.was_replaced, nonce_ms(r.expires_at) AS expires_ms, r.reason \
             FROM nonce_lane AS l LEFT JOIN LATERAL ( \
               SELECT * FROM nonce_reservation AS x WHERE x.lane_id = l.lane_id \
                 AND (x.state <> 1 OR (x.closed_number IS NULL AND NOT x.is_final)) \
                 AND (x.state <> 2 OR x.block_holder IS DISTINCT FROM x.holder) \
               ORDER BY x.nonce LIMIT $3 \
             ) AS r ON true WHERE l.chain_id = $1 AND l.signer = $2 ORDER BY r.nonce";
        let one_more = i64::try_from(RESERVATIONS_MAX + 1).expect("it is small");
        let rows = self.query_lane(lane, SQL, one_more).await?;
        super::verdicts::lane_reservations(lane, &rows)
    }
}

/// The refusal of an entry, with the text of the rules in `domain`.
fn refusal(entry: &LedgerEntry, mut found: Reservation) -> ReservationError {
    let nonce = entry.nonce;
    let mark = match &entry.kind {
        EntryKind::Reserved { .. } => return MarkRefusal::NotHolder(nonce).into(),
        EntryKind::Submitted(hash) => domain::Mark::Submitted(*hash),
        EntryKind::Used(hash) => domain::Mark::Used(*hash),
        EntryKind::Recyclable { reason, asked, .. } => domain::Mark::Recyclable {
            reason: reason.clone(),
            asked: *asked,
        },
    };
    match found.mark(entry.holder, &mark) {
        Err(refused) => refused.into(),
        Ok(()) => ReservationError::Unavailable(format!(
            "nonce {nonce}: the database refused a mark that the rules accept"
        )),
    }
}

/// A batch turned into columns: the statement takes one array per column.
#[derive(Default)]
struct EntryColumns<'a> {
    chains: Vec<i64>,
    signers: Vec<&'a [u8]>,
    nonces: Vec<i64>,
    holders: Vec<Uuid>,
    kinds: Vec<i16>,
    hashes: Vec<Option<&'a [u8]>>,
    reasons: Vec<Option<String>>,
    tokens: Vec<Option<Uuid>>,
    allocation_ids: Vec<i64>,
    deadlines: Vec<i64>,
}

impl<'a> EntryColumns<'a> {
    /// No row has a negative number: a value that does not fit is not reserved, and the database reports that.
    fn push(&mut self, entry: &'a LedgerEntry) {
        let number = |n: u64| i64::try_from(n).unwrap_or(-1);
        let (kind, hash, reason, token, allocation_id, deadline) = match &entry.kind {
            EntryKind::Submitted(hash) => (0, Some(hash.as_slice()), None, None, 0, 0),
            EntryKind::Used(hash) => (1, Some(hash.as_slice()), None, None, 0, 0),
            EntryKind::Recyclable {
                reason,
                asked,
                recycle_target,
            } => {
                let (token, allocation_id) = recycle_target.unzip();
                let asked = asked.as_ref().map(B256::as_slice);
                (
                    2,
                    asked,
                    Some(truncate_reason(reason)),
                    token,
                    allocation_id.unwrap_or(0),
                    0,
                )
            }
            EntryKind::Reserved {
                token,
                allocation_id,
                expires_at,
            } => (
                3,
                None,
                None,
                Some(*token),
                *allocation_id,
                number(expires_at.0),
            ),
        };
        self.chains.push(number(entry.lane.chain_id.0));
        self.signers.push(entry.lane.signer.as_slice());
        self.nonces.push(number(entry.nonce.0));
        self.holders.push(entry.holder.0);
        self.kinds.push(kind);
        self.hashes.push(hash);
        self.reasons.push(reason);
        self.tokens.push(token);
        self.allocation_ids.push(allocation_id);
        self.deadlines.push(deadline);
    }
}
