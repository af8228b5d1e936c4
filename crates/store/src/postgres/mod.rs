//! The cluster's store: PostgreSQL, shared by nodes that are equal and may die at any moment.
//!
//! Every write is one statement in autocommit. Writes that must happen together are a function inside the database
//! (`migrations/0001_initial/gate.sql`), which [`gate`] calls. Nothing here relies on a clock, a session or a lock that
//! outlives its statement, except that `expires_at` decides which node may try to take a lane.

mod arguments;
mod columns;
mod events;
mod fault;
mod feed;
mod gate;
mod headers;
mod lane_lists;
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
mod settings;
pub mod sql;
mod txs;
#[cfg(test)]
mod views;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use postgres_client::{
    AddressError, ConnectError, Connector, MigrateError, Pool, Timeouts, error_text,
};
use thiserror::Error;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

pub use migrations::{SCHEMA_VERSION, SchemaState};

use crate::cursor::{CursorTag, StoreTag};
use pool::{Db, Reader};

/// How long opening or reading the schema version may take. Migrations may take as long as they need.
const OPEN_WITHIN: Duration = Duration::from_secs(15);

/// Why a store was not opened. Every text states what to do, and none contains the password.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The address cannot be used.
    #[error("store.url cannot be used: {0}")]
    Address(#[from] AddressError),
    /// No connection was made.
    #[error(transparent)]
    NotReached(#[from] ConnectError),
    /// Its schema is missing or too old.
    #[error(
        "the database at {database} has schema version {found}, and this program needs \
         {SCHEMA_VERSION}: run `lanekeeper migrate`"
    )]
    NotMigrated {
        database: String,
        /// 0 is none.
        found: i64,
    },
    /// A newer program has migrated it.
    #[error(
        "the database at {database} has schema version {found}, and this program knows only \
         {SCHEMA_VERSION}: run the newer program that wrote it"
    )]
    Newer { database: String, found: i64 },
    /// The serving role has not the timeouts that the lease needs.
    #[error(
        "role {role} at {database} has {setting} = {found}, and the lease needs 1 to {needed}: run \
         `lanekeeper migrate --role {role}` (behind a pooler let it reconnect afterwards)"
    )]
    Timeout {
        database: String,
        role: String,
        setting: &'static str,
        /// 0 is no limit.
        found: i64,
        /// The largest allowed value.
        needed: i64,
    },
    /// A crash could lose an accepted tx.
    #[error(
        "role {role} at {database} has synchronous_commit = {found}: a crash would lose accepted transactions. Run \
         `lanekeeper migrate --role {role}` (behind a pooler let it reconnect afterwards)"
    )]
    NotDurable {
        database: String,
        role: String,
        found: String,
    },
    /// It accepts no writes.
    #[error("the database at {database} is a read-only standby: name the primary in store.url")]
    ReadOnly { database: String },
    /// A statement failed.
    #[error("the database at {database} refused: {reason}")]
    Refused { database: String, reason: String },
}

/// How to reach the database.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:5432/database?sslmode=…`
    pub url: String,
    /// How many connections this node opens at most: one for leases, the others for the engine's reads, for those of
    /// customers, and for writes (see `pool`).
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
    db: Arc<Db>,
    tag: Arc<CursorTag>,
    /// Whose reads these are.
    reader: Reader,
}

impl PostgresStore {
    /// Opens the store. Its schema and the role's timeouts must be as [`migrate`] leaves them.
    pub fn open(config: PostgresConfig) -> BoxFuture<'static, Result<Self, OpenError>> {
        async move {
            let timeouts = Timeouts::from_lease(config.lease);
            let connector = Connector::parse(&config.url, &timeouts)?;
            let database = connector.database_name();
            let tag = within(&database, async {
                let connection = connector.connect().await?;
                let client = connection.client();
                expect_current(&database, schema_state(&database, client).await?)?;
                settings::verify(&database, client, &timeouts).await?;
                store_tag(&database, client).await
            })
            .await?;
            Ok(Self {
                db: Arc::new(Db::new(&connector, &timeouts, config.pool_size)),
                tag: Arc::new(CursorTag::new(tag)),
                reader: Reader::Engine,
            })
        }
        .boxed()
    }

    /// The connections for reads that both the engine and customers make.
    fn reads(&self) -> &Pool {
        self.db.reads_of(self.reader)
    }
}

/// Brings the schema up to date and gives the serving role its rights and timeouts, in one
/// transaction. `role` is the serving role; without it, the one of the address. Returns the applied
/// versions.
pub fn migrate<'a>(
    url: &'a str,
    role: Option<&'a str>,
    lease: Duration,
) -> BoxFuture<'a, Result<Vec<i64>, OpenError>> {
    async move {
        let connector = Connector::parse(url, &Timeouts::from_lease(lease))?;
        let database = connector.database_name();
        let mut connection = within(&database, async { Ok(connector.connect().await?) }).await?;
        let applied = migrations::migrate(connection.client_mut(), role, lease).await;
        applied.map_err(|error| match error {
            MigrateError::Newer { found } => OpenError::Newer { database, found },
            MigrateError::Refused(error) => refused(&database, &error),
        })
    }
    .boxed()
}

/// Declares that a backup was restored, and returns the new history. Safe while nodes are running, and when it is repeated:
/// every lane is compared with its chain once more.
pub fn declare_restore<'a>(
    url: &'a str,
    reason: &'a str,
    lease: Duration,
) -> BoxFuture<'a, Result<String, OpenError>> {
    const DECLARE: &str = "SELECT lanekeeper_declare_restore($1)";
    async move {
        let connector = Connector::parse(url, &Timeouts::from_lease(lease))?;
        let database = connector.database_name();
        let connection = within(&database, async { Ok(connector.connect().await?) }).await?;
        let client = connection.client();
        expect_current(&database, schema_state(&database, client).await?)?;
        let declare = async {
            // It waits for every lane, and writes all of them.
            let unlimited = "SET statement_timeout = 0; SET lock_timeout = 0";
            client.batch_execute(unlimited).await?;
            let reason = (&reason as _, Type::TEXT);
            client.query_typed_one(DECLARE, &[reason]).await?.try_get(0)
        };
        declare.await.map_err(|error| refused(&database, &error))
    }
    .boxed()
}

/// Compares the schema with this program's, without changing anything.
pub fn check(url: &str) -> BoxFuture<'_, Result<SchemaState, OpenError>> {
    async move {
        let connector = Connector::parse(url, &Timeouts::from_lease(OPEN_WITHIN))?;
        let database = connector.database_name();
        within(&database, async {
            let connection = connector.connect().await?;
            schema_state(&database, connection.client()).await
        })
        .await
    }
    .boxed()
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
        .query_typed_one("SELECT cursor_tag FROM store_identity", &[])
        .await
        .map_err(|error| refused(database, &error))?;
    let id: &[u8] = row.try_get(0).map_err(|error| refused(database, &error))?;
    StoreTag::try_from(id).map_err(|_wrong_length| OpenError::Refused {
        database: database.to_owned(),
        reason: "store_identity is malformed".into(),
    })
}

async fn within<T>(
    database: &str,
    work: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    match tokio::time::timeout(OPEN_WITHIN, work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(OpenError::NotReached(ConnectError {
            database: database.to_owned(),
            reason: format!("no answer within {OPEN_WITHIN:?}"),
        })),
    }
}

fn refused(database: &str, error: &tokio_postgres::Error) -> OpenError {
    OpenError::Refused {
        database: database.to_owned(),
        reason: error_text(error),
    }
}
