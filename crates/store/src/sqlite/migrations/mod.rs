//! The schema: forward-only migrations, each in a transaction of its own, numbered and named alike
//! in every dialect.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use domain::Timestamp;

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
        name: "cluster",
        sql: include_str!("0005_cluster.sql"),
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

/// Where a database stands in relation to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaState {
    /// As this program writes it.
    Current,
    /// Older (0: empty): `migrate` brings it up to date.
    Behind {
        /// Its version.
        found: i64,
    },
    /// Written by a newer program; this one must not touch it.
    Newer {
        /// Its version.
        found: i64,
    },
}

/// Where this database stands.
pub(super) fn schema_state(conn: &Connection) -> Result<SchemaState, rusqlite::Error> {
    let found = version(conn)?;
    Ok(match found.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Less => SchemaState::Behind { found },
        std::cmp::Ordering::Equal => SchemaState::Current,
        std::cmp::Ordering::Greater => SchemaState::Newer { found },
    })
}

/// Applies what is missing; the versions that were applied. A newer database is left alone.
pub(super) fn migrate(conn: &mut Connection, now: Timestamp) -> Result<Vec<i64>, rusqlite::Error> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_version (
           version    INTEGER PRIMARY KEY,
           name       TEXT    NOT NULL,
           applied_at INTEGER NOT NULL
         ) STRICT",
    )?;
    let found = version(conn)?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS
        .iter()
        .filter(|migration| migration.version > found)
    {
        let step = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        step.execute_batch(migration.sql)?;
        step.execute(
            "INSERT INTO schema_version (version, name, applied_at) VALUES (?1, ?2, ?3)",
            (
                migration.version,
                migration.name,
                crate::encoding::bound(now.0),
            ),
        )?;
        step.commit()?;
        applied.push(migration.version);
    }
    Ok(applied)
}

fn version(conn: &Connection) -> Result<i64, rusqlite::Error> {
    let has_table = conn
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'",
            [],
            |_row| Ok(()),
        )
        .optional()?
        .is_some();
    if !has_table {
        return Ok(0);
    }
    conn.query_row(
        "SELECT coalesce(max(version), 0) FROM schema_version",
        [],
        |row| row.get(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other() {
        let numbers: Vec<i64> = MIGRATIONS
            .iter()
            .map(|migration| migration.version)
            .collect();
        assert_eq!(numbers, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn a_database_is_brought_up_to_date_once() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert_eq!(
            schema_state(&conn).unwrap(),
            SchemaState::Behind { found: 0 }
        );
        assert_eq!(
            migrate(&mut conn, Timestamp(1)).unwrap(),
            (1..=SCHEMA_VERSION).collect::<Vec<_>>()
        );
        assert_eq!(schema_state(&conn).unwrap(), SchemaState::Current);
        assert!(migrate(&mut conn, Timestamp(2)).unwrap().is_empty());
    }

    #[test]
    fn a_newer_database_is_seen_and_left_alone() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, Timestamp(1)).unwrap();
        conn.execute("INSERT INTO schema_version VALUES (99, 'future', 0)", [])
            .unwrap();
        assert_eq!(
            schema_state(&conn).unwrap(),
            SchemaState::Newer { found: 99 }
        );
        assert!(migrate(&mut conn, Timestamp(2)).unwrap().is_empty());
    }
}
