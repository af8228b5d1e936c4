//! Failures below the port, and the port's errors for them.

use engine::ports::StoreError;
use postgres_client::{QueryError, error_text};

use crate::encoding::{Malformed, TooLarge};

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The statement or its answer.
    Query(QueryError),
    /// The caller's argument.
    Invalid(String),
}

/// The queue function's error for a lane that accepts no requests until an operator decides.
const HALTED: &str = "LK002";
/// Its error for a lane that accepts none until its keeper has reconciled it with the chain.
const UNRECONCILED: &str = "LK003";

impl Fault {
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Query(error) => error.into_text(),
            Self::Invalid(text) => text,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        let error = match fault {
            Fault::Query(error) => error,
            Fault::Invalid(text) => return Self::Invalid(text),
        };
        if let QueryError::Refused(refusal) = &error {
            match refusal.code().code() {
                HALTED => return Self::Halted(refusal.message().to_owned()),
                UNRECONCILED => return Self::Unreconciled(refusal.message().to_owned()),
                _ => {}
            }
        }
        let kind = match error {
            QueryError::Refused(_) | QueryError::NotSent(_) | QueryError::Unknown(_) => {
                Self::Unavailable
            }
            QueryError::Malformed(_) => Self::Corrupt,
        };
        kind(error.into_text())
    }
}

impl From<QueryError> for Fault {
    fn from(error: QueryError) -> Self {
        Self::Query(error)
    }
}

/// A column of another type than the schema says. (Errors in place of an answer are classified by the pool.)
impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Query(QueryError::Malformed(error_text(&error)))
    }
}

impl From<Malformed> for Fault {
    fn from(error: Malformed) -> Self {
        Self::Query(QueryError::Malformed(error.to_string()))
    }
}

impl From<TooLarge> for Fault {
    fn from(error: TooLarge) -> Self {
        Self::Invalid(error.to_string())
    }
}
