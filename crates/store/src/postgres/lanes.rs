//! Lanes: loading them for their keepers, finding lanes with work, and listing them for people.

use std::collections::BTreeMap;
use std::ops::Range;

use domain::lane::{HeadWait, MinedRows, OpenCost, OpenSummary, UNRECORDED_MAX, UNRECORDED_PREFIX};
use domain::lease::LeaseRequest;
use domain::{
    Attempt, B256, FinalTx, GrantId, Header, LaneId, LaneImage, LaneKey, LeaseGrant, Nonce, Token,
    Tx, TxId,
};
use engine::ports::{LaneRecord, LaneWork, UnwatchedLane, UnwatchedLanes};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::Result;
use super::headers::{WALKS_MIN, Walks, Wanted};
use super::lease::{LaneColumns, RequesterParams, lease_of};
use super::pool::{Db, Param, Pool};
use super::rows::{
    attempts_columns, attempts_join, attempts_of, lane_key, lane_wait, number, optional,
    tx_from_row,
};
use crate::encoding::{
    block_from_bytes, bound, from_stored, head_from_bytes, inclusion_from_bytes,
    open_cost_from_bytes, tx_columns,
};

/// How many waiting txs one load returns at most.
const LOAD_MAX: usize = 10_000;

/// How many rows of a lane one statement reads to find which nonces are held. A statement must end well before the
/// role's `statement_timeout`, which is a share of the lease, however many txs a lane has.
const NONCES_PAGE: i64 = 10_000;
/// How many nonces of txs in flight one statement reads with their attempts.
const IN_FLIGHT_PAGE: u64 = 1_000;

/// How many final txs of a loaded lane are watched for reorgs at most.
const FINALS_MAX: usize = 100_000;
/// How many rows are examined for them: they may stand far apart, between txs that are open or have no receipt.
const FINALS_EXAMINED_MAX: usize = 400_000;
/// How many rows one statement examines for them.
const FINALS_PAGE: i64 = 2_000;
/// How many rows of transactions that no tx recorded one statement reads.
const UNRECORDED_PAGE: i64 = 1_000;

/// The lane row and values that are read with it.
struct Cursor {
    next_nonce: Nonce,
    floor_nonce: Nonce,
    event_seq: u64,
    batch_seq: u64,
    token: Token,
    grant: GrantId,
    paused: bool,
    open_cost: OpenCost,
    head: Option<HeadWait>,
    /// One above the highest nonce below the floor that any tx has.
    consumed_below_floor: Nonce,
    queued: u64,
    has_unrecorded: bool,
}

/// Reads a lane with several statements, each of a bounded number of rows while the lease is renewed, and only if it was
/// not written in between: every write of it changes the lane row.
pub(super) async fn load(
    db: &Db,
    key: LaneKey,
    lease_grant: LeaseGrant,
    watch_depth: u64,
) -> Result<Option<LaneImage>> {
    let Some(before) = cursor(db, lease_grant).await? else {
        return Ok(None);
    };
    let nonces = match before.floor_nonce < before.next_nonce {
        true => nonces(db, lease_grant.lane, &before).await?,
        false => EndpointNonces {
            consumed_below: before.consumed_below_floor,
            ..EndpointNonces::default()
        },
    };
    let in_flight = in_flight(db, lease_grant.lane, &nonces.signed).await?;
    let finals = finals(db, lease_grant.lane, nonces.consumed_below, watch_depth).await?;
    let reported = reported_headers(db, key, &in_flight).await?;
    let unrecorded = match before.has_unrecorded {
        true => unrecorded(db, lease_grant.lane).await?,
        false => Vec::new(),
    };
    let Some(after) = cursor(db, lease_grant).await? else {
        return Ok(None);
    };
    if (after.batch_seq, after.event_seq) != (before.batch_seq, before.event_seq) {
        return Ok(None);
    }
    Ok(Some(LaneImage {
        key,
        lease_grant,
        next_nonce: after.next_nonce,
        event_seq: after.event_seq,
        batch_seq: after.batch_seq,
        paused: after.paused,
        in_flight,
        backlog_from: nonces.backlog_from,
        held: nonces.held,
        consumed_below: nonces.consumed_below,
        open: OpenSummary {
            queued: after.queued,
            cost: after.open_cost,
            head: after.head,
            reported,
        },
        mined: MinedRows { finals, unrecorded },
    }))
}

/// Parameters: lane.
pub const CURSOR: &str = "SELECT c.next_nonce, c.floor_nonce, c.event_seq, c.batch_seq, \
       c.fencing_token, c.grant_id, c.paused, \
       (SELECT max(tx.nonce) + 1 FROM managed_tx AS tx \
        WHERE tx.lane_id = c.lane_id AND tx.nonce < c.floor_nonce), \
       (SELECT count(*) FROM queued_tx AS queued WHERE queued.lane_id = c.lane_id), c.open_cost, c.head_wait, \
       EXISTS (SELECT 1 FROM managed_tx AS own WHERE own.lane_id = c.lane_id \
         AND own.request_id >= 'lanekeeper-unrecorded-' AND own.request_id < 'lanekeeper-unrecorded.') \
     FROM signer_nonce_cursor AS c WHERE c.lane_id = $1";

/// The lane row, while this grant is valid.
async fn cursor(db: &Db, lease_grant: LeaseGrant) -> Result<Option<Cursor>> {
    let rows = db
        .engine
        .query(CURSOR, &[(&lease_grant.lane.0, Type::INT8)])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let below = optional(row, 7, |nonce| from_stored(nonce, "nonce"))?;
    let cursor = Cursor {
        next_nonce: Nonce(number(row, 0, "nonce")?),
        floor_nonce: Nonce(number(row, 1, "nonce")?),
        event_seq: number(row, 2, "event number")?,
        batch_seq: number(row, 3, "count of batches")?,
        token: Token(number(row, 4, "token")?),
        grant: GrantId(row.try_get(5)?),
        paused: row.try_get(6)?,
        open_cost: open_cost_from_bytes(row.try_get(9)?)?,
        head: head_from_bytes(row.try_get(10)?)?,
        consumed_below_floor: Nonce(below.unwrap_or(0)),
        queued: number(row, 8, "count")?,
        has_unrecorded: row.try_get(11)?,
    };
    let holds = (cursor.token, cursor.grant) == (lease_grant.token, lease_grant.grant);
    Ok(holds.then_some(cursor))
}

/// The rows of transactions that no tx recorded, page by page. Parameters: lane, the request id before the page, how many.
pub(super) const UNRECORDED: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx WHERE tx.lane_id = $1 AND tx.request_id > $2 \
       AND tx.request_id < 'lanekeeper-unrecorded.' ORDER BY tx.request_id LIMIT $3"
);

/// At most one more than a lane may have.
async fn unrecorded(db: &Db, lane: LaneId) -> Result<Vec<Tx>> {
    let mut found: Vec<Tx> = Vec::new();
    let mut after = UNRECORDED_PREFIX.to_owned();
    while found.len() <= UNRECORDED_MAX {
        let params = [
            (&lane.0 as _, Type::INT8),
            (&after as _, Type::TEXT),
            (&UNRECORDED_PAGE as _, Type::INT8),
        ];
        let page = txs(db.engine.query(UNRECORDED, &params).await?)?;
        let Some(last) = page.last() else {
            break;
        };
        after = last.request.request_id.as_str().to_owned();
        found.extend(page);
    }
    found.truncate(UNRECORDED_MAX.saturating_add(1));
    Ok(found)
}

/// From a nonce on, runs of neighbouring nonces of one kind: final, waiting for a signature, in flight. Parameters: lane,
/// nonce, how many rows to read.
pub const NONCES: &str = "SELECT kind, min(nonce), max(nonce) + 1 FROM ( \
       SELECT nonce, kind, nonce - row_number() OVER (PARTITION BY kind ORDER BY nonce) AS run FROM ( \
         SELECT tx.nonce, \
           CASE WHEN NOT lanekeeper_is_open(tx.state) THEN 0 WHEN tx.signed THEN 2 ELSE 1 END AS kind \
         FROM managed_tx AS tx WHERE tx.lane_id = $1 AND tx.nonce >= $2 ORDER BY tx.nonce LIMIT $3 \
       ) AS one \
     ) AS numbered GROUP BY kind, run ORDER BY 2";
const FINISHED: i32 = 0;
const UNSIGNED: i32 = 1;

/// The nonces of a lane by kind.
#[derive(Default)]
struct EndpointNonces {
    held: Vec<Range<u64>>,
    backlog_from: Option<Nonce>,
    consumed_below: Nonce,
    /// Of txs in flight.
    signed: Vec<Range<u64>>,
}

impl EndpointNonces {
    fn add_run(&mut self, kind: i32, run: Range<u64>) {
        if kind == FINISHED {
            self.consumed_below = self.consumed_below.max(Nonce(run.end));
            return;
        }
        if kind == UNSIGNED {
            self.backlog_from.get_or_insert(Nonce(run.start));
        } else {
            push_run(&mut self.signed, run.clone());
        }
        push_run(&mut self.held, run);
    }
}

/// Adds a run above all others.
fn push_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        Some(_) | None => runs.push(run),
    }
}

async fn nonces(db: &Db, lane: LaneId, cursor: &Cursor) -> Result<EndpointNonces> {
    let mut nonces = EndpointNonces {
        consumed_below: cursor.consumed_below_floor,
        ..EndpointNonces::default()
    };
    let mut from = cursor.floor_nonce.0;
    loop {
        let stored_from = bound(from);
        let params = [
            (&lane.0 as _, Type::INT8),
            (&stored_from as _, Type::INT8),
            (&NONCES_PAGE as _, Type::INT8),
        ];
        let mut rows_read = 0;
        for row in db.engine.query(NONCES, &params).await? {
            let run = number(&row, 1, "nonce")?..number(&row, 2, "nonce")?;
            // Every row that was read is in one of the runs.
            rows_read += run.end.saturating_sub(run.start);
            from = from.max(run.end);
            nonces.add_run(row.try_get(0)?, run);
        }
        if rows_read < NONCES_PAGE.unsigned_abs() {
            return Ok(nonces);
        }
    }
}

/// Txs in flight, with the attempts at their present nonces. (Attempts at a nonce that a tx lost are
/// history: another transaction has consumed it.) Parameters: lane, first nonce, and the one after the last.
pub const IN_FLIGHT: &str = concat!(
    "SELECT ",
    tx_columns!(),
    ", ",
    attempts_columns!(),
    " FROM managed_tx AS tx ",
    attempts_join!(of the present nonce),
    " WHERE tx.lane_id = $1 AND tx.nonce >= $2 AND tx.nonce < $3 AND tx.signed \
        AND lanekeeper_is_open(tx.state) ORDER BY tx.nonce"
);

/// Reads the txs with these nonces, page by page. A page is a span of nonces, so it never has more rows than nonces.
async fn in_flight(
    db: &Db,
    lane: LaneId,
    signed: &[Range<u64>],
) -> Result<Vec<(Tx, Vec<Attempt>)>> {
    let mut in_flight = Vec::new();
    let mut read_below = 0;
    for run in signed {
        // The span of the page before may reach into this run, or beyond it.
        read_below = run.start.max(read_below);
        while read_below < run.end {
            let from = bound(read_below);
            read_below = read_below.saturating_add(IN_FLIGHT_PAGE);
            let below = bound(read_below);
            let params = [
                (&lane.0 as _, Type::INT8),
                (&from as _, Type::INT8),
                (&below as _, Type::INT8),
            ];
            for row in db.engine.query(IN_FLIGHT, &params).await? {
                in_flight.push((tx_from_row(&row)?, attempts_of(&row)?));
            }
        }
    }
    Ok(in_flight)
}

/// The headers from the blocks of txs up to those that were reported as their confirmations. Most txs count the same
/// newest header, so there are few walks.
async fn reported_headers(
    db: &Db,
    key: LaneKey,
    in_flight: &[(Tx, Vec<Attempt>)],
) -> Result<Vec<Header>> {
    let mut lowest: BTreeMap<B256, (u64, B256)> = BTreeMap::new();
    for (tx, _) in in_flight {
        let Some((mined, counted)) = tx.inclusion.as_ref().zip(tx.counted) else {
            continue;
        };
        if counted != mined.block_hash {
            let block = (mined.block_number, mined.block_hash);
            let known = lowest.entry(counted).or_insert(block);
            *known = block.min(*known);
        }
    }
    let walk = |(counted, (_, block)): (B256, (u64, B256))| Wanted {
        chain_id: key.chain_id,
        block,
        counted,
    };
    let wanted: Vec<Wanted> = lowest.into_iter().map(walk).take(WALKS_MIN).collect();
    let walks = Walks::read(&db.engine, &wanted).await?;
    let headers = wanted.into_iter().flat_map(|wanted| walks.walk(wanted));
    let by_hash: BTreeMap<B256, Header> = headers.map(|header| (header.hash, header)).collect();
    Ok(by_hash.into_values().collect())
}

// Keepers read from the lowest open nonce, so the index leads there. (Compared with the lane
// row's floor instead of a number, the planner reads the whole table.)
pub(super) const BACKLOG: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM managed_tx AS tx WHERE tx.lane_id = $1 AND tx.nonce >= $2 AND NOT tx.signed \
       AND lanekeeper_is_open(tx.state) ORDER BY tx.nonce LIMIT $3"
);

pub(super) async fn load_backlog(
    db: &Db,
    lane: LaneId,
    from: Nonce,
    limit: usize,
) -> Result<Vec<Tx>> {
    let (from, limit) = (bound(from.0), bound(limit.min(LOAD_MAX) as u64));
    let params = [
        (&lane.0 as _, Type::INT8),
        (&from as _, Type::INT8),
        (&limit as _, Type::INT8),
    ];
    txs(db.engine.query(BACKLOG, &params).await?)
}

// Tx ids are time-ordered, so the key of the queue rows is the order of waiting.
pub(super) const QUEUED: &str = concat!(
    "SELECT ",
    tx_columns!(),
    " FROM queued_tx AS queued JOIN managed_tx AS tx ON tx.tx_id = queued.tx_id \
     WHERE queued.lane_id = $1 ORDER BY queued.tx_id LIMIT $2"
);

pub(super) async fn load_queued(db: &Db, lane: LaneId, limit: usize) -> Result<Vec<Tx>> {
    let limit = bound(limit.min(LOAD_MAX) as u64);
    let params = [(&lane.0 as _, Type::INT8), (&limit as _, Type::INT8)];
    txs(db.engine.query(QUEUED, &params).await?)
}

fn txs(rows: Vec<Row>) -> Result<Vec<Tx>> {
    rows.iter().map(tx_from_row).collect()
}

// A row without an inclusion is none of a final tx.
pub(super) const FINALS: &str = "SELECT tx.nonce, tx.tx_id, \
       CASE WHEN NOT lanekeeper_is_open(tx.state) THEN tx.inclusion END FROM managed_tx AS tx \
     WHERE tx.lane_id = $1 AND tx.nonce < $2 ORDER BY tx.nonce DESC LIMIT $3";

/// Final txs that a reorg may still revert: from the newest downwards, which is by nonce too.
async fn finals(db: &Db, lane: LaneId, below: Nonce, watch_depth: u64) -> Result<Vec<FinalTx>> {
    let mut finals: Vec<FinalTx> = Vec::new();
    let mut below = bound(below.0);
    let mut examined = 0;
    while below > 0 && finals.len() < FINALS_MAX && examined < FINALS_EXAMINED_MAX {
        let params = [
            (&lane.0 as _, Type::INT8),
            (&below as _, Type::INT8),
            (&FINALS_PAGE as _, Type::INT8),
        ];
        let rows = db.engine.query(FINALS, &params).await?;
        examined += rows.len();
        // A short page is the last one.
        below = match rows.last() {
            Some(last) if rows.len() as u64 == FINALS_PAGE.unsigned_abs() => last.try_get(0)?,
            Some(_) | None => 0,
        };
        for row in rows {
            let Some(mined) = row.try_get::<_, Option<&[u8]>>(2)? else {
                continue;
            };
            let mined = inclusion_from_bytes(mined)?;
            let newest = finals
                .first()
                .map_or(mined.block_number, |tx| tx.block_number);
            if mined.block_number.saturating_add(watch_depth) < newest {
                below = 0;
                break;
            }
            finals.push(FinalTx {
                id: TxId(row.try_get(1)?),
                nonce: Nonce(from_stored(row.try_get(0)?, "nonce")?),
                block_number: mined.block_number,
                block_hash: mined.block_hash,
            });
        }
    }
    finals.reverse();
    Ok(finals)
}

/// Lanes with open txs that hold nonces (a small partial index), and lanes with waiting txs (one step
/// of the key per lane, however many wait). Parameters: requester, skew, alive, silent.
pub const WITH_WORK: &str = "\
WITH RECURSIVE waiting AS ( \
  (SELECT queued.lane_id FROM queued_tx AS queued ORDER BY queued.lane_id LIMIT 1) \
  UNION ALL \
  SELECT (SELECT queued.lane_id FROM queued_tx AS queued WHERE queued.lane_id > waiting.lane_id \
          ORDER BY queued.lane_id LIMIT 1) \
  FROM waiting WHERE waiting.lane_id IS NOT NULL \
), work AS ( \
  SELECT c.lane_id, false AS has_queued FROM signer_nonce_cursor AS c WHERE c.busy \
  UNION ALL \
  SELECT waiting.lane_id, true FROM waiting WHERE waiting.lane_id IS NOT NULL \
), lanes AS ( \
  SELECT work.lane_id, bool_or(work.has_queued) AS has_queued FROM work GROUP BY work.lane_id \
) \
SELECT lane.chain_id, lane.signer, lanes.has_queued \
FROM lanes JOIN lane ON lane.lane_id = lanes.lane_id \
JOIN signer_lease AS l ON l.lane_id = lanes.lane_id \
WHERE l.halted IS NULL AND NOT lanekeeper_is_held(l.owner, l.incarnation, l.expires_at, $1, $2, $3, $4) \
ORDER BY lane.chain_id, lane.signer";

pub(super) async fn lanes_with_work(
    db: &Db,
    lease_request: &LeaseRequest,
) -> Result<Vec<LaneWork>> {
    let requester = RequesterParams::of(lease_request)?;
    let rows = db
        .engine
        .query(WITH_WORK, &requester.holder_params())
        .await?;
    let work = rows.iter().map(|row| {
        Ok(LaneWork {
            lane: lane_key(row, 0)?,
            has_queued: row.try_get(2)?,
        })
    });
    let mut work = work.collect::<Result<Vec<LaneWork>>>()?;
    // By the key and not by its stored form: the two differ for huge chain ids.
    work.sort_unstable_by_key(|work| work.lane);
    Ok(work)
}

/// Lanes with final results to watch behind a lane, and whether each has no other live keeper. Parameters: requester, skew,
/// alive, silent, lane, how many.
pub(super) const UNWATCHED: &str = "\
SELECT page.lane_id, lane.chain_id, lane.signer, page.newest_final, \
  l.halted IS NULL AND NOT lanekeeper_is_held(l.owner, l.incarnation, l.expires_at, $1, $2, $3, $4) \
FROM ( \
  SELECT c.lane_id, c.newest_final FROM signer_nonce_cursor AS c \
  WHERE c.has_finals AND c.lane_id > $5 ORDER BY c.lane_id LIMIT $6 \
) AS page \
CROSS JOIN LATERAL ( \
  SELECT lane.chain_id, lane.signer FROM lane WHERE lane.lane_id = page.lane_id LIMIT 1 \
) AS lane \
CROSS JOIN LATERAL ( \
  SELECT lease.* FROM signer_lease AS lease WHERE lease.lane_id = page.lane_id LIMIT 1 \
) AS l \
ORDER BY page.lane_id";

pub(super) async fn unwatched_lanes(
    db: &Db,
    lease_request: &LeaseRequest,
    after: Option<LaneId>,
    limit: usize,
) -> Result<UnwatchedLanes> {
    let requester = RequesterParams::of(lease_request)?;
    let (after, most) = (after.map_or(0, |lane| lane.0), bound(limit as u64));
    let page: [Param<'_>; 2] = [(&after, Type::INT8), (&most, Type::INT8)];
    let params: Vec<Param<'_>> = requester.holder_params().into_iter().chain(page).collect();
    let rows = db.engine.query(UNWATCHED, &params).await?;
    let mut unwatched = UnwatchedLanes::default();
    if rows.len() >= limit {
        let last = rows.last().map(|row| row.try_get(0)).transpose()?;
        unwatched.next = last.map(LaneId);
    }
    for row in rows {
        let newest = block_from_bytes(row.try_get(3)?)?;
        let is_free: bool = row.try_get(4)?;
        if let Some(newest) = newest.filter(|_| is_free) {
            let lane = lane_key(&row, 1)?;
            unwatched.lanes.push(UnwatchedLane { lane, newest });
        }
    }
    Ok(unwatched)
}

pub(super) const LANES: &str = "\
SELECT lane.chain_id, lane.signer, l.owner, l.incarnation, l.token, l.expires_at, c.next_nonce, c.paused, \
  (SELECT count(*) FROM managed_tx AS tx \
   WHERE tx.lane_id = c.lane_id AND tx.nonce >= c.floor_nonce AND lanekeeper_is_open(tx.state)), \
  (SELECT count(*) FROM queued_tx AS queued WHERE queued.lane_id = c.lane_id), l.halted, c.head_wait, c.batch_seq \
FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS k(chain_id, signer, n) \
JOIN lane ON lane.chain_id = k.chain_id AND lane.signer = k.signer \
JOIN signer_lease AS l ON l.lane_id = lane.lane_id \
JOIN signer_nonce_cursor AS c ON c.lane_id = lane.lane_id \
ORDER BY k.n";

pub(super) async fn lanes(pool: &Pool, keys: &[LaneKey]) -> Result<Vec<LaneRecord>> {
    let keys = LaneColumns::of(keys.iter().copied());
    let rows = pool.query(LANES, &keys.params()).await?;
    let records = rows.iter().map(|row| {
        Ok(LaneRecord {
            key: lane_key(row, 0)?,
            lease: lease_of(row, 2)?,
            next_nonce: Nonce(number(row, 6, "nonce")?),
            batch_seq: number(row, 12, "number of batches")?,
            paused: row.try_get(7)?,
            halted: row.try_get(10)?,
            wait: lane_wait(row, 11)?,
            in_flight: number(row, 8, "count")?,
            queued: number(row, 9, "count")?,
        })
    });
    records.collect()
}

#[cfg(test)]
mod tests {
    use domain::TxState;

    use crate::encoding::state_number;

    /// The SQL function `lanekeeper_is_open` names the final states by their numbers.
    #[test]
    fn final_states_have_the_numbers_of_the_sql_function() {
        let finished = TxState::ALL.into_iter().filter(|state| state.is_terminal());
        let finished: Vec<u8> = finished.map(state_number).collect();
        assert_eq!(finished, [3, 4]);
    }
}
