//! Reading the chain on one snapshot.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, Log, U256};
use alloy_rlp::Decodable;
use revm::state::Bytecode;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::{codec, from_sql, to_sql};
use crate::error::StoreError;
use crate::limits::TX_INDEX_BITS;
use crate::state::{Account, StateDiff, StateSource};

/// What one connection sees now; inside a transaction, what it saw at its first read.
#[derive(Clone, Copy)]
pub(crate) struct View<'c> {
    connection: &'c Connection,
}

pub(crate) struct BlockRow {
    pub(crate) id: u64,
    pub(crate) hash: B256,
    pub(crate) header: Header,
    pub(crate) size: u64,
    pub(crate) canonical: bool,
}

/// A mined tx with what its receipt needs.
pub(crate) struct TxRow {
    pub(crate) index: u64,
    pub(crate) hash: B256,
    pub(crate) sender: Address,
    pub(crate) raw: Vec<u8>,
    pub(crate) success: bool,
    pub(crate) gas_used: u64,
    pub(crate) cumulative_gas: u64,
    pub(crate) first_log: u64,
    pub(crate) logs: Vec<Log>,
}

const BLOCK_COLUMNS: &str = "SELECT id, hash, header, size, canonical FROM block";
const TX_COLUMNS: &str =
    "SELECT id, hash, sender, raw, success, gas_used, cumulative_gas, first_log, logs FROM tx";

impl<'c> View<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn head(self) -> Result<BlockRow, StoreError> {
        let newest = "WHERE canonical = 1 ORDER BY number DESC LIMIT 1";
        self.block(newest, [])?
            .ok_or(StoreError::damaged("no genesis block"))
    }

    pub(crate) fn block_by_number(self, number: u64) -> Result<Option<BlockRow>, StoreError> {
        // The number is the caller's, and may be any.
        let Ok(number) = i64::try_from(number) else {
            return Ok(None);
        };
        self.block("WHERE canonical = 1 AND number = ?1", [number])
    }

    /// Also finds blocks that a reorg has replaced.
    pub(crate) fn block_by_hash(self, hash: B256) -> Result<Option<BlockRow>, StoreError> {
        self.block("WHERE hash = ?1", [hash.as_slice()])
    }

    pub(crate) fn block_hash(self, number: u64) -> Result<B256, StoreError> {
        Ok(self
            .block_by_number(number)?
            .map(|block| block.hash)
            .unwrap_or_default())
    }

    /// Canonical blocks from `first` to `last` that contain logs.
    pub(crate) fn blocks_with_logs(
        self,
        first: u64,
        last: u64,
    ) -> Result<Vec<BlockRow>, StoreError> {
        let filter = "WHERE canonical = 1 AND number BETWEEN ?1 AND ?2 AND log_count > 0
                      ORDER BY number";
        self.rows(
            &format!("{BLOCK_COLUMNS} {filter}"),
            [to_sql(first), to_sql(last)],
            block_row,
        )
    }

    /// Blocks made after the one with this id, oldest first; those of a reorg included.
    pub(crate) fn blocks_made_after(
        self,
        id: u64,
        limit: u64,
    ) -> Result<Vec<BlockRow>, StoreError> {
        let filter = "WHERE canonical = 1 AND id > ?1 ORDER BY id LIMIT ?2";
        self.rows(
            &format!("{BLOCK_COLUMNS} {filter}"),
            [to_sql(id), to_sql(limit)],
            block_row,
        )
    }

    pub(crate) fn last_block_id(self) -> Result<u64, StoreError> {
        let id = self.row("SELECT max(id) FROM block", [], |row| {
            row.get(0).map_err(Into::into)
        })?;
        from_sql(id.ok_or(StoreError::damaged("no genesis block"))?)
    }

    pub(crate) fn txs(self, block: &BlockRow) -> Result<Vec<TxRow>, StoreError> {
        let filter = "WHERE id BETWEEN ?1 AND ?2 ORDER BY id";
        self.rows(
            &format!("{TX_COLUMNS} {filter}"),
            id_range(block.id),
            tx_row,
        )
    }

    pub(crate) fn txs_with_logs(self, block: &BlockRow) -> Result<Vec<TxRow>, StoreError> {
        let filter = "WHERE id BETWEEN ?1 AND ?2 AND logs IS NOT NULL ORDER BY id";
        self.rows(
            &format!("{TX_COLUMNS} {filter}"),
            id_range(block.id),
            tx_row,
        )
    }

    pub(crate) fn tx_hashes(self, block: &BlockRow) -> Result<Vec<B256>, StoreError> {
        let query = "SELECT hash FROM tx WHERE id BETWEEN ?1 AND ?2 ORDER BY id";
        self.rows(query, id_range(block.id), |row| {
            fixed(row, 0).map(B256::from)
        })
    }

    /// A tx of the canonical chain and its block.
    pub(crate) fn tx_by_hash(self, hash: B256) -> Result<Option<(BlockRow, TxRow)>, StoreError> {
        let query = format!("{TX_COLUMNS} WHERE hash = ?1");
        let found = self.rows(&query, [hash.as_slice()], |row| {
            Ok((from_sql(row.get(0)?)? >> TX_INDEX_BITS, tx_row(row)?))
        })?;
        for (block_id, tx) in found {
            let block = self.block("WHERE id = ?1", [to_sql(block_id)])?;
            if let Some(block) = block.filter(|block| block.canonical) {
                return Ok(Some((block, tx)));
            }
        }
        Ok(None)
    }

    pub(crate) fn account(self, address: Address) -> Result<Option<Account>, StoreError> {
        let query = "SELECT data FROM account WHERE address = ?1";
        self.row(query, [address.as_slice()], |row| {
            codec::get_account(bytes(row, 0)?)
        })
    }

    pub(crate) fn slot(self, address: Address, key: U256) -> Result<U256, StoreError> {
        let query = "SELECT value FROM slot WHERE address = ?1 AND key = ?2";
        let key = key.to_be_bytes::<32>();
        let value = self.row(query, (address.as_slice(), &key), |row| {
            fixed(row, 0).map(U256::from_be_bytes::<32>)
        })?;
        Ok(value.unwrap_or_default())
    }

    pub(crate) fn code(self, hash: B256) -> Result<Bytecode, StoreError> {
        let query = "SELECT code FROM code WHERE hash = ?1";
        let code = self.row(query, [hash.as_slice()], |row| {
            Ok(Bytecode::new_raw(Bytes::copy_from_slice(bytes(row, 0)?)))
        })?;
        Ok(code.unwrap_or_default())
    }

    /// `None` for a block that is too deep to be removed.
    pub(crate) fn undo(self, number: u64) -> Result<Option<StateDiff>, StoreError> {
        let query = "SELECT data FROM undo WHERE number = ?1";
        self.row(query, [to_sql(number)], |row| {
            codec::get_undo(bytes(row, 0)?)
        })
    }

    fn block(self, filter: &str, params: impl Params) -> Result<Option<BlockRow>, StoreError> {
        self.row(&format!("{BLOCK_COLUMNS} {filter}"), params, block_row)
    }

    fn row<T>(
        self,
        query: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(query)?;
        let row = statement
            .query_row(params, |row| Ok(read(row)))
            .optional()?;
        row.transpose()
    }

    fn rows<T>(
        self,
        query: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(query)?;
        let mut rows = statement.query(params)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(read(row)?);
        }
        Ok(found)
    }
}

impl StateSource for View<'_> {
    fn account(&mut self, address: Address) -> Result<Option<Account>, StoreError> {
        View::account(*self, address)
    }

    fn slot(&mut self, address: Address, key: U256) -> Result<U256, StoreError> {
        View::slot(*self, address, key)
    }

    fn code(&mut self, hash: B256) -> Result<Bytecode, StoreError> {
        View::code(*self, hash)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, StoreError> {
        View::block_hash(*self, number)
    }
}

/// First and last possible tx id of a block.
fn id_range(block_id: u64) -> [i64; 2] {
    [
        to_sql(block_id << TX_INDEX_BITS),
        to_sql(((block_id + 1) << TX_INDEX_BITS) - 1),
    ]
}

fn block_row(row: &Row<'_>) -> Result<BlockRow, StoreError> {
    let header = Header::decode(&mut bytes(row, 2)?);
    Ok(BlockRow {
        id: number(row, 0)?,
        hash: B256::from(fixed(row, 1)?),
        header: header.ok().ok_or(StoreError::damaged("block header"))?,
        size: number(row, 3)?,
        canonical: column(row, 4)?,
    })
}

fn tx_row(row: &Row<'_>) -> Result<TxRow, StoreError> {
    let logs = match column::<Option<Vec<u8>>>(row, 8)? {
        None => Vec::new(),
        Some(logs) => {
            let logs = Vec::<Log>::decode(&mut logs.as_slice());
            logs.ok().ok_or(StoreError::damaged("logs"))?
        }
    };
    Ok(TxRow {
        index: number(row, 0)? & ((1 << TX_INDEX_BITS) - 1),
        hash: B256::from(fixed(row, 1)?),
        sender: Address::from(fixed(row, 2)?),
        raw: column(row, 3)?,
        success: column(row, 4)?,
        gas_used: number(row, 5)?,
        cumulative_gas: number(row, 6)?,
        first_log: number(row, 7)?,
        logs,
    })
}

fn column<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, StoreError> {
    Ok(row.get(index)?)
}

fn number(row: &Row<'_>, index: usize) -> Result<u64, StoreError> {
    from_sql(column(row, index)?)
}

fn bytes<'r>(row: &'r Row<'_>, index: usize) -> Result<&'r [u8], StoreError> {
    row.get_ref(index)?
        .as_blob()
        .ok()
        .ok_or(StoreError::damaged("not a blob"))
}

fn fixed<const N: usize>(row: &Row<'_>, index: usize) -> Result<[u8; N], StoreError> {
    bytes(row, index)?
        .try_into()
        .ok()
        .ok_or(StoreError::damaged("blob of another length"))
}
