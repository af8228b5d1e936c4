//! The schema: forward-only migrations, all that are missing in one transaction, numbered and named
//! alike in every dialect.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::settings::WAITS_FOR_ALL;
use super::timeouts::{Setting, Timeouts};
pub use crate::sqlite::SchemaState;

/// One step of the schema.
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

/// All steps, in order. Append only: a step that was ever shipped is never edited.
const MIGRATIONS: [Migration; 7] = [
    Migration {
        version: 1,
        name: "lanes",
        sql: include_str!("0001_lanes.sql"),
    },
    Migration {
        version: 2,
        name: "txs",
        sql: include_str!("0002_txs.sql"),
    },
    Migration {
        version: 3,
        name: "events",
        sql: include_str!("0003_events.sql"),
    },
    Migration {
        version: 4,
        name: "seed_views",
        sql: include_str!("0004_seed_views.sql"),
    },
    Migration {
        version: 5,
        name: "gate",
        sql: include_str!("0005_gate.sql"),
    },
    Migration {
        version: 6,
        name: "requeue",
        sql: include_str!("0006_requeue.sql"),
    },
    Migration {
        version: 7,
        name: "unsettled",
        sql: include_str!("0007_unsettled.sql"),
    },
];

/// The schema that this program writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Two nodes that migrate at once wait for each other here. (Any fixed number: "lanekeep" in ASCII.)
const LOCK: i64 = 0x6c61_6e65_6b65_6570;

/// What the serving role may do. It makes no tables and owns none.
const GRANTS: &str = "SELECT, INSERT, UPDATE, DELETE";
const TABLES: [&str; 14] = [
    "chain_header",
    "event_feed",
    "feed_head",
    "lane",
    "lane_event",
    "lane_feed",
    "managed_tx",
    "node",
    "schema_version",
    "signer_lease",
    "signer_nonce_cursor",
    "store_identity",
    "tx_attempt",
    "tx_wake",
];

/// Where this database stands.
pub(super) async fn schema_state(client: &Client) -> Result<SchemaState, Error> {
    let found = version(client).await?;
    Ok(match found.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Less => SchemaState::Behind { found },
        std::cmp::Ordering::Equal => SchemaState::Current,
        std::cmp::Ordering::Greater => SchemaState::Newer { found },
    })
}

/// Applies what is missing, and gives the serving role (by default our own) its rights and settings.
/// The versions that were applied. A newer database is left alone.
pub(super) async fn migrate(
    client: &mut Client,
    role: Option<&str>,
    lease: Duration,
) -> Result<Vec<i64>, Error> {
    let step = client.transaction().await?;
    // Long waits and long index builds are right here, and wrong everywhere else.
    step.batch_execute(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
         SET LOCAL idle_in_transaction_session_timeout = 0",
    )
    .await?;
    if server_version(step.client()).await? >= 170_000 {
        step.batch_execute("SET LOCAL transaction_timeout = 0")
            .await?;
    }
    step.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)])
        .await?;
    // Functions remember this path, so that nobody's own tables come before ours.
    step.batch_execute(
        "SELECT set_config('search_path', quote_ident(current_schema()), true); \
         SET LOCAL client_min_messages = warning; \
         CREATE TABLE IF NOT EXISTS schema_version ( \
           version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL)",
    )
    .await?;
    let found = version(step.client()).await?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS.iter().filter(|step| step.version > found) {
        step.batch_execute(migration.sql).await?;
        step.query_typed(
            "INSERT INTO schema_version (version, name, applied_at) VALUES ($1, $2, now())",
            &[
                (&migration.version, Type::INT8),
                (&migration.name, Type::TEXT),
            ],
        )
        .await?;
        applied.push(migration.version);
    }
    if found <= SCHEMA_VERSION {
        serve_as(step.client(), role, lease).await?;
    }
    step.commit().await?;
    Ok(applied)
}

/// Gives a role what serving needs, in this database.
async fn serve_as(client: &Client, role: Option<&str>, lease: Duration) -> Result<(), Error> {
    const NAMES: &str = "SELECT quote_ident(coalesce($1, current_user)), \
         quote_ident(current_database()), quote_ident(current_schema())";
    let names = client
        .query_typed_one(NAMES, &[(&role, Type::TEXT)])
        .await?;
    let (to, database): (String, String) = (names.try_get(0)?, names.try_get(1)?);
    let schema: String = names.try_get(2)?;
    if role.is_some() {
        let tables = TABLES.join(", ");
        client
            .batch_execute(&format!(
                "GRANT USAGE ON SCHEMA {schema} TO {to}; \
                 GRANT {GRANTS} ON {tables} TO {to}"
            ))
            .await?;
    }
    let timeouts = Timeouts::of_lease(lease);
    for Setting { name, value, .. } in timeouts.settings(server_version(client).await?) {
        client
            .batch_execute(&format!(
                "ALTER ROLE {to} IN DATABASE {database} SET {name} = {value}"
            ))
            .await?;
    }
    // An acceptance that was answered must survive a crash, whatever the rest of the database does. Stricter stays.
    let row = client.query_typed_one("SELECT current_setting('synchronous_commit')", &[]);
    let found: String = row.await?.try_get(0)?;
    let waits = WAITS_FOR_ALL.into_iter().find(|waits| *waits == found);
    let waits = waits.unwrap_or("on");
    let setting =
        format!("ALTER ROLE {to} IN DATABASE {database} SET synchronous_commit = {waits}");
    client.batch_execute(&setting).await?;
    // Every statement here is short. Compiling one takes longer than running it, and the planner chooses to
    // when a table has grown and was not analysed yet.
    let setting = format!("ALTER ROLE {to} IN DATABASE {database} SET jit = off");
    client.batch_execute(&setting).await
}

/// As in `server_version_num`.
pub(super) async fn server_version(client: &Client) -> Result<i32, Error> {
    const SQL: &str = "SELECT current_setting('server_version_num')::integer";
    client.query_typed_one(SQL, &[]).await?.try_get(0)
}

async fn version(client: &Client) -> Result<i64, Error> {
    const HAS_TABLE: &str = "SELECT to_regclass('schema_version') IS NOT NULL";
    const VERSION: &str = "SELECT coalesce(max(version), 0) FROM schema_version";
    let has_table: bool = client.query_typed_one(HAS_TABLE, &[]).await?.try_get(0)?;
    if !has_table {
        return Ok(0);
    }
    client.query_typed_one(VERSION, &[]).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|step| step.version).collect();
        assert_eq!(numbers, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn every_table_is_granted() {
        let made = MIGRATIONS.iter().flat_map(|step| step.sql.lines());
        let made = made.filter_map(|line| line.strip_prefix("CREATE TABLE "));
        for table in made.filter_map(|line| line.split_whitespace().next()) {
            assert!(
                TABLES.contains(&table),
                "{table} is not granted to the serving role"
            );
        }
    }
}
