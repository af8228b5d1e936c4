//! Lists of txs that go lane by lane: those of one signer, and those in an open state. They walk the keys of their lanes
//! instead of all txs.

use domain::{LaneKey, Nonce, TxId};
use engine::ports::{LanePlace, TxCursor, TxFilter, TxPage, TxRecord};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::pool::Pool;
use super::rows::{attempts_columns, attempts_join, lane_key, optional};
use super::txs::{
    EXAMINED_MAX, PAGE_BYTES_MAX, PAGE_MAX, add_confirmations, record, record_columns,
};
use crate::encoding::{Malformed, bits, bound, from_stored, state_number, tx_columns};

/// How many lanes the first statements of a page walk, each. One lane is enough for most pages; a state that few txs of
/// many lanes have needs more.
const LANES_AT_ONCE: [usize; 8] = [1, 8, 64, 64, 64, 64, 64, 64];

/// The lanes of a signer on all chains, from a lane on. The chains are found by steps of the key, one per chain.
/// $1 first lane, $2 signer, $3 how many.
pub(super) const LANES_OF_SIGNER: &str = "\
WITH RECURSIVE chain AS ( \
  (SELECT lane.chain_id FROM lane ORDER BY lane.chain_id LIMIT 1) \
  UNION ALL \
  SELECT (SELECT lane.chain_id FROM lane WHERE lane.chain_id > chain.chain_id ORDER BY lane.chain_id LIMIT 1) \
  FROM chain WHERE chain.chain_id IS NOT NULL \
) \
SELECT listed.chain_id, listed.signer, listed.lane_id, cursor.floor_nonce \
FROM chain CROSS JOIN LATERAL ( \
  SELECT lane.* FROM lane WHERE lane.chain_id = chain.chain_id AND lane.signer = $2 LIMIT 1 \
) AS listed \
LEFT JOIN LATERAL ( \
  SELECT c.floor_nonce FROM signer_nonce_cursor AS c WHERE c.lane_id = listed.lane_id LIMIT 1 \
) AS cursor ON true \
WHERE listed.lane_id >= $1 ORDER BY listed.lane_id LIMIT $3";

/// The lanes that have open txs, from a lane on: those whose open txs hold nonces, and those with a tx without a nonce,
/// which are found by one step of the key per lane. $1 first lane, $2 how many.
pub(super) const LANES_WITH_OPEN: &str = "\
WITH RECURSIVE waiting AS ( \
  (SELECT tx.lane_id, 1 AS n FROM managed_tx AS tx WHERE tx.nonce IS NULL AND tx.lane_id >= $1 \
   ORDER BY tx.lane_id LIMIT 1) \
  UNION ALL \
  SELECT (SELECT tx.lane_id FROM managed_tx AS tx WHERE tx.nonce IS NULL AND tx.lane_id > waiting.lane_id \
          ORDER BY tx.lane_id LIMIT 1), waiting.n + 1 \
  FROM waiting WHERE waiting.lane_id IS NOT NULL AND waiting.n < $2 \
), busy AS ( \
  SELECT c.lane_id FROM signer_nonce_cursor AS c WHERE c.busy AND c.lane_id >= $1 ORDER BY c.lane_id LIMIT $2 \
), work AS ( \
  SELECT busy.lane_id FROM busy \
  UNION \
  SELECT waiting.lane_id FROM waiting WHERE waiting.lane_id IS NOT NULL \
  ORDER BY lane_id LIMIT $2 \
) \
SELECT listed.chain_id, listed.signer, work.lane_id, cursor.floor_nonce \
FROM work CROSS JOIN LATERAL ( \
  SELECT lane.* FROM lane WHERE lane.lane_id = work.lane_id LIMIT 1 \
) AS listed \
LEFT JOIN LATERAL ( \
  SELECT c.floor_nonce FROM signer_nonce_cursor AS c WHERE c.lane_id = work.lane_id LIMIT 1 \
) AS cursor ON true \
ORDER BY work.lane_id";

/// Txs of lanes in the order of the list: their places, and the last place of a lane of which as many rows were read as
/// may be. $1 lanes, $2 lowest nonces, $3 txs without a nonce below these ids, $4 nonces below these, $5 state, $6 rows of
/// a lane, $7 how many places.
pub(super) const PLACES: &str = "\
SELECT walk.n, place.tx_id, place.nonce, place.is_wanted, place.rank = $6 \
FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[]) \
  WITH ORDINALITY AS walk(lane_id, floor, tx_below, nonce_below, n) \
CROSS JOIN LATERAL ( \
  SELECT both_parts.*, row_number() OVER (ORDER BY part, nonce DESC, tx_id DESC) AS rank FROM ( \
    (SELECT 0 AS part, tx.tx_id, tx.nonce, $5::smallint IS NULL OR tx.state = $5 AS is_wanted \
     FROM managed_tx AS tx WHERE tx.lane_id = walk.lane_id AND tx.nonce IS NULL AND tx.tx_id < walk.tx_below \
     ORDER BY tx.tx_id DESC LIMIT $6) \
    UNION ALL \
    (SELECT 1 AS part, tx.tx_id, tx.nonce, $5::smallint IS NULL OR tx.state = $5 AS is_wanted \
     FROM managed_tx AS tx \
     WHERE tx.lane_id = walk.lane_id AND tx.nonce < walk.nonce_below AND tx.nonce >= walk.floor \
     ORDER BY tx.nonce DESC LIMIT $6) \
  ) AS both_parts \
  ORDER BY part, nonce DESC, tx_id DESC LIMIT $6 \
) AS place \
WHERE place.is_wanted OR place.rank = $6 \
ORDER BY walk.n, place.rank LIMIT $7";

/// These txs in this order, as far as their calldata and attempts fit. $1 txs, $2 bytes.
pub(super) const RECORDS: &str = concat!(
    "WITH page AS MATERIALIZED ( \
       SELECT wanted.n, wanted.tx_id, sum(tx.bytes) OVER (ORDER BY wanted.n) - tx.bytes AS bytes_before \
       FROM unnest($1::uuid[]) WITH ORDINALITY AS wanted(tx_id, n) \
       CROSS JOIN LATERAL ( \
         SELECT octet_length(tx.data) + coalesce(( \
             SELECT sum(octet_length(attempt.raw)) FROM tx_attempt AS attempt \
             WHERE attempt.lane_id = tx.lane_id AND attempt.tx_id = tx.tx_id \
               AND attempt.nonce = ANY (array_append(tx.past_nonces, tx.nonce)) \
           ), 0) AS bytes \
         FROM managed_tx AS tx WHERE tx.tx_id = wanted.tx_id LIMIT 1 \
       ) AS tx \
     ) \
     SELECT ",
    record_columns!(),
    " FROM page JOIN managed_tx AS tx ON tx.tx_id = page.tx_id \
       JOIN lane ON lane.lane_id = tx.lane_id",
    attempts_join!(all),
    "WHERE page.bytes_before < $2 ORDER BY page.n"
);

/// A lane of the list, and from where it is walked.
struct LaneWalk {
    key: LaneKey,
    lane_id: i64,
    floor: i64,
    after: Option<LanePlace>,
}

/// A page that is being collected.
struct Page {
    limit: usize,
    found: Vec<(TxId, TxCursor)>,
    /// Where the walk ended before the end of the list.
    edge: Option<TxCursor>,
}

/// One page: the places first, then their records.
pub(super) async fn txs(pool: &Pool, filter: &TxFilter) -> Result<TxPage> {
    let mut page = Page {
        limit: filter.limit.clamp(1, PAGE_MAX),
        found: Vec::new(),
        edge: None,
    };
    page.collect(pool, filter).await?;
    let mut txs = read_records(pool, &page.found).await?;
    let next = match txs.len().checked_sub(1) {
        // Its records are too long for one page.
        Some(last) if txs.len() < page.found.len() => Some(page.found[last].1),
        Some(_) | None => page.edge,
    };
    // A tx may have changed since its place was read.
    txs.retain(|record| filter.state.is_none_or(|state| record.tx.state == state));
    Ok(TxPage { txs, next })
}

impl Page {
    /// Walks lanes until the page is full, the list ends, or enough rows were read.
    async fn collect(&mut self, pool: &Pool, filter: &TxFilter) -> Result<()> {
        let mut start = Start::of(pool, filter).await?;
        for at_once in LANES_AT_ONCE {
            let mut lanes = read_lanes(pool, filter, start, at_once).await?;
            let is_last = lanes.len() < at_once;
            // Where the list continues if the page ends with these lanes.
            let behind = lanes.last().map(|last| {
                let next = last.lane_id.saturating_add(1);
                (TxCursor::InLane(last.key, LanePlace::END), next)
            });
            lanes.retain(|lane| filter.has_lane(lane.key));
            if self.add_places(pool, filter, &lanes).await? == Walked::InPart {
                return Ok(());
            }
            let Some((edge, next_lane)) = behind.filter(|_| !is_last) else {
                self.edge = None;
                return Ok(());
            };
            self.edge = Some(edge);
            if self.found.len() >= self.limit {
                return Ok(());
            }
            start = Start {
                lane_id: next_lane,
                after: None,
            };
        }
        Ok(())
    }

    async fn add_places(
        &mut self,
        pool: &Pool,
        filter: &TxFilter,
        lanes: &[LaneWalk],
    ) -> Result<Walked> {
        if lanes.is_empty() {
            return Ok(Walked::ToTheEnd);
        }
        let one_more = self.limit - self.found.len() + 1;
        let rows_of_lane = match filter.state {
            Some(_) => EXAMINED_MAX / lanes.len(),
            None => one_more,
        };
        let ids: Vec<i64> = lanes.iter().map(|lane| lane.lane_id).collect();
        let floors: Vec<i64> = lanes.iter().map(|lane| lane.floor).collect();
        let tx_below: Vec<Option<Uuid>> = lanes.iter().map(LaneWalk::tx_below).collect();
        let nonce_below: Vec<i64> = lanes.iter().map(LaneWalk::nonce_below).collect();
        let state = filter.state.map(|state| i16::from(state_number(state)));
        let rows = pool
            .query(
                PLACES,
                &[
                    (&ids, Type::INT8_ARRAY),
                    (&floors, Type::INT8_ARRAY),
                    (&tx_below, Type::UUID_ARRAY),
                    (&nonce_below, Type::INT8_ARRAY),
                    (&state, Type::INT2),
                    (&bound(rows_of_lane as u64), Type::INT8),
                    (&bound(one_more as u64), Type::INT8),
                ],
            )
            .await?;
        for row in rows {
            if self.found.len() == self.limit {
                self.edge = self.found.last().map(|(_, place)| *place);
                return Ok(Walked::InPart);
            }
            let lane = usize::try_from(row.try_get::<_, i64>(0)? - 1);
            let lane = lane.ok().and_then(|n| lanes.get(n));
            let lane = lane.ok_or(Malformed("place in a list"))?;
            let id = TxId(row.try_get(1)?);
            let nonce = optional(&row, 2, |nonce| from_stored(nonce, "nonce"))?.map(Nonce);
            let place = TxCursor::InLane(lane.key, LanePlace::of(id, nonce));
            if row.try_get(3)? {
                self.found.push((id, place));
            }
            if row.try_get(4)? {
                self.edge = Some(place);
                return Ok(Walked::InPart);
            }
        }
        Ok(Walked::ToTheEnd)
    }
}

/// How far some lanes were walked.
#[derive(PartialEq, Eq)]
enum Walked {
    ToTheEnd,
    InPart,
}

/// Where a page begins.
#[derive(Clone, Copy)]
struct Start {
    lane_id: i64,
    after: Option<LanePlace>,
}

pub(super) const FIND_LANE: &str =
    "SELECT lane.lane_id FROM lane WHERE lane.chain_id = $1 AND lane.signer = $2";

impl Start {
    async fn of(pool: &Pool, filter: &TxFilter) -> Result<Self> {
        let Some(cursor) = filter.after else {
            return Ok(Self {
                lane_id: 0,
                after: None,
            });
        };
        let foreign = || Fault::Invalid(format!("{cursor:?} is not a place in this list"));
        let TxCursor::InLane(lane, place) = cursor else {
            return Err(foreign());
        };
        let key = [
            (&bits(lane.chain_id.0) as _, Type::INT8),
            (&lane.signer.as_slice() as _, Type::BYTEA),
        ];
        let found = pool.query(FIND_LANE, &key).await?;
        let found = found.first().filter(|_| filter.has_place(cursor));
        Ok(Self {
            lane_id: found.ok_or_else(foreign)?.try_get(0)?,
            after: Some(place),
        })
    }
}

/// The next lanes of the list, and perhaps lanes of other chains between them.
async fn read_lanes(
    pool: &Pool,
    filter: &TxFilter,
    start: Start,
    at_once: usize,
) -> Result<Vec<LaneWalk>> {
    let limit = bound(at_once as u64);
    let rows = match &filter.signer {
        Some(signer) => {
            let params = [
                (&start.lane_id as _, Type::INT8),
                (&signer.as_slice() as _, Type::BYTEA),
                (&limit as _, Type::INT8),
            ];
            pool.query(LANES_OF_SIGNER, &params).await?
        }
        None => {
            let params = [(&start.lane_id as _, Type::INT8), (&limit as _, Type::INT8)];
            pool.query(LANES_WITH_OPEN, &params).await?
        }
    };
    let is_open = filter.state.is_some_and(|state| !state.is_terminal());
    let lanes = rows.iter().map(|row| {
        let lane_id: i64 = row.try_get(2)?;
        let floor: Option<i64> = row.try_get(3)?;
        Ok(LaneWalk {
            key: lane_key(row, 0)?,
            lane_id,
            // No open tx has a nonce below the floor.
            floor: floor.filter(|_| is_open).unwrap_or(0),
            // The lane of the cursor may have left the list: then the next one is walked from its start.
            after: start.after.filter(|_| lane_id == start.lane_id),
        })
    });
    lanes.collect()
}

impl LaneWalk {
    /// Txs without a nonce are listed below this id; `None`: they were listed already.
    fn tx_below(&self) -> Option<Uuid> {
        match self.after {
            None => Some(Uuid::max()),
            Some(LanePlace::WithoutNonce(id)) => Some(id.0),
            Some(LanePlace::WithNonce(_)) => None,
        }
    }

    fn nonce_below(&self) -> i64 {
        match self.after {
            None | Some(LanePlace::WithoutNonce(_)) => i64::MAX,
            Some(LanePlace::WithNonce(nonce)) => bound(nonce.0),
        }
    }
}

async fn read_records(pool: &Pool, found: &[(TxId, TxCursor)]) -> Result<Vec<TxRecord>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = found.iter().map(|(id, _)| id.0).collect();
    let params = [
        (&ids as _, Type::UUID_ARRAY),
        (&bound(PAGE_BYTES_MAX) as _, Type::INT8),
    ];
    let rows = pool.query(RECORDS, &params).await?;
    let mut records = rows.iter().map(record).collect::<Result<Vec<_>>>()?;
    add_confirmations(pool, &mut records).await?;
    Ok(records)
}
