//! Requests by their idempotency key: finding them, and the unfenced insert.

use std::collections::BTreeMap;

use domain::{LaneKey, RequestId, Tx};
use engine::ports::QueuedRequest;
use postgres_client::QueryError;
use tokio_postgres::types::Type;

use super::columns::{TxChanges, TxConstants};
use super::fault::{Fault, Result};
use super::lease::LaneColumns;
use super::pool::Db;
use super::rows::tx_from_row;
use crate::encoding::{stored, tx_columns};

/// No lane has this id.
const NO_LANE: i64 = -1;

/// Inserts requests. Parameters: chains, signers, and the columns of new txs.
pub const QUEUE: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM lanekeeper_queue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) \
     AS tx"
);

/// Inserts requests without nonce or event. Known requests stay as they are.
pub(super) async fn queue(db: &Db, requests: Vec<QueuedRequest>) -> Result<Vec<Tx>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let keys = LaneColumns::of(requests.iter().map(|queued| queued.lane));
    let txs: Vec<Tx> = requests.into_iter().map(QueuedRequest::into_tx).collect();
    let (mut once, mut changing) = (TxConstants::default(), TxChanges::default());
    for tx in &txs {
        stored(tx.request.created_at.0)?;
        once.push(tx);
        changing.push(tx);
    }
    let mut params = keys.params();
    once.add_params(&mut params);
    changing.add_params_of_queued(&mut params);
    let rows = match db.writes.query(QUEUE, &params).await {
        Err(fault) if fault.is_duplicate() => {
            return Err(Fault::Invalid("a tx id exists already".into()));
        }
        rows @ (Ok(_) | Err(_)) => rows?,
    };
    if rows.len() != txs.len() {
        let text = "the queue did not answer for every request".into();
        return Err(QueryError::Unknown(text).into());
    }
    rows.iter().map(tx_from_row).collect()
}

/// Parameters: lane ids, request ids.
pub(super) const FIND: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM unnest($1::bigint[], $2::text[]) AS k(lane_id, request_id) \
     JOIN managed_tx AS tx ON tx.lane_id = k.lane_id AND tx.request_id = k.request_id"
);

/// Parameters: chains, signers.
pub(super) const FIND_LANES: &str = "\
    SELECT lane.lane_id, k.place FROM unnest($1::bigint[], $2::bytea[]) \
      WITH ORDINALITY AS k(chain_id, signer, place) \
    JOIN lane ON lane.chain_id = k.chain_id AND lane.signer = k.signer";

/// Two statements: in one, the planner may look a tx up by its lane alone, and read all of a large one.
pub(super) async fn find_requests(
    db: &Db,
    requests: &[(LaneKey, RequestId)],
) -> Result<Vec<Option<Tx>>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let keys = LaneColumns::of(requests.iter().map(|(lane, _)| *lane));
    let mut lanes: Vec<i64> = vec![NO_LANE; requests.len()];
    for row in db.writes.query(FIND_LANES, &keys.params()).await? {
        let place: i64 = row.try_get(1)?;
        let lane = usize::try_from(place.saturating_sub(1)).ok();
        if let Some(lane) = lane.and_then(|at| lanes.get_mut(at)) {
            *lane = row.try_get(0)?;
        }
    }
    let ids: Vec<&str> = requests.iter().map(|(_, id)| id.as_str()).collect();
    let params = [
        (&lanes as _, Type::INT8_ARRAY),
        (&ids as _, Type::TEXT_ARRAY),
    ];
    let mut known: BTreeMap<(i64, RequestId), Tx> = BTreeMap::new();
    for row in db.writes.query(FIND, &params).await? {
        let tx = tx_from_row(&row)?;
        known.insert((row.try_get(0)?, tx.request.request_id.clone()), tx);
    }
    let found = lanes.into_iter().zip(requests);
    let found = found.map(|(lane, (_, id))| known.get(&(lane, id.clone())).cloned());
    Ok(found.collect())
}
