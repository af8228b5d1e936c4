//! The one PostgreSQL client: connections, pools, what an error means for the statement, and migrations.
//!
//! It knows nothing of lanes, leases or reservations. Every statement is typed, unnamed and in autocommit: nothing
//! is left in a session, so a pooler in transaction mode may sit in between, and a frozen process holds no
//! transaction open.

mod connector;
mod pool;
mod query_error;
mod schema;
mod timeouts;
mod tls;

pub use connector::{AddressError, ConnectError, Connection, Connector};
pub use pool::{Param, Pool, PoolConfig};
pub use query_error::{QueryError, error_text};
pub use schema::{MigrateError, Migration, Schema, server_version};
pub use timeouts::{Setting, Timeouts};
