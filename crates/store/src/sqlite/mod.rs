//! The embedded store: one process, one folder, no other software. SQLite with one writer.
//!
//! One thread writes ([`writer`]), a few read ([`readers`]). The gate's rules are the same as
//! PostgreSQL's. Two things are simpler: nothing waits for a lock, because there is one writer, and the
//! feed's positions are assigned inside the gate, because it is the only appender.

mod events;
mod fault;
mod folder;
mod gate;
mod headers;
mod history;
mod lane_lists;
mod lanes;
mod lease;
mod migrations;
mod nodes;
#[cfg(test)]
mod plans;
mod port;
mod queue;
mod readers;
mod rows;
mod txs;
#[cfg(test)]
mod views;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use domain::{History, Timestamp};
use thiserror::Error;

pub use migrations::{SCHEMA_VERSION, SchemaState};

use crate::cursor::StoreTag;
use folder::Folder;
use readers::{Reader, Readers};
use writer::{Now, Writer};

/// Why a store was not opened. Every text names the folder and what to do.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The folder cannot be created, read or locked.
    #[error("the store's folder {} cannot be used: check that it exists and is writable", folder.display())]
    Folder {
        folder: PathBuf,
        source: std::io::Error,
    },
    /// Another process has it.
    #[error(
        "the store in {} is open in another process: stop that one, or choose another folder \
         (several nodes need a PostgreSQL store)",
        folder.display()
    )]
    InUse { folder: PathBuf },
    /// Its schema is missing or too old.
    #[error(
        "the store in {} has schema version {found}, and this program needs {SCHEMA_VERSION}: run \
         `lanekeeper migrate`",
        folder.display()
    )]
    NotMigrated {
        folder: PathBuf,
        /// 0 is none.
        found: i64,
    },
    /// A newer program has migrated it.
    #[error(
        "the store in {} has schema version {found}, and this program knows only \
         {SCHEMA_VERSION}: run the newer program that wrote it",
        folder.display()
    )]
    Newer { folder: PathBuf, found: i64 },
    /// SQLite refused.
    #[error("the database in {} cannot be opened", folder.display())]
    Database {
        folder: PathBuf,
        source: rusqlite::Error,
    },
}

/// The embedded store.
///
/// Dropping the last handle finishes waiting jobs, closes the database and unlocks the folder, in this order.
pub struct SqliteStore {
    threads: Arc<Threads>,
    /// Whose reads these are.
    reader: Reader,
}

/// What all handles of one open store share.
struct Threads {
    writer: Writer,
    engine_readers: Readers,
    customer_readers: Readers,
    now: Now,
    tag: StoreTag,
    /// Last, so that no other process opens the folder while this store still writes.
    _folder: Folder,
}

impl SqliteStore {
    /// Opens the store in a folder. Its schema must be current: see [`SqliteStore::migrate`].
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with(folder, Arc::new(system_time))
    }

    /// As [`SqliteStore::open`], with another clock for leases.
    pub fn open_with(
        folder: &Path,
        now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Result<Self, OpenError> {
        Self::start(lock_existing(folder)?, now)
    }

    /// Creates the folder and the database where they are missing, and migrates the schema. Returns the
    /// applied versions.
    pub fn migrate(folder: &Path) -> Result<Vec<i64>, OpenError> {
        migrate(&Folder::create(folder)?)
    }

    /// Declares that a backup of this folder was restored, and returns the new history. No process may have it open. When
    /// it is repeated, every lane is compared with its chain once more.
    pub fn declare_restore(folder: &Path, reason: &str) -> Result<History, OpenError> {
        let locked = lock_existing(folder)?;
        expect_current(folder)?;
        let mut conn = folder::writer(locked.path())?;
        history::declare_restore(&mut conn, system_time(), reason)
            .map_err(|e| database_error(folder, e))
    }

    /// Compares the schema of a folder with this program's, without changing anything. Works beside a
    /// running store.
    pub fn check(folder: &Path) -> Result<SchemaState, OpenError> {
        if !folder::has_database(folder) {
            return Ok(SchemaState::Behind { found: 0 });
        }
        migrations::schema_state(&folder::reader(folder)?).map_err(|e| database_error(folder, e))
    }

    /// A store in a new folder that is removed with it. For tests and trials.
    pub fn temporary() -> Result<Self, OpenError> {
        Self::temporary_with(Arc::new(system_time))
    }

    /// As [`SqliteStore::temporary`], with another clock for leases.
    pub fn temporary_with(
        now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Result<Self, OpenError> {
        let folder = Folder::temporary()?;
        migrate(&folder)?;
        Self::start(folder, now)
    }

    fn start(folder: Folder, now: Now) -> Result<Self, OpenError> {
        let path = folder.path();
        expect_current(path)?;
        let io = |source| OpenError::Folder {
            folder: path.into(),
            source,
        };
        let conn = folder::writer(path)?;
        let tag = conn
            .query_row("SELECT cursor_tag FROM store_identity", [], |row| {
                row.get(0)
            })
            .map_err(|e| database_error(path, e))?;
        let writer = Writer::spawn(conn, Arc::clone(&now)).map_err(io)?;
        let spawn = |reader: Reader| {
            let connections = (0..reader.threads()).map(|_| folder::reader(path));
            Readers::spawn(reader, connections.collect::<Result<_, _>>()?).map_err(io)
        };
        let threads = Threads {
            writer,
            engine_readers: spawn(Reader::Engine)?,
            customer_readers: spawn(Reader::Customer)?,
            now,
            tag,
            _folder: folder,
        };
        Ok(Self {
            threads: Arc::new(threads),
            reader: Reader::Engine,
        })
    }

    fn writer(&self) -> &Writer {
        &self.threads.writer
    }

    /// The threads for reads that only the engine makes.
    fn engine_readers(&self) -> &Readers {
        &self.threads.engine_readers
    }

    /// The threads for reads that both the engine and customers make.
    fn readers(&self) -> &Readers {
        match self.reader {
            Reader::Engine => &self.threads.engine_readers,
            Reader::Customer => &self.threads.customer_readers,
        }
    }
}

/// Locks a folder; one that does not exist is not created.
fn lock_existing(folder: &Path) -> Result<Folder, OpenError> {
    if folder.exists() {
        return Folder::lock(folder);
    }
    Err(OpenError::NotMigrated {
        folder: folder.into(),
        found: 0,
    })
}

fn expect_current(folder: &Path) -> Result<(), OpenError> {
    match SqliteStore::check(folder)? {
        SchemaState::Current => Ok(()),
        SchemaState::Behind { found } => Err(OpenError::NotMigrated {
            folder: folder.into(),
            found,
        }),
        SchemaState::Newer { found } => Err(newer(folder, found)),
    }
}

fn migrate(folder: &Folder) -> Result<Vec<i64>, OpenError> {
    let path = folder.path();
    let mut conn = folder::writer(path)?;
    let state = migrations::schema_state(&conn).map_err(|e| database_error(path, e))?;
    if let SchemaState::Newer { found } = state {
        return Err(newer(path, found));
    }
    migrations::migrate(&mut conn, system_time()).map_err(|e| database_error(path, e))
}

fn newer(folder: &Path, found: i64) -> OpenError {
    let folder = folder.into();
    OpenError::Newer { folder, found }
}

fn database_error(folder: &Path, source: rusqlite::Error) -> OpenError {
    let folder = folder.into();
    OpenError::Database { folder, source }
}

fn system_time() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
