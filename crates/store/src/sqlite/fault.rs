//! Failures below the port, and the port's errors for them.

use engine::ports::StoreError;
use rusqlite::ErrorCode;
use rusqlite::types::FromSqlError;
use thiserror::Error;

use crate::encoding::{Malformed, TooLarge};

/// Why a statement or a row failed.
#[derive(Debug, Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The caller's argument.
    #[error("{0}")]
    Invalid(String),
    /// The lane accepts no requests until an operator decides.
    #[error("{0}")]
    Halted(String),
    /// The lane accepts no requests until it is compared with its chain.
    #[error("{0}")]
    Unreconciled(String),
}

impl Fault {
    /// Whether a unique index refused a row.
    pub(super) fn is_duplicate(&self) -> bool {
        matches!(
            self,
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _))
                if error.code == ErrorCode::ConstraintViolation
        )
    }
}

pub(super) type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sqlite(error) if is_unreadable(&error) => Self::Corrupt(error.to_string()),
            Fault::Sqlite(error) => Self::Unavailable(error.to_string()),
            Fault::Malformed(error) => Self::Corrupt(error.to_string()),
            Fault::Invalid(text) => Self::Invalid(text),
            Fault::Halted(reason) => Self::Halted(reason),
            Fault::Unreconciled(reason) => Self::Unreconciled(reason),
        }
    }
}

/// Whether the file or a row is not what the schema says.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    ) || matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..)
    )
}

impl From<FromSqlError> for Fault {
    fn from(error: FromSqlError) -> Self {
        // A column of another type than the schema says.
        Self::Sqlite(rusqlite::Error::FromSqlConversionFailure(
            0,
            rusqlite::types::Type::Null,
            Box::new(error),
        ))
    }
}

impl From<TooLarge> for Fault {
    fn from(error: TooLarge) -> Self {
        Self::Invalid(error.to_string())
    }
}
