//! The schema: forward-only migrations, all that are missing in one transaction, numbered and named
//! alike in every dialect.

use std::time::Duration;

use postgres_client::{MigrateError, Migration, Schema, Setting, Timeouts, server_version};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::settings::WAITS_FOR_ALL;
pub use crate::sqlite::SchemaState;

const SCHEMA: Schema = Schema {
    version_table: "schema_version",
    lock: 0x6c61_6e65_6b65_6570, // "lanekeep" in ASCII
    migrations: &[Migration {
        name: "initial",
        sql: concat!(
            include_str!("0001_initial/lanes.sql"),
            include_str!("0001_initial/txs.sql"),
            include_str!("0001_initial/events.sql"),
            include_str!("0001_initial/lane_functions.sql"),
            include_str!("0001_initial/gate.sql"),
            include_str!("0001_initial/queue.sql"),
            include_str!("0001_initial/feed.sql"),
            include_str!("0001_initial/views.sql"),
        ),
    }],
    tables: &[
        "chain_header",
        "event_feed",
        "feed_head",
        "lane",
        "lane_event",
        "lane_feed",
        "managed_tx",
        "node",
        "queued_tx",
        "signer_lease",
        "signer_nonce_cursor",
        "store_identity",
        "store_restore",
        "tx_attempt",
    ],
    sequences: &[],
};

/// The schema version that this program writes.
pub const SCHEMA_VERSION: i64 = SCHEMA.version();

pub(super) async fn schema_state(client: &Client) -> Result<SchemaState, Error> {
    let found = SCHEMA.installed_version(client).await?;
    Ok(SchemaState::compare(found, SCHEMA_VERSION))
}

/// Applies what is missing, and gives the serving role (by default the current user) its rights and settings.
/// Returns the applied versions. A newer database is left alone.
pub(super) async fn migrate(
    client: &mut Client,
    role: Option<&str>,
    lease: Duration,
) -> Result<Vec<i64>, MigrateError> {
    let transaction = client.transaction().await?;
    let applied = SCHEMA.apply(&transaction, role).await?;
    set_role_settings(transaction.client(), role, lease).await?;
    transaction.commit().await?;
    Ok(applied)
}

/// The settings that serving needs, for one role in this database.
async fn set_role_settings(
    client: &Client,
    role: Option<&str>,
    lease: Duration,
) -> Result<(), Error> {
    const NAMES: &str =
        "SELECT quote_ident(coalesce($1, current_user)), quote_ident(current_database())";
    let names = client
        .query_typed_one(NAMES, &[(&role, Type::TEXT)])
        .await?;
    let (role, database): (String, String) = (names.try_get(0)?, names.try_get(1)?);
    let mut settings = Vec::new();
    let timeouts = Timeouts::from_lease(lease);
    for Setting { name, value, .. } in timeouts.settings(server_version(client).await?) {
        settings.push(format!("{name} = {value}"));
    }
    // An acceptance that was answered must survive a crash, whatever the rest of the database does. A stricter
    // value stays.
    let row = client.query_typed_one("SELECT current_setting('synchronous_commit')", &[]);
    let found: String = row.await?.try_get(0)?;
    let waits = WAITS_FOR_ALL.into_iter().find(|waits| *waits == found);
    let waits = waits.unwrap_or("on");
    settings.push(format!("synchronous_commit = {waits}"));
    // Every statement here is short. Compiling one takes longer than running it, and the planner decides to compile
    // when a table has grown and was not analysed yet.
    settings.push("jit = off".to_owned());
    for setting in settings {
        client
            .batch_execute(&format!(
                "ALTER ROLE {role} IN DATABASE {database} SET {setting}"
            ))
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_granted_to_the_serving_role() {
        assert_eq!(SCHEMA.ungranted(), [""; 0]);
    }
}
