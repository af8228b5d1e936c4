//! Checks of the server when the store is opened: writable, durable, and with the timeouts that the lease
//! needs.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::{OpenError, refused};
use postgres_client::{Timeouts, server_version};

/// The values of `synchronous_commit` with which no acknowledged commit is lost in a crash or a failover.
pub(super) const WAITS_FOR_ALL: [&str; 2] = ["on", "remote_apply"];

/// Fails with instructions when something is missing.
pub(super) async fn verify(
    database: &str,
    client: &Client,
    timeouts: &Timeouts,
) -> Result<(), OpenError> {
    const SERVER: &str = "SELECT pg_is_in_recovery(), inet_server_addr() IS NOT NULL, current_user::text, \
         current_setting('synchronous_commit'), \
         current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean";
    let failed = |error: tokio_postgres::Error| refused(database, &error);
    let server = client.query_typed_one(SERVER, &[]).await.map_err(failed)?;
    let is_standby: bool = server.try_get(0).map_err(failed)?;
    let is_tcp: bool = server.try_get(1).map_err(failed)?;
    let role: String = server.try_get(2).map_err(failed)?;
    let synchronous_commit: String = server.try_get(3).map_err(failed)?;
    let is_durable: bool = server.try_get(4).map_err(failed)?;
    let database = database.to_owned();
    if is_standby {
        return Err(OpenError::ReadOnly { database });
    }
    let version = server_version(client).await.map_err(failed)?;
    for setting in timeouts.settings(version) {
        let found = setting_of(client, setting.name).await.map_err(failed)?;
        if (is_tcp || !setting.is_tcp_only) && !setting.is_satisfied_by(found) {
            return Err(OpenError::Timeout {
                database,
                role,
                setting: setting.name,
                found,
                needed: setting.value,
            });
        }
    }
    // An acknowledged commit must be on disk, and at the synchronous standbys where there are any.
    if !WAITS_FOR_ALL.contains(&&*synchronous_commit) {
        return Err(OpenError::NotDurable {
            database,
            role,
            found: synchronous_commit,
        });
    }
    if !is_durable {
        tracing::warn!(
            database,
            "the server runs without fsync or full_page_writes: a power cut may lose accepted transactions"
        );
    }
    Ok(())
}

/// In the setting's own unit.
async fn setting_of(client: &Client, name: &str) -> Result<i64, tokio_postgres::Error> {
    const SQL: &str = "SELECT setting::bigint FROM pg_settings WHERE name = $1";
    let row = client.query_typed_one(SQL, &[(&name, Type::TEXT)]).await?;
    row.try_get(0)
}
