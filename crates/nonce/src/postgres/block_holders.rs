//! Allocation blocks, whose holders hand nonces out before that is written: see `schema/block_holders.sql`.

use std::time::Duration;

use domain::{LaneKey, Mark, MarkRefusal, Nonce, Reservation, Timestamp};
use engine::ports::ReservationError;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::ledger::{Ledger, SKIPPED_MAX, mark_columns, millis, refusal};
use super::rows::{self, column, not_reservable, scheme_number, signed, unsigned};
use super::verdicts::optional_reservation;
use super::{Param, QueryError, read_error, write_error};
use crate::Result;
use crate::scheme::ReservationKey;

/// How many block holders are ended in one call.
const ENDED_MAX: i32 = 100;

/// The lease of a block holder.
#[derive(Clone, Copy)]
pub(crate) struct BlockLeaseTerms {
    /// How long it lasts, from the database's answer on.
    pub(crate) duration: Duration,
    /// The longest reservation under it.
    pub(crate) reservation_max: Duration,
}

/// The nonces that a block holder requests.
pub(crate) struct BlockRequest<'a> {
    pub(crate) at_least: Nonce,
    pub(crate) take_max: usize,
    /// Among them at most this many new ones.
    pub(crate) fresh_max: usize,
    /// Nonces of its block that it has not handed out, and will not: the chain has passed them, and they become free
    /// for all.
    pub(crate) skipped: &'a [Nonce],
}

/// The nonces that were allocated to a block.
pub(crate) struct TakenBlock {
    /// In order; may be empty.
    pub(crate) nonces: Vec<Nonce>,
    /// Distinguishes this allocation of them from any other.
    pub(crate) allocation_id: i64,
    /// The database's time.
    pub(crate) now: Timestamp,
    /// The longest reservation that the token allows.
    pub(crate) reservation_max: Duration,
}

/// The run of a Redis server that may hand out nonces of a lane.
pub(crate) struct Generation {
    pub(crate) token: Uuid,
    pub(crate) server: String,
    /// Whether it was created by this call.
    pub(crate) is_new: bool,
    /// The database's time.
    pub(crate) now: Timestamp,
    /// The longest reservation that it allows.
    pub(crate) reservation_max: Duration,
}

/// One entry of a batch: a change to the reservation of a nonce.
#[derive(Clone)]
pub(crate) struct LedgerEntry {
    pub(crate) key: ReservationKey,
    pub(crate) kind: EntryKind,
}

/// A nonce was handed out by a block holder, in one allocation of it.
#[derive(Clone, Copy)]
pub(crate) struct Handout {
    pub(crate) token: Uuid,
    pub(crate) allocation_id: i64,
    pub(crate) expires_at: Timestamp,
}

#[derive(Clone)]
pub(crate) enum EntryKind {
    Reserved(Handout),
    /// Its holder has marked it.
    Marked {
        mark: Mark,
        /// The block holder and allocation that a recyclable one returns to; without them it is free for all.
        recycle_target: Option<(Uuid, i64)>,
    },
}

/// The outcome of an entry.
#[derive(Clone, Debug)]
pub(crate) enum WriteOutcome {
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

impl Ledger {
    /// Allocates nonces to a block, and renews its holder's lease. `None`: the lease was over, and the token is void.
    pub(crate) async fn take_block(
        &self,
        lane: LaneKey,
        token: Uuid,
        is_new: bool,
        lease: BlockLeaseTerms,
        request: BlockRequest<'_>,
    ) -> Result<Option<TakenBlock>> {
        const SQL: &str =
            "SELECT * FROM nonce_take_block($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let skipped: Result<Vec<i64>, _> = request.skipped.iter().map(|n| signed(n.0)).collect();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let params: [Param<'_>; 9] = [
            (&token, Type::UUID),
            (&is_new, Type::BOOL),
            (&millis(lease.duration), Type::INT8),
            (&millis(lease.reservation_max), Type::INT8),
            (&signed(request.at_least.0)?, Type::INT8),
            (&count(request.take_max), Type::INT8),
            (&count(request.fresh_max), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
            (&skipped?, Type::INT8_ARRAY),
        ];
        let row = self.call(SQL, lane, &params, write_error).await?;
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
                reservation_max: reservation_max(&row)?,
            }))
        };
        read().map_err(write_error)
    }

    /// The generation of a lane for a process that reaches this server; with the proposed token if a new one
    /// begins. `broken`: this generation has lost its state there.
    pub(crate) async fn renew_generation(
        &self,
        lane: LaneKey,
        at_least: Nonce,
        server: &str,
        (proposed, broken): (Uuid, Option<Uuid>),
        lease: BlockLeaseTerms,
        patience: Duration,
    ) -> Result<Generation> {
        const SQL: &str =
            "SELECT * FROM nonce_renew_generation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let params: [Param<'_>; 7] = [
            (&signed(at_least.0)?, Type::INT8),
            (&proposed, Type::UUID),
            (&server, Type::TEXT),
            (&broken, Type::UUID),
            (&millis(lease.duration), Type::INT8),
            (&millis(lease.reservation_max), Type::INT8),
            (&millis(patience), Type::INT8),
        ];
        let row = self.call(SQL, lane, &params, write_error).await?;
        let read = || {
            Ok(Generation {
                token: column(&row, "token")?,
                server: column(&row, "server")?,
                is_new: column(&row, "is_new")?,
                now: Timestamp(unsigned(column(&row, "now_ms")?)?),
                reservation_max: reservation_max(&row)?,
            })
        };
        read().map_err(write_error)
    }

    /// Writes a batch, in its order; one outcome per entry.
    pub(crate) async fn write(
        &self,
        batch: &[LedgerEntry],
    ) -> Result<Vec<WriteOutcome>, QueryError> {
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
                entry.key.lane,
                bound,
                self.kind,
            )));
        }
        let verdict: i16 = column(row, "verdict")?;
        Ok(match (verdict, &entry.kind) {
            (0, _) => WriteOutcome::Done {
                reservation: rows::reservation(entry.key.lane, row)?,
                is_in_block: column(row, "is_in_block")?,
            },
            (1, _) => WriteOutcome::Refused(MarkRefusal::NotReserved(entry.key.nonce).into()),
            (6, _) => WriteOutcome::NotYet,
            (_, EntryKind::Reserved(_)) => {
                WriteOutcome::Refused(MarkRefusal::NotHolder(entry.key.nonce).into())
            }
            (_, EntryKind::Marked { mark, .. }) => {
                let found = rows::reservation(entry.key.lane, row)?;
                WriteOutcome::Refused(refusal(found, entry.key.holder, mark))
            }
        })
    }

    /// Frees nonces that a block holder did not hand out, each with its allocation, and ends it if its block is then
    /// empty. May be repeated or late: a nonce that was allocated again has another allocation.
    pub(crate) async fn return_unused(&self, token: Uuid, unused: &[(Nonce, i64)]) -> Result<()> {
        const SQL: &str = "SELECT nonce_return_unused($1, $2, $3)";
        let nonces: Result<Vec<i64>, _> = unused.iter().map(|(nonce, _)| signed(nonce.0)).collect();
        let allocation_ids: Vec<i64> = unused.iter().map(|(_, id)| *id).collect();
        let params: [Param<'_>; 3] = [
            (&token, Type::UUID),
            (&nonces?, Type::INT8_ARRAY),
            (&allocation_ids, Type::INT8_ARRAY),
        ];
        let returned = self.pool.query_one(SQL, &params).await;
        returned.map(drop).map_err(write_error)
    }

    /// The first nonces of a block, each with its allocation.
    pub(crate) async fn list_block(&self, token: Uuid, page_max: i32) -> Result<Vec<(Nonce, i64)>> {
        const SQL: &str = "SELECT * FROM nonce_list_block($1, $2)";
        let params: [Param<'_>; 2] = [(&token, Type::UUID), (&page_max, Type::INT4)];
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

    /// Ends block holders whose lease is over: their processes are dead, or their server is.
    pub(crate) async fn end_expired_blocks(&self) -> Result<()> {
        const SQL: &str = "SELECT nonce_end_expired_block_holders($1, NULL, $2) AS ended";
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 2] = [(&scheme, Type::INT2), (&ENDED_MAX, Type::INT4)];
        let row = self.pool.query_one(SQL, &params).await;
        let ended = row.and_then(|row| unsigned(column(&row, "ended")?));
        let ended = ended.map_err(read_error)?;
        if ended > 0 {
            metrics::counter!("lanekeeper_nonce_keepers_ended_total").increment(ended);
            tracing::info!(
                ended,
                "allocation blocks expired: their nonces are left to the sweep"
            );
        }
        Ok(())
    }

    /// A nonce in the ledger, whatever its holder, and whether it is in a block, whose holder may have handed it out
    /// since.
    pub(crate) async fn find_row(
        &self,
        lane: LaneKey,
        nonce: Nonce,
    ) -> Result<Option<(Reservation, bool)>> {
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
            Ok(Some((reservation, column(row, "is_in_block")?)))
        };
        read().map_err(read_error)
    }
}

fn reservation_max(row: &tokio_postgres::Row) -> Result<Duration, QueryError> {
    let millis = column(row, "reservation_max_ms").and_then(unsigned);
    millis.map(Duration::from_millis)
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
        let (kind, hash, reason, block, deadline) = match &entry.kind {
            EntryKind::Marked {
                mark,
                recycle_target,
            } => {
                let (kind, hash, reason) = mark_columns(mark);
                (kind, hash, reason, *recycle_target, 0)
            }
            EntryKind::Reserved(handout) => {
                let block = Some((handout.token, handout.allocation_id));
                (3, None, None, block, number(handout.expires_at.0))
            }
        };
        let (token, allocation_id) = block.unzip();
        self.chains.push(number(entry.key.lane.chain_id.0));
        self.signers.push(entry.key.lane.signer.as_slice());
        self.nonces.push(number(entry.key.nonce.0));
        self.holders.push(entry.key.holder.0);
        self.kinds.push(kind);
        self.hashes.push(hash);
        self.reasons.push(reason);
        self.tokens.push(token);
        self.allocation_ids.push(allocation_id.unwrap_or(0));
        self.deadlines.push(deadline);
    }
}
