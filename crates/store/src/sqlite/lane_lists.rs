//! Lists of txs that go lane by lane: those of one signer, and those in an open state. They walk the keys of their lanes
//! instead of all txs.

use domain::{LaneId, LaneKey, Nonce, TxId};
use engine::ports::{LanePlace, TxCursor, TxFilter, TxPage};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};

use super::fault::{Fault, Result};
use super::headers::Lookups;
use super::rows::{find_lane, find_row, uuid};
use super::txs::{EXAMINED_MAX, PAGE_MAX, matches_state, record};
use crate::encoding::{bound, from_stored, tx_columns};

pub(super) const LANES: &str = "SELECT lane_id FROM lane WHERE lane_id >= ?1 ORDER BY lane_id";

/// Parameters: lane, below this id, how many.
pub(super) const WITHOUT_NONCE: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx INDEXED BY managed_tx_without_nonce \
     WHERE lane_id = ?1 AND nonce IS NULL AND tx_id < ?2 ORDER BY tx_id DESC LIMIT ?3"
);

/// Parameters: lane, below this nonce, from this one on, how many.
pub(super) const WITH_NONCE: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx INDEXED BY managed_tx_nonce \
     WHERE lane_id = ?1 AND nonce < ?2 AND nonce >= ?3 ORDER BY nonce DESC LIMIT ?4"
);

/// The lowest nonce of an open tx. Parameters: lane, whether it is signed.
pub(super) const LOWEST_OPEN: &str = "SELECT min(nonce) FROM managed_tx INDEXED BY managed_tx_open \
     WHERE open = 1 AND lane_id = ?1 AND signed = ?2 AND nonce IS NOT NULL";

/// A page that is being collected.
struct Page<'a> {
    conn: &'a Connection,
    filter: &'a TxFilter,
    limit: usize,
    examined: usize,
    lookups: Lookups<'a>,
    /// The last place that was read.
    last: Option<TxCursor>,
    page: TxPage,
}

/// Whether the page goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Continues,
    Ended,
}

pub(super) fn txs(conn: &Connection, filter: &TxFilter) -> Result<TxPage> {
    let (first, mut after) = start(conn, filter)?;
    let mut page = Page {
        conn,
        filter,
        limit: filter.limit.clamp(1, PAGE_MAX),
        examined: 0,
        lookups: Lookups::new(conn),
        last: None,
        page: TxPage {
            txs: Vec::new(),
            next: None,
        },
    };
    // Lanes are few.
    let mut statement = conn.prepare_cached(LANES)?;
    let mut lanes = statement.query([first.0])?;
    while let Some(row) = lanes.next()? {
        let lane = LaneId(row.get(0)?);
        let key = page.lookups.lane(lane)?;
        let after = after.take().filter(|_| lane == first);
        if filter.has_lane(key) && page.add_lane(lane, key, after)? == Progress::Ended {
            break;
        }
    }
    Ok(page.page)
}

/// The lane with which a page begins, and the place there.
fn start(conn: &Connection, filter: &TxFilter) -> Result<(LaneId, Option<LanePlace>)> {
    let Some(cursor) = filter.after else {
        return Ok((LaneId(0), None));
    };
    let foreign = || Fault::Invalid(format!("{cursor:?} is not a place in this list"));
    match cursor {
        TxCursor::InLane(key, place) if filter.has_place(cursor) => {
            let lane = find_lane(conn, key)?.ok_or_else(foreign)?;
            Ok((lane, Some(place)))
        }
        TxCursor::InLane(..) | TxCursor::After(_) => Err(foreign()),
    }
}

impl Page<'_> {
    fn add_lane(
        &mut self,
        lane: LaneId,
        key: LaneKey,
        after: Option<LanePlace>,
    ) -> Result<Progress> {
        // Above every id: one byte longer than the highest.
        let tx_below = match after {
            None => Some(vec![0xff; 17]),
            Some(LanePlace::WithoutNonce(id)) => Some(id.0.as_bytes().to_vec()),
            Some(LanePlace::WithNonce(_)) => None,
        };
        if let Some(below) = tx_below {
            let below = [Value::Integer(lane.0), Value::Blob(below)];
            if self.add_rows(WITHOUT_NONCE, key, below)? == Progress::Ended {
                return Ok(Progress::Ended);
            }
        }
        let nonce_below = match after {
            None | Some(LanePlace::WithoutNonce(_)) => i64::MAX,
            Some(LanePlace::WithNonce(nonce)) => bound(nonce.0),
        };
        let Some(floor) = self.floor(lane)? else {
            return Ok(Progress::Continues);
        };
        let range = [lane.0, nonce_below, floor].map(Value::Integer);
        self.add_rows(WITH_NONCE, key, range)
    }

    /// The lowest nonce that is listed; `None` when none is.
    fn floor(&self, lane: LaneId) -> Result<Option<i64>> {
        if self.filter.state.is_none_or(|state| state.is_terminal()) {
            return Ok(Some(0));
        }
        let lowest = |signed: bool| {
            find_row(self.conn, LOWEST_OPEN, params![lane.0, signed], |row| {
                Ok(row.get::<_, Option<i64>>(0)?)
            })
        };
        let lowest = [lowest(false)?.flatten(), lowest(true)?.flatten()];
        Ok(lowest.into_iter().flatten().min())
    }

    /// Adds the rows of one statement, whose last parameter is how many it reads.
    fn add_rows(
        &mut self,
        sql: &str,
        key: LaneKey,
        params: impl IntoIterator<Item = Value>,
    ) -> Result<Progress> {
        let mut statement = self.conn.prepare_cached(sql)?;
        let left = EXAMINED_MAX.saturating_sub(self.examined);
        // One more than may be read: only its presence counts.
        let limit = Value::Integer(bound(left as u64 + 1));
        let params = params.into_iter().chain([limit]);
        let mut rows = statement.query(rusqlite::params_from_iter(params))?;
        while let Some(row) = rows.next()? {
            if self.page.txs.len() == self.limit || self.examined == EXAMINED_MAX {
                self.page.next = self.last;
                return Ok(Progress::Ended);
            }
            self.examined += 1;
            self.last = Some(TxCursor::InLane(key, place(row)?));
            if matches_state(row, self.filter)? {
                let record = record(self.conn, &mut self.lookups, row)?;
                self.page.txs.push(record);
            }
        }
        Ok(Progress::Continues)
    }
}

fn place(row: &Row<'_>) -> Result<LanePlace> {
    let nonce: Option<i64> = row.get(3)?;
    let nonce = nonce.map(|nonce| from_stored(nonce, "nonce")).transpose()?;
    Ok(LanePlace::of(TxId(uuid(row, 2)?), nonce.map(Nonce)))
}
