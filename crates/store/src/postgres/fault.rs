//! What can go wrong below the port, and what the port calls it.

use engine::ports::StoreError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::encoding::{Malformed, TooLarge};

/// Why a statement or a row failed. The first three say what has become of the statement.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database said no: certainly nothing of it has happened.
    Refused(Box<DbError>),
    /// It was never sent: certainly nothing of it has happened.
    NotReached(String),
    /// It was sent, and no clean answer came: it may have happened, or may still.
    Lost(String),
    /// A row holds what nobody wrote.
    Malformed(Malformed),
    /// A column is of another type than the schema says.
    Unreadable(tokio_postgres::Error),
    /// The question is wrong.
    Invalid(String),
}

/// The class of connection exceptions. A pooler in the middle also uses it for a server that it lost.
const CONNECTION: &str = "08";

impl Fault {
    /// What an error in place of an answer says of the statement that was sent.
    pub(super) fn of_answer(error: tokio_postgres::Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            return Self::Lost(text(&error));
        };
        if is_certain(refusal) {
            Self::Refused(Box::new(refusal.clone()))
        } else {
            Self::Lost(text(&error))
        }
    }

    /// The code, when the database refused.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Refused(refusal) => Some(refusal.code()),
            Self::NotReached(_)
            | Self::Lost(_)
            | Self::Malformed(_)
            | Self::Unreadable(_)
            | Self::Invalid(_) => None,
        }
    }

    /// Whether the server takes no writes: it became a standby, and another one is the primary.
    pub(super) fn is_of_standby(&self) -> bool {
        let standby = [
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        ];
        self.code().is_some_and(|code| standby.contains(code))
    }

    /// What the database, or whoever else, said.
    pub(super) fn text(self) -> String {
        match self {
            Self::Refused(refusal) => {
                format!("{} ({})", refusal.message(), refusal.code().code())
            }
            Self::NotReached(text) | Self::Lost(text) | Self::Invalid(text) => text,
            Self::Malformed(error) => error.to_string(),
            Self::Unreadable(error) => text(&error),
        }
    }

    /// Whether somebody else held a row for too long.
    pub(super) fn is_wait(&self) -> bool {
        let waits = [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ];
        self.code().is_some_and(|code| waits.contains(code))
    }

    /// Whether a unique index refused a row.
    pub(super) fn is_duplicate(&self) -> bool {
        self.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }
}

/// Whether an error proves that the statement's transaction was rolled back.
///
/// An ordinary error does: whatever fails behind the commit record is a panic. A session that was
/// ended did not commit either, when it can still say so: one that waits for a standby while it is
/// ended sends a warning and closes without an error.
fn is_certain(refusal: &DbError) -> bool {
    let code = refusal.code();
    if code.code().starts_with(CONNECTION) {
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

/// What the queue says of a lane that takes no work (see the function).
const HALTED: &str = "LK002";
/// And of one that takes none yet.
const UNSETTLED: &str = "LK003";

const IDLE_SESSION_TIMEOUT: &str = "57P05";

/// What an error says, with its cause. Neither holds the password.
pub(super) fn text(error: &(dyn std::error::Error + 'static)) -> String {
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

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        if let Fault::Refused(refusal) = &fault {
            match refusal.code().code() {
                HALTED => return Self::Halted(refusal.message().to_owned()),
                UNSETTLED => return Self::Unsettled(refusal.message().to_owned()),
                _ => {}
            }
        }
        let kind = match fault {
            Fault::Refused(_) | Fault::NotReached(_) | Fault::Lost(_) => Self::Unavailable,
            Fault::Malformed(_) | Fault::Unreadable(_) => Self::Corrupt,
            Fault::Invalid(_) => Self::Invalid,
        };
        kind(fault.text())
    }
}

/// Of a column. (What comes instead of an answer goes through [`Fault::of_answer`].)
impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl From<Malformed> for Fault {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl From<TooLarge> for Fault {
    fn from(error: TooLarge) -> Self {
        Self::Invalid(error.to_string())
    }
}
