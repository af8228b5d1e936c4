//! What can go wrong with a statement, and what its caller is told.

use engine::ports::ReservationError;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a statement or a row failed.
#[derive(Debug)]
pub enum Fault {
    /// The database said no: certainly nothing of it has happened.
    Refused(Box<DbError>),
    /// It was never sent: certainly nothing of it has happened.
    NotReached(String),
    /// It was sent, and no clean answer came: it may have happened, or may still.
    Lost(String),
    /// A row holds what nobody of us wrote.
    Malformed(String),
}

/// The class of connection exceptions. A pooler in the middle also uses it for a server that it lost.
const CONNECTION: &str = "08";

const IDLE_SESSION_TIMEOUT: &str = "57P05";

impl Fault {
    /// What an error in place of an answer says of the statement that was sent.
    pub(super) fn of_answer(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refusal) if is_certain(refusal) => Self::Refused(Box::new(refusal.clone())),
            Some(_) | None => Self::Lost(text(error)),
        }
    }

    /// Whether the server takes no writes: it became a standby, and another one is the primary.
    pub(super) fn is_of_standby(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                let code = refusal.code();
                *code == SqlState::READ_ONLY_SQL_TRANSACTION
                    || *code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
            }
            Self::NotReached(_) | Self::Lost(_) | Self::Malformed(_) => false,
        }
    }

    /// What a caller is told who wrote: a lost answer is unknown.
    pub fn of_write(self) -> ReservationError {
        match self {
            Self::Lost(text) => ReservationError::Unknown(text),
            Self::Refused(_) | Self::NotReached(_) | Self::Malformed(_) => self.of_read(),
        }
    }

    /// What a caller is told who changed nothing.
    pub fn of_read(self) -> ReservationError {
        ReservationError::Unavailable(match self {
            Self::Refused(refusal) => told(&refusal),
            Self::NotReached(text) | Self::Lost(text) | Self::Malformed(text) => text,
        })
    }
}

fn told(refusal: &DbError) -> String {
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE];
    let hint = match missing.contains(refusal.code()) {
        true => ": run `lanekeeper migrate`",
        false => "",
    };
    format!("{} ({}){hint}", refusal.message(), refusal.code().code())
}

/// Whether an error proves that the statement's transaction was rolled back.
///
/// An ordinary error does: whatever fails behind the commit record is a panic. A session that was ended did not
/// commit either, when it can still say so.
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

/// What an error says, with its causes. None holds the password.
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
