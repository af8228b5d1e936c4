//! A schema and its runner: forward-only migrations, all that are missing in one transaction.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use thiserror::Error;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Transaction};

use crate::timeouts::TRANSACTION_TIMEOUT_SINCE;

/// One step of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub name: &'static str,
    pub sql: &'static str,
}

/// Tables and functions that one component owns in a database.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The table of applied versions. The migrations do not create it.
    pub version_table: &'static str,
    /// The advisory lock on which concurrent migrations wait for each other: any fixed number.
    pub lock: i64,
    /// All steps in order, numbered from 1. Append only: a released step is never edited.
    pub migrations: &'static [Migration],
    /// Tables that the serving role reads and writes.
    pub tables: &'static [&'static str],
    /// Sequences that the serving role advances.
    pub sequences: &'static [&'static str],
}

/// Why migrations were not applied. Nothing has changed.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// A statement failed.
    #[error("the database refused a migration")]
    Refused(#[from] Error),
    /// A newer program has migrated this database.
    #[error("the database has the newer schema version {found}")]
    Newer { found: i64 },
}

impl Schema {
    /// The version that this program needs.
    pub const fn version(&self) -> i64 {
        #[expect(
            clippy::cast_possible_wrap,
            reason = "there are far fewer than 2^63 migrations"
        )]
        let version = self.migrations.len() as i64;
        version
    }

    /// The version of this database; 0 when it was never migrated.
    pub async fn installed_version(&self, client: &Client) -> Result<i64, Error> {
        const HAS_TABLE: &str = "SELECT to_regclass($1) IS NOT NULL";
        let table = (&self.version_table as _, Type::TEXT);
        let row = client.query_typed_one(HAS_TABLE, &[table]).await?;
        if !row.try_get(0)? {
            return Ok(0);
        }
        let max = format!(
            "SELECT coalesce(max(version), 0) FROM {}",
            self.version_table
        );
        client.query_typed_one(&max, &[]).await?.try_get(0)
    }

    /// Applies the missing migrations in the current schema and grants `role` what serving needs. Without a role
    /// the current user owns everything and serves. Returns the applied versions; the caller commits.
    pub fn apply<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        role: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<i64>, MigrateError>> {
        async move {
            // Long waits and long index builds are right here, and wrong everywhere else.
            let mut unlimited = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
             SET LOCAL idle_in_transaction_session_timeout = 0"
                .to_owned();
            if server_version(transaction.client()).await? >= TRANSACTION_TIMEOUT_SINCE {
                unlimited += "; SET LOCAL transaction_timeout = 0";
            }
            transaction.batch_execute(&unlimited).await?;
            let lock = (&self.lock as _, Type::INT8);
            transaction
                .query_typed("SELECT pg_advisory_xact_lock($1)", &[lock])
                .await?;
            // Functions keep this path, so that tables of the same name in another schema never come first.
            transaction
                .batch_execute(
                    "SELECT set_config('search_path', quote_ident(current_schema()), true); \
                 SET LOCAL client_min_messages = warning",
                )
                .await?;
            // Before anything is written: the role of an older program may not be allowed to.
            let found = self.installed_version(transaction.client()).await?;
            if found > self.version() {
                return Err(MigrateError::Newer { found });
            }
            let table = self.version_table;
            transaction
                .batch_execute(&format!(
                    "CREATE TABLE IF NOT EXISTS {table} ( \
                   version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL)"
                ))
                .await?;
            let insert =
                format!("INSERT INTO {table} (version, name, applied_at) VALUES ($1, $2, now())");
            let mut applied = Vec::new();
            for (version, migration) in (1..).zip(self.migrations) {
                if version <= found {
                    continue;
                }
                transaction.batch_execute(migration.sql).await?;
                let row = [
                    (&version as _, Type::INT8),
                    (&migration.name as _, Type::TEXT),
                ];
                transaction.query_typed(&insert, &row).await?;
                applied.push(version);
            }
            if let Some(role) = role {
                self.grant(transaction.client(), role).await?;
            }
            Ok(applied)
        }
        .boxed()
    }

    /// The serving role creates no tables and owns none.
    async fn grant(&self, client: &Client, role: &str) -> Result<(), Error> {
        const NAMES: &str = "SELECT quote_ident($1), quote_ident(current_schema())";
        let names = client
            .query_typed_one(NAMES, &[(&role, Type::TEXT)])
            .await?;
        let (role, schema): (String, String) = (names.try_get(0)?, names.try_get(1)?);
        let tables = self.tables.join(", ");
        let mut grants = format!(
            "GRANT USAGE ON SCHEMA {schema} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables}, {} TO {role}",
            self.version_table
        );
        if !self.sequences.is_empty() {
            let sequences = self.sequences.join(", ");
            grants += &format!("; GRANT USAGE ON SEQUENCE {sequences} TO {role}");
        }
        client.batch_execute(&grants).await
    }

    /// Tables and sequences that the migrations create and the serving role is not granted: a mistake.
    pub fn ungranted(&self) -> Vec<&'static str> {
        let lines = self.migrations.iter().flat_map(|step| step.sql.lines());
        let created = lines.filter_map(|line| {
            let name = line
                .strip_prefix("CREATE TABLE ")
                .or_else(|| line.strip_prefix("CREATE SEQUENCE "))?;
            name.split([' ', ';']).next()
        });
        let is_granted = |name: &&str| self.tables.contains(name) || self.sequences.contains(name);
        created.filter(|name| !is_granted(name)).collect()
    }
}

/// As in `server_version_num`.
pub async fn server_version(client: &Client) -> Result<i32, Error> {
    const SQL: &str = "SELECT current_setting('server_version_num')::integer";
    client.query_typed_one(SQL, &[]).await?.try_get(0)
}
