//! Confirmations: the walk along parents from the newest counted header down to a tx's block.

use std::collections::BTreeMap;

use domain::lane::LaneWait;
use domain::{B256, ChainId, Header, LaneId, LaneKey};
use rusqlite::{Connection, params};

use super::fault::Result;
use super::lanes::lane_wait;
use super::rows::{bytes, find_row, lane_key};
use crate::encoding::{bits, from_bits, hash};

/// The longest walk. No configuration counts more confirmations than this.
const WALK_MAX: usize = 1_024;

/// Look-ups that the records of one answer share. Txs of one block share most of their headers, so each is read
/// once.
pub(super) struct Lookups<'conn> {
    conn: &'conn Connection,
    lanes: BTreeMap<LaneId, LaneKey>,
    waits: BTreeMap<LaneId, Option<LaneWait>>,
    headers: BTreeMap<(ChainId, B256), Option<Header>>,
}

impl<'conn> Lookups<'conn> {
    pub(super) fn new(conn: &'conn Connection) -> Self {
        Self {
            conn,
            lanes: BTreeMap::new(),
            waits: BTreeMap::new(),
            headers: BTreeMap::new(),
        }
    }

    pub(super) fn lane(&mut self, lane: LaneId) -> Result<LaneKey> {
        if let Some(key) = self.lanes.get(&lane) {
            return Ok(*key);
        }
        let key = lane_key(self.conn, lane)?;
        self.lanes.insert(lane, key);
        Ok(key)
    }

    /// Why a lane makes no progress.
    pub(super) fn lane_wait(&mut self, lane: LaneId) -> Result<Option<LaneWait>> {
        if let Some(wait) = self.waits.get(&lane) {
            return Ok(wait.clone());
        }
        let wait = lane_wait(self.conn, lane)?;
        self.waits.insert(lane, wait.clone());
        Ok(wait)
    }

    /// The headers from `block` up to `counted`, oldest first: all of them, or none when the way
    /// is longer than the bound or does not lead there. A list with a gap would be wrong.
    pub(super) fn walk(
        &mut self,
        chain_id: ChainId,
        block: B256,
        counted: B256,
    ) -> Result<Vec<Header>> {
        let mut walk = Vec::new();
        let mut next = counted;
        while walk.len() < WALK_MAX {
            let Some(header) = self.header(chain_id, next)? else {
                break;
            };
            walk.push(header);
            if header.hash == block {
                walk.reverse();
                return Ok(walk);
            }
            next = header.parent_hash;
        }
        tracing::warn!(%chain_id, %block, %counted, "no chain of headers from the counted header to the block");
        Ok(Vec::new())
    }

    fn header(&mut self, chain_id: ChainId, of: B256) -> Result<Option<Header>> {
        const SQL: &str = "SELECT parent_hash, number, timestamp FROM chain_header \
             WHERE chain_id = ?1 AND hash = ?2";
        if let Some(known) = self.headers.get(&(chain_id, of)) {
            return Ok(*known);
        }
        let key = params![bits(chain_id.0), of.as_slice()];
        let header = find_row(self.conn, SQL, key, |row| {
            Ok(Header {
                number: from_bits(row.get(1)?),
                hash: of,
                parent_hash: hash(bytes(row, 0)?)?,
                timestamp: from_bits(row.get(2)?),
            })
        })?;
        self.headers.insert((chain_id, of), header);
        Ok(header)
    }
}

/// Stores headers; known ones stay as they are.
pub(super) fn put_headers(conn: &Connection, chain_id: ChainId, headers: &[Header]) -> Result<()> {
    const SQL: &str = "INSERT INTO chain_header (chain_id, hash, parent_hash, number, timestamp) \
         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    let mut statement = conn.prepare_cached(SQL)?;
    for header in headers {
        statement.execute(params![
            bits(chain_id.0),
            header.hash.as_slice(),
            header.parent_hash.as_slice(),
            bits(header.number),
            bits(header.timestamp),
        ])?;
    }
    Ok(())
}
