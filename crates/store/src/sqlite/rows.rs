//! Conversion between rows and txs, attempts and lanes.

use domain::{
    Attempt, Bytes, ChainId, Fingerprint, LaneId, LaneKey, LastWrite, Nonce, Payload, RequestId,
    Timestamp, Token, Tx, TxHistory, TxId, TxRequest, U256,
};
use rusqlite::{CachedStatement, Connection, Params, Row, Statement, params};
use uuid::Uuid;

use super::fault::Result;
use crate::encoding::{
    Malformed, address, attempt_kind, attempt_kind_number, bits, fees_from_bytes, fees_to_bytes,
    from_bits, from_stored, gas, hash, inclusion_from_bytes, inclusion_to_bytes, seqs_from_bytes,
    seqs_to_bytes, short, state, state_number, stored, sub_state, sub_state_number, tx_type,
    tx_type_number, wei, widen,
};

/// The columns that [`attempt`] reads, in its order.
macro_rules! attempt_columns {
    () => {
        "hash, tx_id, kind, nonce, gas, fees, signed_at, first_sent_at, raw"
    };
}

/// The lane of a row that begins with it, as [`tx_columns`](crate::encoding::tx_columns) do.
pub(super) fn lane_id(row: &Row<'_>) -> Result<LaneId> {
    Ok(LaneId(row.get(0)?))
}

/// A tx from a row of [`tx_columns`](crate::encoding::tx_columns).
pub(super) fn tx(row: &Row<'_>) -> Result<Tx> {
    let request_id = row.get_ref(9)?.as_str()?;
    let kind: Option<i64> = row.get(23)?;
    let sub: Option<i64> = row.get(4)?;
    let payload = Payload {
        to: optional(row, 17, address)?,
        value: U256::from_be_bytes(widen::<32>(bytes(row, 18)?, "value")?),
        data: Bytes::copy_from_slice(bytes(row, 24)?),
        gas: optional(row, 19, gas)?,
        max_fee_per_gas: optional(row, 20, wei)?,
        max_priority_fee_per_gas: optional(row, 21, wei)?,
        gas_price: optional(row, 22, wei)?,
        tx_type: kind.map(tx_type).transpose()?,
    };
    Ok(Tx {
        id: TxId(uuid(row, 2)?),
        request: TxRequest {
            request_id: RequestId::parse(request_id).map_err(|_bad| Malformed("request id"))?,
            fingerprint: Fingerprint(hash(bytes(row, 10)?)?),
            payload,
            gas: from_bits(row.get(16)?),
            created_at: time(row, 6)?,
        },
        nonce: optional_number(row, 3, "nonce")?.map(Nonce),
        state: state::<i64>(row.get(1)?)?,
        sub_state: sub.map(sub_state).transpose()?,
        reason: row.get(14)?,
        tx_hash: optional(row, 11, hash)?,
        inclusion: optional(row, 15, inclusion_from_bytes)?,
        counted: optional(row, 12, hash)?,
        written: LastWrite {
            token: Token(number(row, 5, "token")?),
            at: time(row, 7)?,
        },
        confirmed_at: optional_number(row, 8, "time")?.map(Timestamp),
        history: TxHistory {
            event_seqs: seqs_from_bytes(bytes(row, 13)?)?,
            resubmits: row.get(25)?,
        },
    })
}

/// An attempt from a row of [`attempt_columns`].
fn attempt(row: &Row<'_>) -> Result<Attempt> {
    Ok(Attempt {
        hash: hash(bytes(row, 0)?)?,
        tx_id: TxId(uuid(row, 1)?),
        kind: attempt_kind::<i64>(row.get(2)?)?,
        nonce: Nonce(number(row, 3, "nonce")?),
        gas: from_bits(row.get(4)?),
        fees: fees_from_bytes(bytes(row, 5)?)?,
        signed_at: time(row, 6)?,
        first_sent_at: optional_number(row, 7, "time")?.map(Timestamp),
        raw: Bytes::copy_from_slice(bytes(row, 8)?),
    })
}

pub(super) const ATTEMPTS: &str = concat!(
    "SELECT ",
    attempt_columns!(),
    " FROM tx_attempt WHERE tx_id = ?1 ORDER BY row_id"
);

/// The attempts of a tx at all nonces that it ever held, oldest first.
pub(super) fn attempts(conn: &Connection, id: TxId) -> Result<Vec<Attempt>> {
    select(conn, ATTEMPTS, [id.0.as_bytes().as_slice()], attempt)
}

pub(super) const INSERT_TX: &str = "INSERT INTO managed_tx \
     (tx_id, lane_id, nonce, state, sub_state, open, signed, token, created_at, updated_at, \
      confirmed_at, request_id, fingerprint, tx_hash, counted, event_seqs, reason, inclusion, gas, \
      to_address, value, requested_gas, max_fee, max_priority_fee, gas_price, tx_type, data, \
      resubmits) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
             ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28)";

/// Writes a new tx by [`INSERT_TX`].
pub(super) fn insert_tx(insert: &mut Statement<'_>, lane: LaneId, tx: &Tx) -> Result<()> {
    let payload = &tx.request.payload;
    let value = payload.value.to_be_bytes::<32>();
    let requested_gas = payload.gas.map(u64::to_be_bytes);
    let max_fee = payload.max_fee_per_gas.map(u128::to_be_bytes);
    let max_priority_fee = payload.max_priority_fee_per_gas.map(u128::to_be_bytes);
    let gas_price = payload.gas_price.map(u128::to_be_bytes);
    insert.execute(params![
        tx.id.0.as_bytes().as_slice(),
        lane.0,
        tx.nonce.map(|nonce| stored(nonce.0)).transpose()?,
        state_number(tx.state),
        tx.sub_state.map(sub_state_number),
        tx.is_open(),
        is_signed(tx),
        stored(tx.written.token.0)?,
        stored(tx.request.created_at.0)?,
        stored(tx.written.at.0)?,
        tx.confirmed_at.map(|at| stored(at.0)).transpose()?,
        tx.request.request_id.as_str(),
        tx.request.fingerprint.0.as_slice(),
        tx.tx_hash.as_ref().map(|hash| hash.as_slice()),
        tx.counted.as_ref().map(|hash| hash.as_slice()),
        seqs_to_bytes(&tx.history.event_seqs),
        tx.reason.as_deref(),
        tx.inclusion.as_ref().map(inclusion_to_bytes),
        bits(tx.request.gas),
        payload.to.as_ref().map(|to| to.as_slice()),
        short(&value),
        requested_gas.as_ref().map(|gas| short(gas)),
        max_fee.as_ref().map(|wei| short(wei)),
        max_priority_fee.as_ref().map(|wei| short(wei)),
        gas_price.as_ref().map(|wei| short(wei)),
        payload.tx_type.map(tx_type_number),
        payload.data.as_ref(),
        tx.history.resubmits,
    ])?;
    Ok(())
}

/// Writes new images of txs.
///
/// Most updates leave the indexed columns as they are, and SQLite rewrites the index entries of
/// every column that a statement names: so there is a statement that does not name them.
pub(super) struct UpdateTx<'conn> {
    same_place: CachedStatement<'conn>,
    moved: CachedStatement<'conn>,
}

impl<'conn> UpdateTx<'conn> {
    pub(super) fn prepare(conn: &'conn Connection) -> Result<Self> {
        const SAME_PLACE: &str = "UPDATE managed_tx INDEXED BY managed_tx_id \
             SET state = ?6, sub_state = ?7, token = ?8, updated_at = ?9, confirmed_at = ?10, \
                 tx_hash = ?11, counted = ?12, event_seqs = ?13, reason = ?14, inclusion = ?15, resubmits = ?16 \
             WHERE tx_id = ?1 AND lane_id = ?2 AND nonce IS ?3 AND open = ?4 AND signed = ?5";
        const MOVED: &str = "UPDATE managed_tx INDEXED BY managed_tx_id \
             SET state = ?6, sub_state = ?7, token = ?8, updated_at = ?9, confirmed_at = ?10, \
                 tx_hash = ?11, counted = ?12, event_seqs = ?13, reason = ?14, inclusion = ?15, resubmits = ?16, \
                 nonce = ?3, open = ?4, signed = ?5 \
             WHERE tx_id = ?1 AND lane_id = ?2";
        Ok(Self {
            same_place: conn.prepare_cached(SAME_PLACE)?,
            moved: conn.prepare_cached(MOVED)?,
        })
    }

    /// Writes one image; whether there was such a tx in the lane.
    pub(super) fn execute(&mut self, lane: LaneId, tx: &Tx) -> Result<bool> {
        let image = params![
            tx.id.0.as_bytes().as_slice(),
            lane.0,
            tx.nonce.map(|nonce| stored(nonce.0)).transpose()?,
            tx.is_open(),
            is_signed(tx),
            state_number(tx.state),
            tx.sub_state.map(sub_state_number),
            stored(tx.written.token.0)?,
            stored(tx.written.at.0)?,
            tx.confirmed_at.map(|at| stored(at.0)).transpose()?,
            tx.tx_hash.as_ref().map(|hash| hash.as_slice()),
            tx.counted.as_ref().map(|hash| hash.as_slice()),
            seqs_to_bytes(&tx.history.event_seqs),
            tx.reason.as_deref(),
            tx.inclusion.as_ref().map(inclusion_to_bytes),
            tx.history.resubmits,
        ];
        Ok(self.same_place.execute(image)? == 1 || self.moved.execute(image)? == 1)
    }
}

/// Whether a tx has an attempt at its present nonce: one that lost its nonce waits unsigned.
fn is_signed(tx: &Tx) -> bool {
    tx.tx_hash.is_some()
}

pub(super) const INSERT_ATTEMPT: &str = "INSERT INTO tx_attempt \
     (hash, tx_id, lane_id, kind, nonce, gas, fees, signed_at, first_sent_at, raw) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// Writes a new attempt by [`INSERT_ATTEMPT`].
pub(super) fn insert_attempt(
    insert: &mut Statement<'_>,
    lane: LaneId,
    attempt: &Attempt,
) -> Result<()> {
    insert.execute(params![
        attempt.hash.as_slice(),
        attempt.tx_id.0.as_bytes().as_slice(),
        lane.0,
        attempt_kind_number(attempt.kind),
        stored(attempt.nonce.0)?,
        bits(attempt.gas),
        fees_to_bytes(&attempt.fees),
        stored(attempt.signed_at.0)?,
        attempt.first_sent_at.map(|at| stored(at.0)).transpose()?,
        attempt.raw.as_ref(),
    ])?;
    Ok(())
}

/// The lane of this id. Lanes are never deleted.
pub(super) fn lane_key(conn: &Connection, lane: LaneId) -> Result<LaneKey> {
    let mut statement =
        conn.prepare_cached("SELECT chain_id, signer FROM lane WHERE lane_id = ?1")?;
    let mut rows = statement.query([lane.0])?;
    let row = rows.next()?.ok_or(Malformed("lane"))?;
    Ok(LaneKey {
        chain_id: ChainId(from_bits(row.get(0)?)),
        signer: address(bytes(row, 1)?)?,
    })
}

/// The id of a lane, when the store knows it.
pub(super) fn find_lane(conn: &Connection, key: LaneKey) -> Result<Option<LaneId>> {
    const SQL: &str = "SELECT lane_id FROM lane WHERE chain_id = ?1 AND signer = ?2";
    let key = params![bits(key.chain_id.0), key.signer.as_slice()];
    find_row(conn, SQL, key, lane_id)
}

/// The id of a lane; a new lane is created. It is reconciled in the history in which the store was created: in a later one
/// it may be missing because commits were lost.
pub(super) fn create_lane(conn: &Connection, key: LaneKey) -> Result<LaneId> {
    if let Some(lane) = find_lane(conn, key)? {
        return Ok(lane);
    }
    let mut statement =
        conn.prepare_cached("INSERT INTO lane (chain_id, signer) VALUES (?1, ?2)")?;
    let id = statement.insert(params![bits(key.chain_id.0), key.signer.as_slice()])?;
    const LEASE: &str = "INSERT INTO signer_lease \
         (lane_id, token, renew_seq, expires_at, updated_at, history) \
         SELECT ?1, 0, 0, 0, 0, born FROM store_identity";
    conn.prepare_cached(LEASE)?.execute([id])?;
    Ok(LaneId(id))
}

/// The first row of a query, if it has any.
pub(super) fn find_row<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(read).transpose()
}

/// All rows of a query.
pub(super) fn select<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    statement.query_and_then(params, read)?.collect()
}

pub(super) fn bytes<'row>(row: &'row Row<'_>, column: usize) -> Result<&'row [u8]> {
    Ok(row.get_ref(column)?.as_blob()?)
}

/// Bytes that may be NULL.
fn optional<T>(
    row: &Row<'_>,
    column: usize,
    read: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Result<Option<T>> {
    let bytes = row.get_ref(column)?.as_blob_or_null()?;
    Ok(bytes.map(read).transpose()?)
}

/// A number whose order matters.
pub(super) fn number(row: &Row<'_>, column: usize, what: &'static str) -> Result<u64> {
    Ok(from_stored(row.get(column)?, what)?)
}

/// A number whose order matters, or NULL.
fn optional_number(row: &Row<'_>, column: usize, what: &'static str) -> Result<Option<u64>> {
    let number: Option<i64> = row.get(column)?;
    Ok(number.map(|number| from_stored(number, what)).transpose()?)
}

pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    number(row, column, "time").map(Timestamp)
}

pub(super) fn uuid(row: &Row<'_>, column: usize) -> Result<Uuid> {
    Uuid::from_slice(bytes(row, column)?).map_err(|_wrong_length| Malformed("id").into())
}
