//! Conversion of rows into txs, attempts and lanes.
//!
//! A tx comes with its attempts in one row, as one array per column, so that a page of txs is one
//! statement and not one per tx.

use domain::lane::{HeadWait, LaneWait};
use domain::{
    Attempt, Bytes, ChainId, Fingerprint, History, LaneKey, LastWrite, Nonce, Payload, RequestId,
    Timestamp, Token, Tx, TxHistory, TxId, TxRequest, U256,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::fault::Result;
use crate::encoding::{
    Malformed, address, attempt_kind, fees_from_bytes, from_bits, from_stored, gas, hash,
    head_from_bytes, inclusion_from_bytes, seqs_from_bytes, state, sub_state, tx_type, wei, widen,
};

/// The columns that [`attempts_of`] reads: right behind [`tx_columns`](crate::encoding::tx_columns), from [`attempts_join`].
macro_rules! attempts_columns {
    () => {
        "sent.hashes, sent.kinds, sent.nonces, sent.gas, sent.fees, sent.signed, sent.first_sent, \
         sent.raw"
    };
}
pub(super) use attempts_columns;

/// Joins a tx's attempts to it, oldest first: all of them, or those at its present nonce. They are found
/// by its present and past nonces; at a past nonce there may be attempts of another tx too. (Aggregates take their input as it comes, so one sort serves all of them.)
macro_rules! attempts_join {
    (all) => {
        attempts_join!("tx_attempt.nonce = ANY (array_append(tx.past_nonces, tx.nonce))")
    };
    (of the present nonce) => {
        attempts_join!("tx_attempt.nonce = tx.nonce")
    };
    ($at_nonces:literal) => {
        concat!(
            " CROSS JOIN LATERAL ( \
               SELECT array_agg(attempt.hash) AS hashes, array_agg(attempt.kind) AS kinds, \
                      array_agg(attempt.nonce) AS nonces, array_agg(attempt.gas) AS gas, \
                      array_agg(attempt.fees) AS fees, array_agg(attempt.signed_at) AS signed, \
                      array_agg(attempt.first_sent_at) AS first_sent, array_agg(attempt.raw) AS raw \
               FROM ( \
                 SELECT * FROM tx_attempt \
                 WHERE tx_attempt.lane_id = tx.lane_id AND tx_attempt.tx_id = tx.tx_id AND ",
            $at_nonces,
            " ORDER BY tx_attempt.row_id \
               ) AS attempt \
             ) AS sent "
        )
    };
}
pub(super) use attempts_join;

/// How many columns [`tx_columns`] are.
const TX_COLUMNS: usize = 26;
/// How many columns [`tx_columns`] and [`attempts_columns`] are: where a statement's own begin.
pub(super) const RECORD_COLUMNS: usize = TX_COLUMNS + 8;

/// A tx from a row of [`tx_columns`].
pub(super) fn tx_from_row(row: &Row) -> Result<Tx> {
    let request_id: &str = row.try_get(9)?;
    let payload = Payload {
        to: optional(row, 17, address)?,
        value: U256::from_be_bytes(widen::<32>(row.try_get(18)?, "value")?),
        data: Bytes::copy_from_slice(row.try_get(24)?),
        gas: optional(row, 19, gas)?,
        max_fee_per_gas: optional(row, 20, wei)?,
        max_priority_fee_per_gas: optional(row, 21, wei)?,
        gas_price: optional(row, 22, wei)?,
        tx_type: optional(row, 23, tx_type::<i16>)?,
    };
    Ok(Tx {
        id: TxId(row.try_get(2)?),
        request: TxRequest {
            request_id: RequestId::parse(request_id).map_err(|_bad| Malformed("request id"))?,
            fingerprint: Fingerprint(hash(row.try_get(10)?)?),
            payload,
            gas: from_bits(row.try_get(16)?),
            created_at: time(row, 6)?,
        },
        nonce: optional(row, 3, |nonce| from_stored(nonce, "nonce"))?.map(Nonce),
        state: state(row.try_get::<_, i16>(1)?)?,
        sub_state: optional(row, 4, sub_state::<i16>)?,
        reason: row.try_get(14)?,
        tx_hash: optional(row, 11, hash)?,
        inclusion: optional(row, 15, inclusion_from_bytes)?,
        counted: optional(row, 12, hash)?,
        written: LastWrite {
            token: Token(number(row, 5, "token")?),
            at: time(row, 7)?,
        },
        confirmed_at: optional(row, 8, |at| from_stored(at, "time"))?.map(Timestamp),
        history: TxHistory {
            event_seqs: seqs_from_bytes(row.try_get(13)?)?,
            resubmits: optional(row, 25, resubmits)?.unwrap_or(0),
        },
    })
}

/// The attempts of a tx, oldest first, from a row of [`tx_columns`] and [`attempts_columns`].
pub(super) fn attempts_of(row: &Row) -> Result<Vec<Attempt>> {
    const AT: usize = TX_COLUMNS;
    let Some(hashes) = row.try_get::<_, Option<Vec<&[u8]>>>(AT)? else {
        return Ok(Vec::new());
    };
    let tx_id = TxId(row.try_get(2)?);
    let kinds: Vec<i16> = row.try_get(AT + 1)?;
    let nonces: Vec<i64> = row.try_get(AT + 2)?;
    let gas: Vec<i64> = row.try_get(AT + 3)?;
    let fees: Vec<&[u8]> = row.try_get(AT + 4)?;
    let signed: Vec<i64> = row.try_get(AT + 5)?;
    let first_sent: Vec<Option<i64>> = row.try_get(AT + 6)?;
    let raw: Vec<&[u8]> = row.try_get(AT + 7)?;
    // They are aggregates of the same rows, so all of them have the same length.
    (0..hashes.len())
        .map(|n| {
            let first_sent_at = first_sent[n].map(|at| from_stored(at, "time"));
            Ok(Attempt {
                hash: hash(hashes[n])?,
                tx_id,
                kind: attempt_kind(kinds[n])?,
                nonce: Nonce(from_stored(nonces[n], "nonce")?),
                gas: from_bits(gas[n]),
                fees: fees_from_bytes(fees[n])?,
                signed_at: Timestamp(from_stored(signed[n], "time")?),
                first_sent_at: first_sent_at.transpose()?.map(Timestamp),
                raw: Bytes::copy_from_slice(raw[n]),
            })
        })
        .collect()
}

/// How often a tx was sent again.
fn resubmits(stored: i32) -> Result<u32, Malformed> {
    u32::try_from(stored).map_err(|_negative| Malformed("count of resubmits"))
}

/// A lane's key from two columns: `chain_id`, `signer`.
pub(super) fn lane_key(row: &Row, at: usize) -> Result<LaneKey> {
    Ok(LaneKey {
        chain_id: ChainId(from_bits(row.try_get(at)?)),
        signer: address(row.try_get(at + 1)?)?,
    })
}

/// Why a lane makes no progress, from its row's head; NULL where the lane has no row yet.
pub(super) fn lane_wait(row: &Row, column: usize) -> Result<Option<LaneWait>> {
    let head = optional(row, column, head_from_bytes)?.flatten();
    Ok(head.and_then(HeadWait::into_lane_wait))
}

/// A column that may be NULL.
pub(super) fn optional<'row, T: FromSql<'row>, Out>(
    row: &'row Row,
    column: usize,
    read: impl FnOnce(T) -> Result<Out, Malformed>,
) -> Result<Option<Out>> {
    let value: Option<T> = row.try_get(column)?;
    Ok(value.map(read).transpose()?)
}

/// A number whose order matters.
pub(super) fn number(row: &Row, column: usize, what: &'static str) -> Result<u64> {
    Ok(from_stored(row.try_get(column)?, what)?)
}

pub(super) fn history(row: &Row, column: usize) -> Result<History> {
    let text: &str = row.try_get(column)?;
    Ok(text.parse().map_err(|_bad| Malformed("history"))?)
}

pub(super) fn time(row: &Row, column: usize) -> Result<Timestamp> {
    number(row, column, "time").map(Timestamp)
}
