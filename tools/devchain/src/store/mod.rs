//! The chain on disk: one SQLite file in one folder, owned by one process.
//!
//! The miner's connection writes, every block in one transaction; requests read through their own
//! connections, each request on one snapshot. So a block is on disk before any answer shows it,
//! an answer never mixes two heads, and a process killed at any moment leaves the last committed
//! block. History stays in the tables and is never loaded.

mod codec;
mod folder;
mod read;
mod write;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

pub(super) use self::folder::Folder;
pub(super) use self::read::{BlockRow, TxRow, View};
pub(super) use self::write::{
    amend_head_undo, insert_block, insert_genesis, orphan_block, prune_undo, write_state,
};
use super::error::{DevChainError, StoreError};
use super::limits;

/// Incremented when the tables change; other formats are refused, a dev chain is not migrated.
const FORMAT: i64 = 1;

const SCHEMA: &str = "
-- Blocks are numbered by `id` in the order of their creation and never deleted. After a reorg the
-- replaced ones stay, with canonical = 0, so that they can still be queried by hash.
CREATE TABLE block (
    id        INTEGER PRIMARY KEY,
    number    INTEGER NOT NULL,
    hash      BLOB NOT NULL,
    canonical INTEGER NOT NULL,
    header    BLOB NOT NULL,          -- RLP
    size      INTEGER NOT NULL,
    log_count INTEGER NOT NULL
);
CREATE UNIQUE INDEX block_hash ON block (hash);
CREATE UNIQUE INDEX block_canonical ON block (number) WHERE canonical = 1;

-- A tx with its receipt. id = block id << 20 | index in the block: rows are appended in order and
-- a block is one range. The same hash can be in several blocks, at most one of them canonical.
CREATE TABLE tx (
    id             INTEGER PRIMARY KEY,
    hash           BLOB NOT NULL,
    sender         BLOB NOT NULL,
    raw            BLOB NOT NULL,     -- EIP-2718
    success        INTEGER NOT NULL,
    gas_used       INTEGER NOT NULL,
    cumulative_gas INTEGER NOT NULL,
    first_log      INTEGER NOT NULL,  -- index in the block of this tx's first log
    logs           BLOB               -- RLP list, NULL when there are none
);
CREATE INDEX tx_hash ON tx (hash);

-- The state after the head.
CREATE TABLE account (address BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE slot (
    address BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (address, key)
) WITHOUT ROWID;
CREATE TABLE code (hash BLOB PRIMARY KEY, code BLOB NOT NULL);

-- What the last blocks overwrote, to roll the state back.
CREATE TABLE undo (number INTEGER PRIMARY KEY, data BLOB NOT NULL);

CREATE TABLE meta (chain_id INTEGER NOT NULL);
";

/// The writing connection, and whether the folder is new.
pub(super) fn open_writer(
    folder: &Folder,
    chain_id: u64,
) -> Result<(Connection, bool), DevChainError> {
    let connection = Connection::open(folder.database()).map_err(StoreError::from)?;
    // A temporary chain has nothing to keep, so it does not wait for the disk.
    let synchronous = if folder.is_temporary() { "OFF" } else { "FULL" };
    let pragmas = format!(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous};
         PRAGMA cache_size = -16384;
         PRAGMA wal_autocheckpoint = 4000;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA temp_store = MEMORY;"
    );
    connection
        .execute_batch(&pragmas)
        .map_err(StoreError::from)?;
    connection.set_prepared_statement_cache_capacity(32);
    let is_new = create_or_check(&connection, folder, chain_id)?;
    Ok((connection, is_new))
}

fn create_or_check(
    connection: &Connection,
    folder: &Folder,
    chain_id: u64,
) -> Result<bool, DevChainError> {
    let sql = |error: rusqlite::Error| DevChainError::Store(error.into());
    let path = || folder.path().to_owned();
    let format: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(sql)?;
    match format {
        0 => return Ok(true),
        FORMAT => {}
        found => {
            return Err(DevChainError::OtherFormat {
                path: path(),
                found,
                wanted: FORMAT,
            });
        }
    }
    let found: i64 = connection
        .query_row("SELECT chain_id FROM meta", [], |row| row.get(0))
        .map_err(sql)?;
    if found != to_sql(chain_id) {
        let found = from_sql(found)?;
        return Err(DevChainError::OtherChain {
            path: path(),
            found,
            wanted: chain_id,
        });
    }
    Ok(false)
}

/// Creates the tables inside the caller's transaction, which also writes the genesis block: a
/// folder either has both or is still new.
pub(super) fn create_tables(connection: &Connection, chain_id: u64) -> Result<(), StoreError> {
    connection.execute_batch(SCHEMA)?;
    connection.execute(
        "INSERT INTO meta (chain_id) VALUES (?1)",
        [to_sql(chain_id)],
    )?;
    connection.execute_batch(&format!("PRAGMA user_version = {FORMAT}"))?;
    Ok(())
}

/// The reading connections that are idle. Never more are open than requests are running.
pub(super) struct Readers {
    idle: Mutex<Vec<Connection>>,
    // Dropped last, after the connections: a temporary folder is deleted with it.
    folder: Folder,
}

impl Readers {
    pub(super) fn new(folder: Folder) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            folder,
        }
    }

    /// Runs `read` on one snapshot of the chain.
    pub(super) fn read<T, E: From<StoreError>>(
        &self,
        read: impl FnOnce(View<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        // A deferred transaction: its first SELECT fixes what all others of it see.
        let snapshot = connection
            .unchecked_transaction()
            .map_err(StoreError::from)?;
        let result = read(View::new(&snapshot));
        snapshot.finish().map_err(StoreError::from)?;
        let mut idle = self.idle();
        if idle.len() < limits::REQUESTS_MAX {
            idle.push(connection);
        }
        result
    }

    fn open(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(self.folder.database(), flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch("PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY;")?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// SQLite's integers are signed. Everything that we number ourselves stays far below 2^63.
fn to_sql(value: u64) -> i64 {
    i64::try_from(value).expect("block numbers, ids and gas stay below 2^63")
}

fn from_sql(value: i64) -> Result<u64, StoreError> {
    u64::try_from(value)
        .ok()
        .ok_or(StoreError::damaged("negative number"))
}
