//! The folder of a chain, locked for one process.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DevChainError;

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    temporary: bool,
    /// The operating system releases the lock with the handle, also when the process is killed.
    _lock: File,
}

impl Folder {
    /// Without a path: a private folder that is deleted with the chain.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, DevChainError> {
        let temporary = path.is_none();
        let path = path.unwrap_or_else(temporary_path);
        let folder_error = |source| DevChainError::Folder {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&path).map_err(folder_error)?;
        let lock = File::create(path.join("lock")).map_err(folder_error)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path,
                temporary,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(DevChainError::InUse { path }),
            Err(TryLockError::Error(source)) => Err(DevChainError::Folder { path, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_temporary(&self) -> bool {
        self.temporary
    }

    pub(super) fn database(&self) -> PathBuf {
        self.path.join("chain.sqlite")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            // Best effort: a leftover in the system's temporary folder is harmless.
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

fn temporary_path() -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // The time distinguishes the folder from the leftover of a killed process with the same id.
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_nanos();
    std::env::temp_dir().join(format!(
        "lanekeeper-devchain-{}-{now}-{count}",
        std::process::id()
    ))
}
