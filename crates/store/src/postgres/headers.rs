//! Headers: storing them, and walking along parents from the newest counted one to a tx's block.

use std::collections::BTreeMap;

use domain::{B256, ChainId, Header};
use tokio_postgres::types::Type;

use super::fault::Result;
use super::pool::{Db, Pool};
use crate::encoding::{bits, bound, from_bits, hash};

/// The longest walk. No configuration counts more confirmations than this.
const WALK_MAX: usize = 1_024;
/// So many walks always fit into one answer, however long they are.
pub(super) const WALKS_MIN: usize = 64;
/// The most headers of one answer: some 7 MB. Pages that need more are cut.
const READ_MAX: usize = WALKS_MIN * WALK_MAX;
/// The most headers that one statement writes.
const WRITE_MAX: usize = 1_000;

/// Sorted, so that two nodes that write the same headers at once wait for each other in one order.
pub(super) const PUT: &str = "INSERT INTO chain_header \
       (chain_id, number, timestamp, hash, parent_hash) \
     SELECT $1, header.number, header.timestamp, header.hash, header.parent_hash \
     FROM unnest($2, $3, $4, $5) AS header (number, timestamp, hash, parent_hash) \
     ORDER BY header.hash \
     ON CONFLICT DO NOTHING";

/// How often a write is retried while another node stores the same headers. Each try waits for the
/// database's `lock_timeout`.
const PUT_TRIES_MAX: usize = 5;

/// Stores headers; known ones change nothing.
pub(super) async fn put_headers(db: &Db, chain_id: ChainId, headers: &[Header]) -> Result<()> {
    for chunk in headers.chunks(WRITE_MAX) {
        let numbers: Vec<i64> = chunk.iter().map(|header| bits(header.number)).collect();
        let timestamps: Vec<i64> = chunk.iter().map(|header| bits(header.timestamp)).collect();
        let hashes: Vec<&[u8]> = chunk.iter().map(|header| header.hash.as_slice()).collect();
        let parents = chunk.iter().map(|header| header.parent_hash.as_slice());
        let parents: Vec<&[u8]> = parents.collect();
        let chain = bits(chain_id.0);
        let params = [
            (&chain as _, Type::INT8),
            (&numbers as _, Type::INT8_ARRAY),
            (&timestamps as _, Type::INT8_ARRAY),
            (&hashes as _, Type::BYTEA_ARRAY),
            (&parents as _, Type::BYTEA_ARRAY),
        ];
        let mut tries = 0;
        // A node that stores the same header is waited for, however slow its disk is.
        while let Err(error) = db.writes.query(PUT, &params).await {
            tries += 1;
            if !error.is_lock_conflict() || tries >= PUT_TRIES_MAX {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// A walk that an answer needs: from the newest counted header down to the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) chain_id: ChainId,
    pub(super) block: B256,
    pub(super) counted: B256,
}

/// The walks of one answer, all read at once. Txs of near blocks share most of their headers: their
/// heights are joined into stretches, and along each stretch every header is read once.
#[derive(Debug, Default)]
pub(super) struct Walks {
    read: BTreeMap<(ChainId, B256), Header>,
    is_cut: bool,
}

// The sub-selects with a limit are look-ups by the key, whatever the planner estimates. Heights
// beyond a signed number are excluded: they would overflow the arithmetic.
pub(super) const WALKS: &str = "WITH RECURSIVE wanted AS MATERIALIZED ( \
       SELECT DISTINCT pair.chain_id, greatest(block.number, top.number - $4) AS floor, \
              top.number, top.timestamp, top.hash, top.parent_hash \
       FROM unnest($1, $2, $3) AS pair (chain_id, block, counted) \
       CROSS JOIN LATERAL ( \
         SELECT number FROM chain_header \
         WHERE chain_id = pair.chain_id AND hash = pair.block LIMIT 1 \
       ) AS block \
       CROSS JOIN LATERAL ( \
         SELECT number, timestamp, hash, parent_hash FROM chain_header \
         WHERE chain_id = pair.chain_id AND hash = pair.counted LIMIT 1 \
       ) AS top \
       WHERE block.number BETWEEN 0 AND top.number AND top.number < 9223372036854775807 \
     ), stretch AS MATERIALIZED ( \
       SELECT chain_id, unnest(range_agg(int8range(floor, number, '[]'))) AS heights \
       FROM wanted GROUP BY chain_id \
     ), walk AS ( \
       SELECT wanted.chain_id, lower(stretch.heights) AS floor, wanted.number, \
              wanted.timestamp, wanted.hash, wanted.parent_hash \
       FROM wanted JOIN stretch \
         ON stretch.chain_id = wanted.chain_id AND stretch.heights @> wanted.number \
       UNION \
       SELECT walk.chain_id, walk.floor, parent.number, parent.timestamp, parent.hash, \
              parent.parent_hash \
       FROM walk CROSS JOIN LATERAL ( \
         SELECT number, timestamp, hash, parent_hash FROM chain_header \
         WHERE chain_id = walk.chain_id AND hash = walk.parent_hash LIMIT 1 \
       ) AS parent \
       WHERE walk.number > walk.floor \
     ) \
     SELECT chain_id, number, timestamp, hash, parent_hash FROM walk LIMIT $5";

impl Walks {
    /// Reads the headers of these walks in one statement; in none when there are no walks.
    pub(super) async fn read(pool: &Pool, wanted: &[Wanted]) -> Result<Self> {
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let chains: Vec<i64> = wanted.iter().map(|walk| bits(walk.chain_id.0)).collect();
        let blocks: Vec<&[u8]> = wanted.iter().map(|walk| walk.block.as_slice()).collect();
        let counted: Vec<&[u8]> = wanted.iter().map(|walk| walk.counted.as_slice()).collect();
        let rows = pool
            .query(
                WALKS,
                &[
                    (&chains, Type::INT8_ARRAY),
                    (&blocks, Type::BYTEA_ARRAY),
                    (&counted, Type::BYTEA_ARRAY),
                    (&bound(WALK_MAX as u64 - 1), Type::INT8),
                    (&bound(READ_MAX as u64 + 1), Type::INT8),
                ],
            )
            .await?;
        let is_cut = rows.len() > READ_MAX;
        let mut read = BTreeMap::new();
        for row in rows {
            let header = Header {
                number: from_bits(row.try_get(1)?),
                hash: hash(row.try_get(3)?)?,
                parent_hash: hash(row.try_get(4)?)?,
                timestamp: from_bits(row.try_get(2)?),
            };
            read.insert((ChainId(from_bits(row.try_get(0)?)), header.hash), header);
        }
        Ok(Self { read, is_cut })
    }

    /// Whether there are more headers than one answer may contain: read again with fewer walks.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The headers from the block up to the counted one, oldest first: all of them, or none when
    /// the walk is longer than the bound or does not lead there. A list with a gap would be wrong.
    pub(super) fn walk(&self, wanted: Wanted) -> Vec<Header> {
        let Wanted {
            chain_id,
            block,
            counted,
        } = wanted;
        let mut walk = Vec::new();
        let mut next = counted;
        while walk.len() < WALK_MAX {
            let Some(header) = self.read.get(&(chain_id, next)) else {
                break;
            };
            walk.push(*header);
            if header.hash == block {
                walk.reverse();
                return walk;
            }
            next = header.parent_hash;
        }
        tracing::warn!(%chain_id, %block, %counted, "no chain of headers from the counted header to the block");
        Vec::new()
    }
}
