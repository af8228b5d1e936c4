//! The schema of the books: forward-only steps, all that are missing in one transaction.

use domain::LaneKey;
use thiserror::Error;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::Param;
use super::rows::scheme_number;
use crate::scheme::SchemeKind;

/// All steps, in order. Append only: a step that was ever shipped is never edited.
const STEPS: [&str; 5] = [
    include_str!("schema.sql"),
    include_str!("keepers.sql"),
    include_str!("inlined.sql"),
    include_str!("words.sql"),
    include_str!("stints.sql"),
];

/// What the serving role needs. It makes no tables and owns none.
const TABLES: [&str; 4] = [
    "nonce_keeper",
    "nonce_lane",
    "nonce_reservation",
    "nonce_schema",
];

/// And the counters.
const SEQUENCES: [&str; 1] = ["nonce_stint"];

/// The schema that this program writes.
pub const SCHEMA_VERSION: i64 = 5;

/// Two who prepare at once wait for each other here. (Any fixed number: "lk-nonce" in ASCII.)
const LOCK: i64 = 0x6c6b_2d6e_6f6e_6365;

/// The first major with a limit for whole transactions.
const TRANSACTION_TIMEOUT_SINCE: i32 = 170_000;

/// Why the books were not prepared. Nothing has changed.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// A statement failed.
    #[error("the database refused the books of the nonce component")]
    Refused(#[from] Error),
    /// A newer program wrote them.
    #[error(
        "the books of the nonce component have version {found}, and this program knows only \
         {SCHEMA_VERSION}: run the newer program that wrote them"
    )]
    Newer {
        /// Their version.
        found: i64,
    },
}

/// Brings the books up to date in the client's default schema, in one transaction, and gives `role` its rights.
/// Without a role, whoever is logged in owns them and serves. Gives the versions that were applied.
pub async fn prepare(client: &mut Client, role: Option<&str>) -> Result<Vec<i64>, PrepareError> {
    let step = client.transaction().await?;
    // Long waits and long index builds are right here, and wrong everywhere else.
    step.batch_execute(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
         SET LOCAL idle_in_transaction_session_timeout = 0",
    )
    .await?;
    const VERSION: &str = "SELECT current_setting('server_version_num')::integer";
    let server: i32 = step.query_typed_one(VERSION, &[]).await?.try_get(0)?;
    if server >= TRANSACTION_TIMEOUT_SINCE {
        step.batch_execute("SET LOCAL transaction_timeout = 0")
            .await?;
    }
    step.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)])
        .await?;
    // Functions remember this path, so that nobody's own tables come before ours.
    step.batch_execute(
        "SELECT set_config('search_path', quote_ident(current_schema()), true); \
         SET LOCAL client_min_messages = warning; \
         CREATE TABLE IF NOT EXISTS nonce_schema ( \
           version bigint PRIMARY KEY, applied_at timestamptz NOT NULL)",
    )
    .await?;
    const FOUND: &str = "SELECT coalesce(max(version), 0) FROM nonce_schema";
    let found: i64 = step.query_typed_one(FOUND, &[]).await?.try_get(0)?;
    if found > SCHEMA_VERSION {
        return Err(PrepareError::Newer { found });
    }
    let mut applied = Vec::new();
    for (version, sql) in (1..).zip(STEPS) {
        if version <= found {
            continue;
        }
        step.batch_execute(sql).await?;
        step.query_typed(
            "INSERT INTO nonce_schema (version, applied_at) VALUES ($1, now())",
            &[(&version, Type::INT8)],
        )
        .await?;
        applied.push(version);
    }
    if let Some(role) = role {
        serve_as(step.client(), role).await?;
    }
    step.commit().await?;
    Ok(applied)
}

/// Whether the books are there and of the version that this program knows; what to do otherwise, in words.
pub async fn check(client: &Client) -> Result<(), CheckError> {
    const FOUND: &str = "SELECT to_regclass('nonce_schema') IS NOT NULL";
    let is_there: bool = client.query_typed_one(FOUND, &[]).await?.try_get(0)?;
    let found: i64 = match is_there {
        true => {
            const VERSION: &str = "SELECT coalesce(max(version), 0) FROM nonce_schema";
            client.query_typed_one(VERSION, &[]).await?.try_get(0)?
        }
        false => 0,
    };
    match found.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Less => Err(CheckError::Behind { found }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(PrepareError::Newer { found }.into()),
    }
}

/// Binds these lanes to their keeper (scheme `lane`), whether they are lent or send: from here on no other scheme lends
/// from them. Whoever comes first has a lane for ever, by its unique key. Gives the first that was another scheme's
/// before, in words; `None` when all are the keeper's.
///
/// Where there are no books nobody can lend, and nothing is written: a node needs none.
pub async fn bind_lanes(client: &Client, lanes: &[LaneKey]) -> Result<Option<String>, Error> {
    const THERE: &str = "SELECT to_regclass('nonce_lane') IS NOT NULL";
    let is_there: bool = client.query_typed_one(THERE, &[]).await?.try_get(0)?;
    if !is_there {
        return Ok(None);
    }
    // A chain whose id no bigint holds is none of the books'.
    let numbers =
        |lane: &LaneKey| Some((i64::try_from(lane.chain_id.0).ok()?, lane.signer.to_vec()));
    let (chains, signers): (Vec<i64>, Vec<Vec<u8>>) = lanes.iter().filter_map(numbers).unzip();
    let of_lane = scheme_number(SchemeKind::Lane);
    let params: [Param<'_>; 3] = [
        (&chains, Type::INT8_ARRAY),
        (&signers, Type::BYTEA_ARRAY),
        (&of_lane, Type::INT2),
    ];
    // A node that must not start binds nothing.
    if let Some(lent) = lent_elsewhere(client, &params).await? {
        return Ok(Some(lent));
    }
    // In order, so that two nodes that start at once never wait crosswise. Those that are there take no number.
    const BIND: &str = "INSERT INTO nonce_lane \
          (chain_id, signer, scheme, next_nonce, chain_nonce, holes_from, holes_to, holes_at) \
        SELECT w.chain_id, w.signer, $3::smallint, 0, 0, 0, 0, clock_timestamp() \
        FROM unnest($1, $2) AS w(chain_id, signer) \
        WHERE NOT EXISTS (SELECT FROM nonce_lane AS l \
          WHERE l.chain_id = w.chain_id AND l.signer = w.signer) \
        ORDER BY 1, 2 ON CONFLICT (chain_id, signer) DO NOTHING";
    client.query_typed(BIND, &params).await?;
    // Again, because it waited for whoever made the same lane at that moment.
    lent_elsewhere(client, &params).await
}

/// The first of these lanes that another scheme lends from, in words.
async fn lent_elsewhere(client: &Client, lanes: &[Param<'_>; 3]) -> Result<Option<String>, Error> {
    const LENT: &str = "SELECT '0x' || encode(l.signer, 'hex') || ' on chain ' || l.chain_id \
        FROM unnest($1, $2) AS w(chain_id, signer) \
        JOIN nonce_lane AS l ON l.chain_id = w.chain_id AND l.signer = w.signer \
        WHERE l.scheme <> $3 ORDER BY l.lane_id LIMIT 1";
    let found = client.query_typed(LENT, lanes).await?;
    found.first().map(|row| row.try_get(0)).transpose()
}

/// Why the books cannot be used.
#[derive(Debug, Error)]
pub enum CheckError {
    /// They are older, or not there.
    #[error(
        "the books of the nonce component have version {found}, and this program needs {SCHEMA_VERSION}: run \
         `lanekeeper migrate`"
    )]
    Behind {
        /// Their version; 0 when they are not there.
        found: i64,
    },
    /// They are newer, or do not answer.
    #[error(transparent)]
    Unusable(#[from] PrepareError),
}

impl From<tokio_postgres::Error> for CheckError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Unusable(error.into())
    }
}

async fn serve_as(client: &Client, role: &str) -> Result<(), Error> {
    const NAMES: &str = "SELECT quote_ident($1), quote_ident(current_schema())";
    let names = client
        .query_typed_one(NAMES, &[(&role, Type::TEXT)])
        .await?;
    let (to, schema): (String, String) = (names.try_get(0)?, names.try_get(1)?);
    let (tables, sequences) = (TABLES.join(", "), SEQUENCES.join(", "));
    client
        .batch_execute(&format!(
            "GRANT USAGE ON SCHEMA {schema} TO {to}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {to}; \
             GRANT USAGE ON SEQUENCE {sequences} TO {to}"
        ))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_and_every_table_is_granted() {
        assert_eq!(i64::try_from(STEPS.len()), Ok(SCHEMA_VERSION));
        let lines = STEPS.iter().flat_map(|step| step.lines());
        let made = lines.filter_map(|line| line.strip_prefix("CREATE TABLE "));
        for table in made.filter_map(|line| line.split_whitespace().next()) {
            assert!(TABLES.contains(&table), "{table} is not granted");
        }
    }
}
