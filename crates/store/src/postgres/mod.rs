//! The cluster's store: PostgreSQL, shared by nodes that are equal and may die at any moment.
//!
//! Every write is one statement in autocommit. What must happen together is a function inside the
//! database (`migrations/0005_gate.sql`; the gate's present version is in `0006_requeue.sql`); [`gate`]
//! calls it. Nothing here relies on a clock, a session or a lock that outlives its statement, except
//! that `expires_at` says who may try to take a lane.

mod arguments;
mod columns;
mod connect;
mod events;
mod fault;
mod feed;
mod gate;
mod headers;
mod lanes;
mod lease;
mod migrations;
mod nodes;
#[cfg(test)]
mod plans;
mod pool;
mod port;
mod queue;
mod rows;
#[cfg(test)]
mod seed_views;
mod settings;
pub mod sql;
mod timeouts;
mod tls;
mod txs;

use std::fmt;
use std::time::Duration;

use thiserror::Error;
use tokio_postgres::Client;

pub use connect::{Beside, ServerWords};
pub use migrations::{SCHEMA_VERSION, SchemaState};

use crate::cursor::StoreTag;
use connect::{Connection, Connector};
use fault::text;
use pool::Db;
use timeouts::Timeouts;

/// How long opening or asking for the schema may take. Migrations may take as long as they need.
const OPEN_WITHIN: Duration = Duration::from_secs(15);

/// Why a store was not opened. Every text says what to do, and none holds the password.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The address is none.
    #[error(
        "store.url cannot be used: {reason} (it looks like \
         postgres://user:password@host:5432/database?sslmode=verify-full)"
    )]
    Address {
        /// Why.
        reason: String,
    },
    /// Nobody answers there, or not to us.
    #[error("the database at {database} cannot be reached: {reason}")]
    NotReached {
        /// Which database.
        database: String,
        /// Why.
        reason: String,
    },
    /// Its schema is missing or old.
    #[error(
        "the database at {database} has schema version {found}, and this program needs \
         {SCHEMA_VERSION}: run `lanekeeper migrate`"
    )]
    NotMigrated {
        /// Which database.
        database: String,
        /// Its version; 0 is none.
        found: i64,
    },
    /// A newer program wrote it.
    #[error(
        "the database at {database} has schema version {found}, and this program knows only \
         {SCHEMA_VERSION}: run the newer program that wrote it"
    )]
    Newer {
        /// Which database.
        database: String,
        /// Its version.
        found: i64,
    },
    /// The role that serves has not the timeouts that the lease needs.
    #[error(
        "role {role} at {database} has {setting} = {found}, and the lease needs 1 to {needed}: run \
         `lanekeeper migrate --role {role}` (behind a pooler let it reconnect afterwards)"
    )]
    Timeout {
        /// Which database.
        database: String,
        /// Which role.
        role: String,
        /// Which setting.
        setting: &'static str,
        /// What it is; 0 is no limit.
        found: i64,
        /// What it may be at most.
        needed: i64,
    },
    /// An accepted tx could be lost in a crash.
    #[error(
        "role {role} at {database} has synchronous_commit = {found}: a crash would lose what was accepted. Run \
         `lanekeeper migrate --role {role}` (behind a pooler let it reconnect afterwards)"
    )]
    NotDurable {
        /// Which database.
        database: String,
        /// Which role.
        role: String,
        /// What it is.
        found: String,
    },
    /// It takes no writes.
    #[error("the database at {database} is a read-only standby: name the primary in store.url")]
    ReadOnly {
        /// Which database.
        database: String,
    },
    /// A statement failed.
    #[error("the database at {database} refused: {reason}")]
    Refused {
        /// Which database.
        database: String,
        /// Why.
        reason: String,
    },
}

/// How to reach the database.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:5432/database?sslmode=…`
    pub url: String,
    /// How many connections this node opens at most: one for leases, the others half for readers and
    /// half for writers.
    pub pool_size: usize,
    /// How long a lease lasts. Every timeout follows from it.
    pub lease: Duration,
}

/// Without the address: it holds the password.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("pool_size", &self.pool_size)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// The cluster's store.
pub struct PostgresStore {
    db: Db,
    tag: StoreTag,
}

impl PostgresStore {
    /// Opens the store. Its schema and the role's timeouts must be as [`migrate`] leaves them.
    pub async fn open(config: PostgresConfig) -> Result<Self, OpenError> {
        let timeouts = Timeouts::of_lease(config.lease);
        let connector = Connector::parse(&config.url, &timeouts)?;
        let database = connector.shown();
        let tag = within(&database, async {
            let connection = connect(&connector).await?;
            let client = connection.client();
            expect_current(&database, schema_state(&database, client).await?)?;
            settings::verify(&database, client, &timeouts).await?;
            store_tag(&database, client).await
        })
        .await?;
        Ok(Self {
            db: Db::new(connector, &timeouts, config.pool_size),
            tag,
        })
    }
}

/// Brings the schema up to date and gives the serving role its rights and timeouts, in one
/// transaction. `role` is who will serve; without it, whoever the address names. Gives the versions
/// that were applied.
pub async fn migrate(
    url: &str,
    role: Option<&str>,
    lease: Duration,
) -> Result<Vec<i64>, OpenError> {
    let connector = Connector::parse(url, &Timeouts::of_lease(lease))?;
    let database = connector.shown();
    let mut connection = within(&database, connect(&connector)).await?;
    match schema_state(&database, connection.client()).await? {
        SchemaState::Current | SchemaState::Behind { .. } => {}
        SchemaState::Newer { found } => return Err(OpenError::Newer { database, found }),
    }
    let applied = migrations::migrate(connection.client_mut(), role, lease).await;
    applied.map_err(|error| refused(&database, &error))
}

/// Says where the schema stands, without changing anything.
pub async fn check(url: &str) -> Result<SchemaState, OpenError> {
    let connector = Connector::parse(url, &Timeouts::of_lease(OPEN_WITHIN))?;
    let database = connector.shown();
    within(&database, async {
        let connection = connect(&connector).await?;
        schema_state(&database, connection.client()).await
    })
    .await
}

async fn connect(connector: &Connector) -> Result<Connection, OpenError> {
    connector
        .connect()
        .await
        .map_err(|error| OpenError::NotReached {
            database: connector.shown(),
            reason: text(&error),
        })
}

async fn schema_state(database: &str, client: &Client) -> Result<SchemaState, OpenError> {
    migrations::schema_state(client)
        .await
        .map_err(|error| refused(database, &error))
}

fn expect_current(database: &str, state: SchemaState) -> Result<(), OpenError> {
    let database = database.to_owned();
    match state {
        SchemaState::Current => Ok(()),
        SchemaState::Behind { found } => Err(OpenError::NotMigrated { database, found }),
        SchemaState::Newer { found } => Err(OpenError::Newer { database, found }),
    }
}

async fn store_tag(database: &str, client: &Client) -> Result<StoreTag, OpenError> {
    let row = client
        .query_typed_one("SELECT id FROM store_identity", &[])
        .await
        .map_err(|error| refused(database, &error))?;
    let id: &[u8] = row.try_get(0).map_err(|error| refused(database, &error))?;
    StoreTag::try_from(id).map_err(|_wrong_length| OpenError::Refused {
        database: database.to_owned(),
        reason: "store_identity holds what nobody wrote".into(),
    })
}

async fn within<T>(
    database: &str,
    work: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    match tokio::time::timeout(OPEN_WITHIN, work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(OpenError::NotReached {
            database: database.to_owned(),
            reason: format!("no answer within {OPEN_WITHIN:?}"),
        }),
    }
}

fn refused(database: &str, error: &tokio_postgres::Error) -> OpenError {
    OpenError::Refused {
        database: database.to_owned(),
        reason: text(error),
    }
}
