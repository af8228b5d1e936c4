//! Requests by their idempotency key: finding them, and the unfenced insert.

use domain::{LaneId, LaneKey, RequestId, Tx};
use engine::ports::QueuedRequest;
use rusqlite::{Connection, params};

use super::fault::{Fault, Result};
use super::history;
use super::lease::halted;
use super::rows::{INSERT_TX, create_lane, find_lane, find_row, insert_tx, tx};
use super::txs;

/// Inserts requests without nonce or event. Known requests stay as they are.
pub(super) fn queue(conn: &Connection, requests: &[QueuedRequest]) -> Result<Vec<Tx>> {
    const QUEUED: &str = "INSERT INTO queued_tx (lane_id, tx_id) VALUES (?1, ?2)";
    let mut insert = conn.prepare_cached(INSERT_TX)?;
    let mut queued_row = conn.prepare_cached(QUEUED)?;
    refuse_for_loss(conn, requests)?;
    let mut txs = Vec::with_capacity(requests.len());
    for queued in requests {
        let lane = create_lane(conn, queued.lane)?;
        // There is one writer, so nothing is inserted between the lookup and the insert.
        if let Some(known) = find(conn, lane, &queued.request.request_id)? {
            txs.push(known);
            continue;
        }
        let tx = queued.clone().into_tx();
        insert_tx(&mut insert, lane, &tx).map_err(|fault| match fault.is_duplicate() {
            true => Fault::Invalid(format!("tx id {} is taken", tx.id)),
            false => fault,
        })?;
        queued_row.execute(params![lane.0, tx.id.0.as_bytes().as_slice()])?;
        txs.push(tx);
    }
    Ok(txs)
}

/// A lane that has lost commits, or may have, must not accept a request again that was executed. One that does not exist
/// yet takes it, so that a keeper finds the lane; it is compared with the chain before it allocates a nonce.
fn refuse_for_loss(conn: &Connection, requests: &[QueuedRequest]) -> Result<()> {
    let history = history::current(conn)?;
    for queued in requests {
        let Some(lane) = find_lane(conn, queued.lane)? else {
            continue;
        };
        if find(conn, lane, &queued.request.request_id)?.is_some() {
            continue;
        }
        if let Some(reason) = halted(conn, lane)? {
            return Err(Fault::Halted(reason));
        }
        if !history::is_reconciled(conn, lane, history)? {
            let why =
                "the store's history changed, and the lane is not reconciled with its chain yet";
            return Err(Fault::Unreconciled(why.into()));
        }
    }
    Ok(())
}

pub(super) fn find_requests(
    conn: &Connection,
    requests: &[(LaneKey, RequestId)],
) -> Result<Vec<Option<Tx>>> {
    requests
        .iter()
        .map(|(key, request_id)| match find_lane(conn, *key)? {
            Some(lane) => find(conn, lane, request_id),
            None => Ok(None),
        })
        .collect()
}

fn find(conn: &Connection, lane: LaneId, request_id: &RequestId) -> Result<Option<Tx>> {
    let key = params![lane.0, request_id.as_str()];
    find_row(conn, txs::BY_REQUEST, key, tx)
}
