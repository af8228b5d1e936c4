//! What can go wrong with a statement, and what that says of its outcome.

use thiserror::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a statement failed. All but the last differ in whether it may have been committed.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The database refused it: it was rolled back.
    #[error("{} ({})", .0.message(), .0.code().code())]
    Refused(Box<DbError>),
    /// It was never sent: nothing has happened.
    #[error("{0}")]
    NotSent(String),
    /// It was never sent, because too many calls wait for a connection already: nothing has happened.
    #[error("{0}")]
    Busy(String),
    /// It was sent, and no clean answer came: it may have been committed, or may still be.
    #[error("{0}")]
    Unknown(String),
    /// The answer has another form than the schema says.
    #[error("{0}")]
    Malformed(String),
}

/// The class of connection exceptions. A pooler in the middle also uses it for a server that it lost.
const CONNECTION_CLASS: &str = "08";

const IDLE_SESSION_TIMEOUT: &str = "57P05";

impl QueryError {
    /// Classifies the error that came in place of an answer to a statement that was sent.
    pub(crate) fn from_answer(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refusal) if is_rolled_back(refusal) => Self::Refused(Box::new(refusal.clone())),
            Some(_) | None => Self::Unknown(error_text(error)),
        }
    }

    /// The code, when the database refused.
    pub fn code(&self) -> Option<&SqlState> {
        self.refusal().map(DbError::code)
    }

    /// The index or constraint that refused a row.
    pub fn constraint(&self) -> Option<&str> {
        self.refusal().and_then(DbError::constraint)
    }

    fn refusal(&self) -> Option<&DbError> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::NotSent(_) | Self::Busy(_) | Self::Unknown(_) | Self::Malformed(_) => None,
        }
    }

    /// Whether the server accepts no writes: it became a standby, and another server is the primary.
    pub fn is_from_standby(&self) -> bool {
        self.has_code(&[
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        ])
    }

    /// Whether another transaction held a row for too long.
    pub fn is_lock_conflict(&self) -> bool {
        self.has_code(&[
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ])
    }

    /// Whether a unique index refused a row.
    pub fn is_duplicate(&self) -> bool {
        self.has_code(&[SqlState::UNIQUE_VIOLATION])
    }

    /// Whether a table or function is missing: the schema is not migrated.
    pub fn is_missing_schema(&self) -> bool {
        self.has_code(&[SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE])
    }

    fn has_code(&self, codes: &[SqlState]) -> bool {
        self.code().is_some_and(|code| codes.contains(code))
    }
}

/// Whether an error proves that the statement's transaction was rolled back.
///
/// An ordinary error does: whatever fails after the commit record is a panic. A session that was ended did not
/// commit either, when it can still report so: one that is ended while it waits for a standby sends a warning and
/// closes without an error.
fn is_rolled_back(refusal: &DbError) -> bool {
    let code = refusal.code();
    if code.code().starts_with(CONNECTION_CLASS) {
        return false;
    }
    match refusal.parsed_severity() {
        Some(Severity::Error) => true,
        Some(Severity::Fatal) => {
            let ended = [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::TOO_MANY_CONNECTIONS,
            ];
            ended.contains(code) || code.code() == IDLE_SESSION_TIMEOUT
        }
        Some(
            Severity::Panic
            | Severity::Debug
            | Severity::Info
            | Severity::Log
            | Severity::Notice
            | Severity::Warning,
        )
        | None => false,
    }
}

/// An error with its causes. None of them contains the password.
pub fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
