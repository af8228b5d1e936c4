//! Errors of opening a dev chain, and of its store.

use std::path::PathBuf;

/// Why a dev chain could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DevChainError {
    #[error("dev chain folder {}", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "dev chain folder {} is in use by another process; stop it or choose another folder",
        .path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "dev chain folder {} holds chain {found}, not chain {wanted}; \
         choose another folder or that chain id",
        .path.display()
    )]
    OtherChain {
        path: PathBuf,
        found: u64,
        wanted: u64,
    },
    #[error(
        "dev chain folder {} was written by another version (format {found}, this is {wanted}); \
         start with a fresh folder",
        .path.display()
    )]
    OtherFormat {
        path: PathBuf,
        found: i64,
        wanted: i64,
    },
    #[error("dev chain configuration: {0}")]
    Config(&'static str),
    #[error("dev chain cannot start its miner")]
    Thread(#[source] std::io::Error),
    #[error("dev chain store")]
    Store(#[from] StoreError),
}

/// A failure of the chain's database. Opaque, because a caller can only report it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(#[from] StoreErrorKind);

#[derive(Debug, thiserror::Error)]
enum StoreErrorKind {
    #[error("SQLite: {0}")]
    Sqlite(#[source] rusqlite::Error),
    #[error("damaged data: {0}")]
    Damaged(&'static str),
}

impl StoreError {
    pub(crate) fn damaged(what: &'static str) -> Self {
        Self(StoreErrorKind::Damaged(what))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(source: rusqlite::Error) -> Self {
        Self(StoreErrorKind::Sqlite(source))
    }
}

/// Lets revm return a failed read from within an execution.
impl revm::database_interface::DBErrorMarker for StoreError {}
