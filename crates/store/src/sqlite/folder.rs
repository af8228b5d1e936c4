//! The folder of a store: its files, its lock, its connections.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::OpenError;

const DATABASE: &str = "lanekeeper.db";
const LOCK: &str = "lanekeeper.lock";

/// How many prepared statements a connection keeps: more than there are.
const STATEMENTS_MAX: usize = 128;
/// How long a statement waits for another program that reads the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A folder that is locked for this process.
pub(super) struct Folder {
    path: PathBuf,
    /// Locked while the file is open; the system unlocks it when the process dies.
    _lock: File,
    is_temporary: bool,
}

impl Folder {
    /// Locks a folder that exists.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let io = |source| OpenError::Folder {
            folder: path.into(),
            source,
        };
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let lock = options.open(path.join(LOCK)).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.into(),
                _lock: lock,
                is_temporary: false,
            }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
                folder: path.into(),
            }),
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }

    /// Creates the folder where it is missing, and locks it.
    pub(super) fn create(path: &Path) -> Result<Self, OpenError> {
        std::fs::create_dir_all(path).map_err(|source| OpenError::Folder {
            folder: path.into(),
            source,
        })?;
        Self::lock(path)
    }

    /// A new folder that is removed with its store.
    pub(super) fn temporary() -> Result<Self, OpenError> {
        // Seeded anew by the system for every state, so no two folders share a name.
        let name = RandomState::new().hash_one(std::process::id());
        let path = std::env::temp_dir().join(format!("lanekeeper-{name:016x}"));
        let mut folder = Self::create(&path)?;
        folder.is_temporary = true;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            // A folder that cannot be removed is left to the system's cleanup of temporary files.
            std::fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Whether a folder has a database at all.
pub(super) fn has_database(folder: &Path) -> bool {
    folder.join(DATABASE).exists()
}

/// The connection of the writer: a commit is on disk when it returns.
pub(super) fn writer(folder: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    connect(folder, flags, |conn| {
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        // In KiB. The hot ends of all indexes of a busy store fit.
        conn.pragma_update(None, "cache_size", -65_536)?;
        // In pages of 4 KiB. Between two checkpoints a page of a random index (the hashes) is changed
        // many times and copied back once, so a longer log is less work; but the copying is part of a
        // commit, so it must not grow too long either.
        conn.pragma_update(None, "wal_autocheckpoint", 8_000)
    })
}

/// A connection that cannot write.
pub(super) fn reader(folder: &Path) -> Result<Connection, OpenError> {
    connect(folder, OpenFlags::SQLITE_OPEN_READ_WRITE, |conn| {
        conn.pragma_update(None, "query_only", true)?;
        conn.pragma_update(None, "cache_size", -16_384)
    })
}

fn connect(
    folder: &Path,
    flags: OpenFlags,
    setup: impl FnOnce(&Connection) -> Result<(), rusqlite::Error>,
) -> Result<Connection, OpenError> {
    let open = || {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(folder.join(DATABASE), flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        setup(&conn)?;
        Ok(conn)
    };
    open().map_err(|e| super::database_error(folder, e))
}
