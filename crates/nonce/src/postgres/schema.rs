//! The schema of the ledger.

use domain::LaneKey;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use postgres_client::{MigrateError, Migration, Schema};
use thiserror::Error;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::Param;
use super::rows::scheme_number;
use crate::scheme::SchemeKind;

const SCHEMA: Schema = Schema {
    version_table: "nonce_schema_version",
    lock: 0x6c6b_2d6e_6f6e_6365, // "lk-nonce" in ASCII
    migrations: &[Migration {
        name: "initial",
        sql: concat!(
            include_str!("schema/tables.sql"),
            include_str!("schema/reservations.sql"),
            include_str!("schema/block_holders.sql"),
            include_str!("schema/marks.sql"),
            include_str!("schema/verdicts.sql"),
            include_str!("schema/views.sql"),
        ),
    }],
    tables: &["nonce_block_holder", "nonce_lane", "nonce_reservation"],
    sequences: &["nonce_allocation"],
};

/// The table that binds lanes to schemes.
const LANES: &str = "nonce_lane";

/// The schema version that this program needs.
pub const SCHEMA_VERSION: i64 = SCHEMA.version();

/// Why the ledger cannot be used. Nothing has changed.
#[derive(Debug, Error)]
pub enum SchemaError {
    /// A statement failed.
    #[error("the database refused a statement about the schema of the nonce component")]
    Refused(#[from] Error),
    /// It is not migrated.
    #[error(
        "the nonce component's schema has version {found}, and this program needs {SCHEMA_VERSION}: run \
         `lanekeeper migrate`"
    )]
    Behind {
        /// Its version; 0 when there is none.
        found: i64,
    },
    /// It has tables, but no version.
    #[error(
        "the database has tables of the nonce component ({LANES}), but no version of their schema in \
         nonce_schema_version: their reservations cannot be read. Restore that table from a backup; if nothing was \
         ever reserved there, drop the component's tables and run `lanekeeper migrate`"
    )]
    Unversioned,
    /// A newer program has migrated it.
    #[error(
        "the nonce component's schema has version {found}, and this program knows only {SCHEMA_VERSION}: run the \
         newer program that migrated it"
    )]
    Newer {
        /// Its version.
        found: i64,
    },
}

/// Migrates the ledger in the client's default schema, in one transaction, and grants `role` what serving needs.
/// Without a role the current user owns the tables and serves. Returns the applied versions.
pub fn prepare<'a>(
    client: &'a mut Client,
    role: Option<&'a str>,
) -> BoxFuture<'a, Result<Vec<i64>, SchemaError>> {
    async move {
        let transaction = client.transaction().await?;
        let applied = SCHEMA.apply(&transaction, role).await;
        let applied = applied.map_err(|error| match error {
            MigrateError::Refused(error) => SchemaError::Refused(error),
            MigrateError::Newer { found } => SchemaError::Newer { found },
        })?;
        transaction.commit().await?;
        Ok(applied)
    }
    .boxed()
}

/// Fails unless the ledger has the version that this program needs.
pub async fn check(client: &Client) -> Result<(), SchemaError> {
    let found = SCHEMA.installed_version(client).await?;
    match found.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Less => Err(SchemaError::Behind { found }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(SchemaError::Newer { found }),
    }
}

/// Binds these lanes to scheme `lane`, that is, to their keeper: from here on no other scheme reserves their nonces. The
/// first scheme has a lane for ever, by its unique key. Returns a description of the first lane that already belongs to
/// another scheme; `None` when all belong to their keeper.
///
/// Without a ledger no scheme can reserve, and nothing is written: a node needs none. A ledger without a version is an
/// error: its lanes may have holders.
pub fn bind_lanes<'a>(
    client: &'a Client,
    lanes: &'a [LaneKey],
) -> BoxFuture<'a, Result<Option<String>, SchemaError>> {
    async move {
        if SCHEMA.installed_version(client).await? == 0 {
            const HAS_TABLE: &str = "SELECT to_regclass($1) IS NOT NULL";
            let row = client
                .query_typed_one(HAS_TABLE, &[(&LANES, Type::TEXT)])
                .await?;
            return match row.try_get(0)? {
                true => Err(SchemaError::Unversioned),
                false => Ok(None),
            };
        }
        // The ledger holds no chain whose id exceeds a bigint.
        let numbers =
            |lane: &LaneKey| Some((i64::try_from(lane.chain_id.0).ok()?, lane.signer.to_vec()));
        let (chains, signers): (Vec<i64>, Vec<Vec<u8>>) = lanes.iter().filter_map(numbers).unzip();
        let lane_scheme = scheme_number(SchemeKind::Lane);
        let params: [Param<'_>; 3] = [
            (&chains, Type::INT8_ARRAY),
            (&signers, Type::BYTEA_ARRAY),
            (&lane_scheme, Type::INT2),
        ];
        // A node that must not start binds nothing.
        if let Some(lane) = find_lane_of_other_scheme(client, &params).await? {
            return Ok(Some(lane));
        }
        // In order, so that two nodes that start at once never deadlock. Existing lanes consume no lane_id.
        const BIND: &str = "INSERT INTO nonce_lane \
          (chain_id, signer, scheme, next_nonce, chain_nonce, gaps_from, gaps_to, gaps_at) \
        SELECT w.chain_id, w.signer, $3::smallint, 0, 0, 0, 0, clock_timestamp() \
        FROM unnest($1, $2) AS w(chain_id, signer) \
        WHERE NOT EXISTS (SELECT FROM nonce_lane AS l \
          WHERE l.chain_id = w.chain_id AND l.signer = w.signer) \
        ORDER BY 1, 2 ON CONFLICT (chain_id, signer) DO NOTHING";
        client.query_typed(BIND, &params).await?;
        // Again, because the insert waits for a concurrent insert of the same lane.
        Ok(find_lane_of_other_scheme(client, &params).await?)
    }
    .boxed()
}

/// The first of these lanes that belongs to another scheme, for people.
async fn find_lane_of_other_scheme(
    client: &Client,
    lanes: &[Param<'_>; 3],
) -> Result<Option<String>, Error> {
    const SQL: &str = "SELECT '0x' || encode(l.signer, 'hex') || ' on chain ' || l.chain_id \
        FROM unnest($1, $2) AS w(chain_id, signer) \
        JOIN nonce_lane AS l ON l.chain_id = w.chain_id AND l.signer = w.signer \
        WHERE l.scheme <> $3 ORDER BY l.lane_id LIMIT 1";
    let found = client.query_typed(SQL, lanes).await?;
    found.first().map(|row| row.try_get(0)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_and_sequence_is_granted_to_the_serving_role() {
        assert_eq!(SCHEMA.ungranted(), [""; 0]);
    }
}
