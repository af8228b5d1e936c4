//! Readers of txs: by id, by key, by any hash, and in pages.

use domain::{B256, LaneKey, RequestId, TxId};
use engine::ports::{TxCursor, TxFilter, TxPage, TxRecord};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::headers::{Walks, Wanted};
use super::lane_lists;
use super::pool::{Param, Pool};
use super::rows::{
    RECORD_COLUMNS, attempts_columns, attempts_join, attempts_of, lane_key, lane_wait, number,
    tx_from_row,
};
use crate::encoding::{bits, bound, state_number, tx_columns};

/// The most txs of one page.
pub(super) const PAGE_MAX: usize = 1_000;
/// The most rows that one page reads. A filter that matches little gives short pages, and `next`
/// continues after them: no query occupies a reader for long.
pub(super) const EXAMINED_MAX: usize = 10_000;
/// A page ends after the tx with which its calldata and attempts reach this.
pub(super) const PAGE_BYTES_MAX: u64 = 8 << 20;

/// The first column of a statement after those of [`record_columns`].
const OWN: usize = RECORD_COLUMNS + 3;

/// The columns of a [`TxRecord`], without headers.
macro_rules! record_columns {
    () => {
        concat!(
            tx_columns!(),
            ", ",
            attempts_columns!(),
            ", lane.chain_id, lane.signer, (SELECT c.head_wait FROM signer_nonce_cursor AS c \
              WHERE c.lane_id = tx.lane_id LIMIT 1)"
        )
    };
}
pub(super) use record_columns;

pub(super) const BY_ID: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM managed_tx AS tx",
    attempts_join!(all),
    "JOIN lane ON lane.lane_id = tx.lane_id WHERE tx.tx_id = $1"
);

pub(super) async fn tx(pool: &Pool, id: TxId) -> Result<Option<TxRecord>> {
    one(pool, BY_ID, &[(&id.0, Type::UUID)]).await
}

pub(super) const BY_REQUEST: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM lane JOIN managed_tx AS tx ON tx.lane_id = lane.lane_id",
    attempts_join!(all),
    "WHERE lane.chain_id = $1 AND lane.signer = $2 AND tx.request_id = $3"
);

pub(super) async fn tx_by_request(
    pool: &Pool,
    key: LaneKey,
    request_id: &RequestId,
) -> Result<Option<TxRecord>> {
    let question: [Param<'_>; 3] = [
        (&bits(key.chain_id.0), Type::INT8),
        (&key.signer.as_slice(), Type::BYTEA),
        (&request_id.as_str(), Type::TEXT),
    ];
    one(pool, BY_REQUEST, &question).await
}

pub(super) const BY_HASH: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM tx_attempt AS found JOIN managed_tx AS tx ON tx.tx_id = found.tx_id",
    attempts_join!(all),
    "JOIN lane ON lane.lane_id = tx.lane_id WHERE found.hash = $1"
);

pub(super) async fn tx_by_hash(pool: &Pool, hash: B256) -> Result<Option<TxRecord>> {
    one(pool, BY_HASH, &[(&hash.as_slice(), Type::BYTEA)]).await
}

// A walk along the index of tx ids, which are time-ordered. `page` is one longer than requested, to know
// whether anything follows; `edge` is the number of rows that were read, and when that is the limit,
// where the next page continues. A row of `edge` alone is an empty page.
// $1 below, $2 rows to read, $3 limit, $4 state, $5 chain, $6 bytes.
pub(super) const PAGE: &str = concat!(
    "WITH page AS MATERIALIZED ( \
       SELECT seen.tx_id, sum(seen.bytes) OVER (ORDER BY seen.tx_id DESC) - seen.bytes AS bytes_before \
       FROM ( \
         SELECT examined.tx_id, octet_length(examined.data) + coalesce(( \
             SELECT sum(octet_length(attempt.raw)) FROM tx_attempt AS attempt \
             WHERE attempt.lane_id = examined.lane_id AND attempt.tx_id = examined.tx_id \
               AND attempt.nonce = ANY (array_append(examined.past_nonces, examined.nonce)) \
           ), 0) AS bytes \
         FROM ( \
           SELECT tx_id, lane_id, state, nonce, past_nonces, data FROM managed_tx \
           WHERE tx_id < $1 ORDER BY tx_id DESC LIMIT $2 \
         ) AS examined \
         CROSS JOIN LATERAL ( \
           SELECT FROM lane WHERE lane.lane_id = examined.lane_id \
             AND ($5 IS NULL OR lane.chain_id = $5) LIMIT 1 \
         ) AS wanted \
         WHERE $4 IS NULL OR examined.state = $4 \
         ORDER BY examined.tx_id DESC LIMIT $3 + 1 \
       ) AS seen \
     ), edge AS ( \
       SELECT found, CASE WHEN found <= $3 THEN ( \
           SELECT tx_id FROM managed_tx WHERE tx_id < $1 ORDER BY tx_id DESC OFFSET $2 - 1 LIMIT 1 \
         ) END AS tx_id \
       FROM (SELECT count(*) AS found FROM page) AS counted \
     ) \
     SELECT ",
    record_columns!(),
    ", edge.found, edge.tx_id \
     FROM edge LEFT JOIN ( \
       page JOIN managed_tx AS tx ON tx.tx_id = page.tx_id \
       JOIN lane ON lane.lane_id = tx.lane_id",
    attempts_join!(all),
    ") ON page.bytes_before < $6 \
     ORDER BY tx.tx_id DESC LIMIT $3"
);

/// Newest first, or lane by lane.
pub(super) async fn txs(pool: &Pool, filter: &TxFilter) -> Result<TxPage> {
    if filter.is_by_lane() {
        return lane_lists::txs(pool, filter).await;
    }
    let limit = filter.limit.clamp(1, PAGE_MAX);
    let is_filtered = filter.state.is_some() || filter.chain_id.is_some();
    let examined = if is_filtered { EXAMINED_MAX } else { limit + 1 };
    let below = match filter.after {
        None => Uuid::max(),
        Some(TxCursor::After(id)) => id.0,
        Some(cursor @ TxCursor::InLane(..)) => {
            let text = format!("{cursor:?} is not a place in this list");
            return Err(Fault::Invalid(text));
        }
    };
    let state = filter.state.map(|state| i16::from(state_number(state)));
    let rows = pool
        .query(
            PAGE,
            &[
                (&below, Type::UUID),
                (&bound(examined as u64), Type::INT8),
                (&bound(limit as u64), Type::INT8),
                (&state, Type::INT2),
                (&filter.chain_id.map(|id| bits(id.0)), Type::INT8),
                (&bound(PAGE_BYTES_MAX), Type::INT8),
            ],
        )
        .await?;
    let mut records = Vec::with_capacity(rows.len());
    let (mut found, mut edge) = (0, None);
    for row in &rows {
        found = number(row, OWN, "count")?;
        edge = row.try_get::<_, Option<Uuid>>(OWN + 1)?;
        if row.try_get::<_, Option<Uuid>>(2)?.is_some() {
            records.push(record(row)?);
        }
    }
    add_confirmations(pool, &mut records).await?;
    // Found and not returned: the page is full, in count or in bytes.
    let next = match records.last() {
        Some(last) if (records.len() as u64) < found => Some(last.tx.id),
        Some(_) | None => edge.map(TxId),
    };
    Ok(TxPage {
        txs: records,
        next: next.map(TxCursor::After),
    })
}

async fn one(pool: &Pool, sql: &str, question: &[Param<'_>]) -> Result<Option<TxRecord>> {
    let rows = pool.query(sql, question).await?;
    let mut records: Vec<TxRecord> = rows.first().map(record).transpose()?.into_iter().collect();
    add_confirmations(pool, &mut records).await?;
    Ok(records.pop())
}

/// A row of [`record_columns`], still without its headers.
pub(super) fn record(row: &Row) -> Result<TxRecord> {
    Ok(TxRecord {
        lane: lane_key(row, RECORD_COLUMNS)?,
        tx: tx_from_row(row)?,
        attempts: attempts_of(row)?,
        confirmations: Vec::new(),
        lane_wait: lane_wait(row, RECORD_COLUMNS + 2)?,
    })
}

/// Reads the headers of all records at once. Drops records from the end as long as there are more
/// headers than one answer may hold.
pub(super) async fn add_confirmations(pool: &Pool, records: &mut Vec<TxRecord>) -> Result<()> {
    let walks = loop {
        let wanted: Vec<Wanted> = records.iter().filter_map(wanted).collect();
        let walks = Walks::read(pool, &wanted).await?;
        if !walks.is_cut() || records.len() <= 1 {
            break walks;
        }
        records.truncate(records.len() / 2);
    };
    for record in records {
        if let Some(wanted) = wanted(record) {
            record.confirmations = walks.walk(wanted);
        }
    }
    Ok(())
}

fn wanted(record: &TxRecord) -> Option<Wanted> {
    Some(Wanted {
        chain_id: record.lane.chain_id,
        block: record.tx.inclusion.as_ref()?.block_hash,
        counted: record.tx.counted?,
    })
}
