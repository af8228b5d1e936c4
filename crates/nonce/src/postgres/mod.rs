//! The reservation ledger in PostgreSQL: the authority of every scheme but the lane's.
//!
//! Every call is one statement in autocommit and one round trip; writes that must happen together are a function inside
//! the database (`schema/`).

mod block_holders;
mod ledger;
mod rows;
mod schema;
mod verdicts;

use engine::ports::ReservationError;

pub(crate) use block_holders::{
    BlockLeaseTerms, BlockRequest, EntryKind, Handout, LedgerEntry, WriteOutcome,
};
pub use ledger::{Ledger, ReserveOutcome};
pub use postgres_client::{AddressError, ConnectError, Connector, Pool, PoolConfig, Timeouts};
pub(crate) use postgres_client::{Param, QueryError};
pub(crate) use rows::{new_reservation, signed};
pub use schema::{SCHEMA_VERSION, SchemaError, bind_lanes, check, prepare};

/// The port's error for a failed write: without a clean answer its outcome is unknown.
pub(crate) fn write_error(error: QueryError) -> ReservationError {
    match error {
        QueryError::Unknown(text) => ReservationError::Unknown(text),
        QueryError::Busy(_) => ReservationError::Busy,
        QueryError::Refused(_) | QueryError::NotSent(_) | QueryError::Malformed(_) => {
            read_error(error)
        }
    }
}

/// The port's error for a failed read.
pub(crate) fn read_error(error: QueryError) -> ReservationError {
    let hint = match error.is_missing_schema() {
        true => ": run `lanekeeper migrate`",
        false => "",
    };
    ReservationError::Unavailable(format!("{error}{hint}"))
}
