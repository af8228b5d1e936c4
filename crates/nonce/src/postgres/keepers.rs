//! The verbs of those who hand nonces out before they are written down: see `keepers.sql` and `stints.sql`.

use std::time::Duration;

use domain::{B256, Holder, LaneKey, MarkRefusal, Nonce, Reservation, Timestamp};
use engine::ports::{LaneReservations, ReservationError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::books::{Books, SKIPPED_MAX, kept, millis, reservation_from_row};
use super::rows::{self, Lane, column, not_lendable, scheme_number, signed, unsigned};
use super::watch::{RESERVATIONS_MAX, optional};
use super::{Fault, Param};
use crate::scheme::Borrow;

/// How many keepers are ended in one call.
const REAPED_MAX: i32 = 100;

/// How long a keeper's right lasts, and how long its loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// From the database's answer on.
    pub lasts: Duration,
    /// The longest loan under it.
    pub loan: Duration,
}

/// What a keeper asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Nothing below.
    pub at_least: Nonce,
    /// So many at most.
    pub take_max: usize,
    /// Among them, so many new ones at most.
    pub fresh_max: usize,
    /// What it keeps, has not handed out, and will not: the chain went past it, and it is free for all.
    pub passed: &'a [Nonce],
}

/// What a keeper was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// In order; may be none.
    pub nonces: Vec<Nonce>,
    /// Tells this keeping of them from any other.
    pub stint: i64,
    /// The database's time.
    pub now: Timestamp,
    /// The longest loan that the token allows.
    pub loan: Duration,
}

/// Which life of which Redis may hand out nonces of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its token.
    pub token: Uuid,
    /// Whose it is.
    pub server: String,
    /// Whether it begins with this answer.
    pub is_new: bool,
    /// The database's time.
    pub now: Timestamp,
    /// The longest loan that it allows.
    pub loan: Duration,
}

/// One line of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose account.
    pub lane: LaneKey,
    /// Which nonce.
    pub nonce: Nonce,
    /// Whose loan.
    pub holder: Holder,
    /// What became of it.
    pub what: What,
}

/// What is to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It was handed out.
    LaneReservations {
        /// Under this token.
        token: Uuid,
        /// In this keeping of it.
        stint: i64,
        /// Until when.
        expires_at: Timestamp,
    },
    /// Its holder's word.
    Submitted(B256),
    /// Its holder's word.
    Used(B256),
    /// Its holder's word.
    Recyclable {
        /// Why.
        reason: String,
        /// The transaction that the chain was asked about, see [`domain::Mark::Recyclable`].
        asked: Option<B256>,
        /// Who would keep it from now on, and as which keeping; otherwise it is free for all.
        keep: Option<(Uuid, i64)>,
    },
}

/// What became of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It counts.
    Done {
        /// As it stands now.
        reservation: Reservation,
        /// Whether it is kept, by this line.
        is_live_for: bool,
    },
    /// A mark that the rules refuse; a loan that was handed out too late.
    Refused(ReservationError),
    /// A mark on a nonce that is kept by somebody who may have handed it out and not written it down yet.
    NotYet,
}

/// A nonce as the books have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As it stands.
    pub reservation: Reservation,
    /// Whether somebody keeps it, who may have handed it out since.
    pub is_live_for: bool,
}

impl Books {
    /// Takes nonces for a keeper, and renews its lease. `None`: its lease was over, and the token is void.
    pub async fn take(
        &self,
        lane: LaneKey,
        token: Uuid,
        is_new: bool,
        lease: Lease,
        wanted: Wanted<'_>,
    ) -> Result<Option<Taken>, ReservationError> {
        const SQL: &str =
            "SELECT * FROM nonce_take_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let (key, at_least) = (Lane::of(lane)?, signed(wanted.at_least.0)?);
        let passed: Result<Vec<i64>, _> = wanted.passed.iter().map(|n| signed(n.0)).collect();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let params: [Param<'_>; 12] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&token, Type::UUID),
            (&is_new, Type::BOOL),
            (&millis(lease.lasts), Type::INT8),
            (&millis(lease.loan), Type::INT8),
            (&at_least, Type::INT8),
            (&count(wanted.take_max), Type::INT8),
            (&count(wanted.fresh_max), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
            (&passed?, Type::INT8_ARRAY),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            if !column::<bool>(&row, "is_live")? {
                return Ok(None);
            }
            let nonces: Vec<i64> = column(&row, "nonces")?;
            let nonces = nonces.into_iter().map(|n| unsigned(n).map(Nonce));
            Ok(Some(Taken {
                nonces: nonces.collect::<Result<_, _>>()?,
                stint: column(&row, "stint")?,
                now: Timestamp(unsigned(column(&row, "now_ms")?)?),
                loan: Duration::from_millis(unsigned(column(&row, "loan_ms")?)?),
            }))
        };
        read().map_err(Fault::of_write)
    }

    /// Lends one that nobody keeps.
    pub async fn lend_loose(
        &self,
        lane: LaneKey,
        borrow: Borrow,
    ) -> Result<Reservation, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_lend_loose_1($1, $2, $3, $4, $5, $6, $7)";
        let (key, at_least) = (Lane::of(lane)?, signed(borrow.at_least.0)?);
        let params: [Param<'_>; 7] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&borrow.holder.0, Type::UUID),
            (&at_least, Type::INT8),
            (&millis(borrow.timeout), Type::INT8),
            (&SKIPPED_MAX, Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        reservation_from_row(lane, borrow.holder, &row).map_err(Fault::of_write)
    }

    /// The generation of a lane for a process that reaches this server; with the proposed token if a new one
    /// begins. `broken`: what this generation has there is lost.
    pub async fn generation(
        &self,
        lane: LaneKey,
        at_least: Nonce,
        server: &str,
        (proposed, broken): (Uuid, Option<Uuid>),
        lease: Lease,
        patience: Duration,
    ) -> Result<Generation, ReservationError> {
        const SQL: &str =
            "SELECT * FROM nonce_generation_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let (key, at_least) = (Lane::of(lane)?, signed(at_least.0)?);
        let params: [Param<'_>; 10] = [
            (&key.chain, Type::INT8),
            (&key.signer, Type::BYTEA),
            (&scheme_number(self.kind), Type::INT2),
            (&at_least, Type::INT8),
            (&proposed, Type::UUID),
            (&server, Type::TEXT),
            (&broken, Type::UUID),
            (&millis(lease.lasts), Type::INT8),
            (&millis(lease.loan), Type::INT8),
            (&millis(patience), Type::INT8),
        ];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_write)?;
        self.expect_ours(lane, &row)?;
        let read = || {
            Ok(Generation {
                token: column(&row, "token")?,
                server: column(&row, "server")?,
                is_new: column(&row, "is_new")?,
                now: Timestamp(unsigned(column(&row, "now_ms")?)?),
                loan: Duration::from_millis(unsigned(column(&row, "loan_ms")?)?),
            })
        };
        read().map_err(Fault::of_write)
    }

    /// Writes a batch down, in its order; one answer for each line.
    pub async fn write(&self, batch: &[Entry]) -> Result<Vec<Written>, Fault> {
        const SQL: &str =
            "SELECT * FROM nonce_write_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let mut lines = Lines::default();
        for entry in batch {
            lines.push(entry);
        }
        let params: [Param<'_>; 11] = [
            (&scheme_number(self.kind), Type::INT2),
            (&lines.chains, Type::INT8_ARRAY),
            (&lines.signers, Type::BYTEA_ARRAY),
            (&lines.nonces, Type::INT8_ARRAY),
            (&lines.holders, Type::UUID_ARRAY),
            (&lines.whats, Type::INT2_ARRAY),
            (&lines.hashes, Type::BYTEA_ARRAY),
            (&lines.reasons, Type::TEXT_ARRAY),
            (&lines.tokens, Type::UUID_ARRAY),
            (&lines.stints, Type::INT8_ARRAY),
            (&lines.deadlines, Type::INT8_ARRAY),
        ];
        let rows = self.db.call(SQL, &params).await?;
        if rows.len() != batch.len() {
            return Err(Fault::Lost("not one answer for each line".into()));
        }
        let answers = batch.iter().zip(&rows);
        answers
            .map(|(entry, row)| self.written(entry, row))
            .collect()
    }

    fn written(&self, entry: &Entry, row: &tokio_postgres::Row) -> Result<Written, Fault> {
        let bound: i16 = column(row, "bound")?;
        if bound != scheme_number(self.kind) {
            return Ok(Written::Refused(not_lendable(entry.lane, bound, self.kind)));
        }
        let verdict: i16 = column(row, "verdict")?;
        Ok(match verdict {
            0 => Written::Done {
                reservation: rows::reservation(entry.lane, row)?,
                is_live_for: column(row, "is_kept")?,
            },
            1 => Written::Refused(MarkRefusal::NotLent(entry.nonce).into()),
            6 => Written::NotYet,
            _ => Written::Refused(refusal(entry, rows::reservation(entry.lane, row)?)),
        })
    }

    /// Frees what a keeper did not hand out, each with its stint, and ends it if that is all it kept. Harmless when it
    /// is done twice or late: what was taken again has another stint.
    pub async fn put_back(
        &self,
        token: Uuid,
        unused: &[(Nonce, i64)],
    ) -> Result<(), ReservationError> {
        const SQL: &str = "SELECT nonce_put_back_2($1, $2, $3)";
        let nonces: Result<Vec<i64>, _> = unused.iter().map(|(nonce, _)| signed(nonce.0)).collect();
        let stints: Vec<i64> = unused.iter().map(|(_, stint)| *stint).collect();
        let params: [Param<'_>; 3] = [
            (&token, Type::UUID),
            (&nonces?, Type::INT8_ARRAY),
            (&stints, Type::INT8_ARRAY),
        ];
        let done = self.db.call_one(SQL, &params).await;
        done.map_err(Fault::of_write)?;
        Ok(())
    }

    /// What a keeper keeps above a nonce (from the start without one), at most so many, each with its stint.
    pub async fn kept_by(
        &self,
        token: Uuid,
        after: Option<Nonce>,
        page_max: usize,
    ) -> Result<Vec<(Nonce, i64)>, ReservationError> {
        const SQL: &str = "SELECT * FROM nonce_kept_1($1, $2, $3)";
        let after = after.map_or(Ok(-1), |nonce| signed(nonce.0))?;
        let page_max = i32::try_from(page_max).unwrap_or(i32::MAX);
        let params: [Param<'_>; 3] = [
            (&token, Type::UUID),
            (&after, Type::INT8),
            (&page_max, Type::INT4),
        ];
        let rows = self.db.call(SQL, &params).await;
        let rows = rows.map_err(Fault::of_read)?;
        let read = |row| {
            Ok((
                Nonce(unsigned(column(row, "nonce")?)?),
                column(row, "stint")?,
            ))
        };
        let read: Result<_, Fault> = rows.iter().map(read).collect();
        read.map_err(Fault::of_read)
    }

    /// Ends keepers whose lease is over; how many.
    pub async fn reap(&self) -> Result<u64, ReservationError> {
        const SQL: &str = "SELECT nonce_reap_1($1, NULL, $2) AS ended";
        let scheme = scheme_number(self.kind);
        let params: [Param<'_>; 2] = [(&scheme, Type::INT2), (&REAPED_MAX, Type::INT4)];
        let row = self.db.call_one(SQL, &params).await;
        let row = row.map_err(Fault::of_read)?;
        let ended = column(&row, "ended").and_then(unsigned);
        ended.map_err(Fault::of_read)
    }

    /// A nonce as the books have it, whoever holds it.
    pub async fn found(
        &self,
        lane: LaneKey,
        nonce: Nonce,
    ) -> Result<Option<Found>, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, r.state, r.nonce, r.holder, r.tx_hash, \
             r.was_replaced, nonce_ms_1(r.expires_at) AS expires_ms, r.reason, \
             r.state = 2 AND r.keeper IS NOT NULL AS is_kept FROM nonce_lane AS l \
             LEFT JOIN nonce_reservation AS r ON r.lane_id = l.lane_id AND r.nonce = $3 \
             WHERE l.chain_id = $1 AND l.signer = $2";
        let Ok(which) = signed(nonce.0) else {
            return Ok(None);
        };
        let rows = self.rows_of(lane, SQL, which).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let read = || {
            let Some(reservation) = optional(lane, row)? else {
                return Ok(None);
            };
            let is_live_for = column(row, "is_kept")?;
            Ok(Some(Found {
                reservation,
                is_live_for,
            }))
        };
        read().map_err(Fault::of_read)
    }

    /// What is lent of a lane, as far as it is written down. What is kept and was never lent is not listed.
    pub async fn lent_by_keepers(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        const SQL: &str = "SELECT l.scheme AS bound, nonce_top_lent_1(l) AS next, r.state, r.nonce, \
             r.holder, r.tx_hash, r.was_replaced, nonce_ms_1(r.expires_at) AS expires_ms, r.reason \
             FROM nonce_lane AS l LEFT JOIN LATERAL ( \
               SELECT * FROM nonce_reservation AS x WHERE x.lane_id = l.lane_id \
                 AND (x.state <> 1 OR (x.closed_number IS NULL AND NOT x.is_buried)) \
                 AND (x.state <> 2 OR x.keeper IS DISTINCT FROM x.holder) \
               ORDER BY x.nonce LIMIT $3 \
             ) AS r ON true WHERE l.chain_id = $1 AND l.signer = $2 ORDER BY r.nonce";
        let one_more = i64::try_from(RESERVATIONS_MAX + 1).expect("it is small");
        let rows = self.rows_of(lane, SQL, one_more).await?;
        super::watch::listed(lane, &rows)
    }
}

/// Why a line was refused, in the words of the one table of rules.
fn refusal(entry: &Entry, mut found: Reservation) -> ReservationError {
    let nonce = entry.nonce;
    let mark = match &entry.what {
        What::LaneReservations { .. } => return MarkRefusal::NotHolder(nonce).into(),
        What::Submitted(hash) => domain::Mark::Submitted(*hash),
        What::Used(hash) => domain::Mark::Used(*hash),
        What::Recyclable { reason, asked, .. } => domain::Mark::Recyclable {
            reason: reason.clone(),
            asked: *asked,
        },
    };
    match found.mark(entry.holder, &mark) {
        Err(refused) => refused.into(),
        Ok(()) => ReservationError::Unavailable(format!(
            "nonce {nonce} is refused by the database and not by the rules"
        )),
    }
}

/// A batch turned into columns: the statement takes one array per column.
#[derive(Default)]
struct Lines<'a> {
    chains: Vec<i64>,
    signers: Vec<&'a [u8]>,
    nonces: Vec<i64>,
    holders: Vec<Uuid>,
    whats: Vec<i16>,
    hashes: Vec<Option<&'a [u8]>>,
    reasons: Vec<Option<String>>,
    tokens: Vec<Option<Uuid>>,
    stints: Vec<i64>,
    deadlines: Vec<i64>,
}

impl<'a> Lines<'a> {
    /// No row has a number below zero: what does not fit is not lent, and the database says so.
    fn push(&mut self, entry: &'a Entry) {
        let number = |n: u64| i64::try_from(n).unwrap_or(-1);
        let (what, hash, reason, token, stint, deadline) = match &entry.what {
            What::Submitted(hash) => (0, Some(hash.as_slice()), None, None, 0, 0),
            What::Used(hash) => (1, Some(hash.as_slice()), None, None, 0, 0),
            What::Recyclable {
                reason,
                asked,
                keep,
            } => {
                let (token, stint) = keep.unzip();
                let asked = asked.as_ref().map(B256::as_slice);
                (2, asked, Some(kept(reason)), token, stint.unwrap_or(0), 0)
            }
            What::LaneReservations {
                token,
                stint,
                expires_at,
            } => (3, None, None, Some(*token), *stint, number(expires_at.0)),
        };
        self.chains.push(number(entry.lane.chain_id.0));
        self.signers.push(entry.lane.signer.as_slice());
        self.nonces.push(number(entry.nonce.0));
        self.holders.push(entry.holder.0);
        self.whats.push(what);
        self.hashes.push(hash);
        self.reasons.push(reason);
        self.tokens.push(token);
        self.stints.push(stint);
        self.deadlines.push(deadline);
    }
}
