//! What the server says of itself when the store is opened: writable, and with the timeouts that the
//! lease needs.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::migrations::server_version;
use super::timeouts::Timeouts;
use super::{OpenError, refused};

/// Fails with what to do when something is missing.
pub(super) async fn verify(
    database: &str,
    client: &Client,
    timeouts: &Timeouts,
) -> Result<(), OpenError> {
    const SERVER: &str =
        "SELECT pg_is_in_recovery(), inet_server_addr() IS NOT NULL, current_user::text";
    let failed = |error: tokio_postgres::Error| refused(database, &error);
    let server = client.query_typed_one(SERVER, &[]).await.map_err(failed)?;
    let (is_standby, is_tcp): (bool, bool) = (
        server.try_get(0).map_err(failed)?,
        server.try_get(1).map_err(failed)?,
    );
    if is_standby {
        return Err(OpenError::ReadOnly {
            database: database.to_owned(),
        });
    }
    let version = server_version(client).await.map_err(failed)?;
    for setting in timeouts.settings(version) {
        let found = setting_of(client, setting.name).await.map_err(failed)?;
        if (is_tcp || !setting.of_tcp) && !setting.is_kept_by(found) {
            return Err(OpenError::Timeout {
                database: database.to_owned(),
                role: server.try_get(2).map_err(failed)?,
                setting: setting.name,
                found,
                needed: setting.value,
            });
        }
    }
    Ok(())
}

/// In the setting's own unit.
async fn setting_of(client: &Client, name: &str) -> Result<i64, tokio_postgres::Error> {
    const SQL: &str = "SELECT setting::bigint FROM pg_settings WHERE name = $1";
    let row = client.query_typed_one(SQL, &[(&name, Type::TEXT)]).await?;
    row.try_get(0)
}
