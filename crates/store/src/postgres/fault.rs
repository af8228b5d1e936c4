//! Failures below the port, and the port's errors for them.

use engine::ports::StoreError;
use postgres_client::{QueryError, error_text};
use thiserror::Error;

use crate::encoding::{Malformed, TooLarge};

/// Why a call failed.
#[derive(Debug, Error)]
pub(super) enum Fault {
    /// The statement or its answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The caller's argument.
    #[error("{0}")]
    Invalid(String),
}

/// The queue function's error for a lane that accepts no requests until an operator decides.
const HALTED: &str = "LK002";
/// Its error for a lane that accepts none until its keeper has reconciled it with the chain.
const UNRECONCILED: &str = "LK003";

pub(super) type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        let error = match fault {
            Fault::Query(error) => error,
            Fault::Invalid(text) => return Self::Invalid(text),
        };
        match &error {
            QueryError::Refused(refusal) => match refusal.code().code() {
                HALTED => Self::Halted(refusal.message().to_owned()),
                UNRECONCILED => Self::Unreconciled(refusal.message().to_owned()),
                _ => Self::Unavailable(error.to_string()),
            },
            QueryError::NotSent(text) | QueryError::Unknown(text) => {
                Self::Unavailable(text.clone())
            }
            QueryError::Busy(text) => Self::Busy(text.clone()),
            QueryError::Malformed(text) => Self::Corrupt(text.clone()),
        }
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
