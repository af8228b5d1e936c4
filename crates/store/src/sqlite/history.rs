//! The store's history: which store it is, and how many restores of a backup were declared.

use domain::{History, LaneId};
use rusqlite::{Connection, params};

use super::fault::Result;
use super::rows::number;
use crate::encoding::from_bits;

/// No other copy of an embedded store can be promoted: it stays on this timeline.
const TIMELINE: u64 = 0;

/// The present one.
pub(super) fn current(conn: &Connection) -> Result<History> {
    const SQL: &str = "SELECT store, restores FROM store_identity";
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query([])?;
    let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    Ok(History {
        store: from_bits(row.get(0)?),
        timeline: TIMELINE,
        restores: number(row, 1, "number of restores")?,
    })
}

/// Whether an operator has accepted the loss of a lane under this history, and it is not reconciled since.
pub(super) fn is_loss_accepted(conn: &Connection, lane: LaneId, history: History) -> Result<bool> {
    const SQL: &str = "SELECT 1 FROM signer_lease WHERE lane_id = ?1 AND accepted = ?2";
    let params = params![lane.0, history.to_string()];
    Ok(conn.prepare_cached(SQL)?.exists(params)?)
}

/// Whether a lane was last reconciled under this history.
pub(super) fn is_reconciled(conn: &Connection, lane: LaneId, history: History) -> Result<bool> {
    const SQL: &str = "SELECT 1 FROM signer_lease WHERE lane_id = ?1 AND history = ?2";
    let params = params![lane.0, history.to_string()];
    Ok(conn.prepare_cached(SQL)?.exists(params)?)
}
