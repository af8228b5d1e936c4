//! The store's history: which store it is, how many restores of a backup were declared, and how many suspected.

use domain::{History, LaneId, Timestamp};
use rusqlite::{Connection, Row, TransactionBehavior, params};

use super::fault::Result;
use crate::encoding::{bound, from_bits};

/// No other copy of an embedded store can be promoted: it stays on this timeline.
const TIMELINE: u64 = 0;

const CURRENT: &str = "SELECT store, restores, suspicions FROM store_identity";

/// The present one.
pub(super) fn current(conn: &Connection) -> Result<History> {
    Ok(conn.prepare_cached(CURRENT)?.query_row([], read)?)
}

fn read(row: &Row<'_>) -> Result<History, rusqlite::Error> {
    Ok(History {
        store: from_bits(row.get(0)?),
        timeline: TIMELINE,
        restores: from_bits(row.get(1)?),
        suspicions: from_bits(row.get(2)?),
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

/// Begins another history, unless the store is on another one already. Returns the present one.
pub(super) fn suspect_loss(conn: &Connection, seen: History) -> Result<History> {
    const SQL: &str = "UPDATE store_identity SET suspicions = suspicions + 1";
    if current(conn)? == seen {
        conn.prepare_cached(SQL)?.execute([])?;
    }
    current(conn)
}

/// Declares that a backup was restored: from now on every lane is unreconciled, and no grant and no cursor of the feed
/// holds any more.
pub(super) fn declare_restore(
    conn: &mut Connection,
    now: Timestamp,
    reason: &str,
) -> Result<History, rusqlite::Error> {
    const DECLARE: &str =
        "UPDATE store_identity SET restores = restores + 1, cursor_tag = randomblob(4)";
    const RECORD: &str = "INSERT INTO store_restore (number, declared_at, reason) \
         SELECT restores, ?1, ?2 FROM store_identity";
    const FENCE: &str = "UPDATE signer_nonce_cursor SET grant_id = randomblob(16)";
    const RELEASE: &str = "UPDATE signer_lease SET expires_at = 0";
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute(DECLARE, [])?;
    transaction.execute(RECORD, params![bound(now.0), reason])?;
    transaction.execute(FENCE, [])?;
    transaction.execute(RELEASE, [])?;
    let history = transaction.query_row(CURRENT, [], read)?;
    transaction.commit()?;
    Ok(history)
}
