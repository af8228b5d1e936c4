//! The schema: forward-only migrations, each in a transaction of its own, numbered and named alike
//! in every dialect.

use rusqlite::{Connection, TransactionBehavior};

use domain::Timestamp;

/// One step of the schema.
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

/// All steps, in order. Append only: a released step is never edited.
const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "initial",
    sql: concat!(
        include_str!("0001_initial/lanes.sql"),
        include_str!("0001_initial/txs.sql"),
        include_str!("0001_initial/events.sql"),
        include_str!("0001_initial/views.sql"),
    ),
}];

/// The schema version that this program writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// A database's schema, compared with this program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaState {
    /// As this program writes it.
    Current,
    /// Older (0: empty): `migrate` brings it up to date.
    Behind { found: i64 },
    /// Written by a newer program; this one must not touch it.
    Newer { found: i64 },
}

impl SchemaState {
    pub(crate) fn compare(found: i64, needed: i64) -> Self {
        match found.cmp(&needed) {
            std::cmp::Ordering::Less => Self::Behind { found },
            std::cmp::Ordering::Equal => Self::Current,
            std::cmp::Ordering::Greater => Self::Newer { found },
        }
    }
}

pub(super) fn schema_state(conn: &Connection) -> Result<SchemaState, rusqlite::Error> {
    Ok(SchemaState::compare(version(conn)?, SCHEMA_VERSION))
}

/// Applies the missing migrations and returns their versions. A newer database is left alone.
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
    for migration in MIGRATIONS.iter().filter(|step| step.version > found) {
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
    if !conn.table_exists(None, "schema_version")? {
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
    fn versions_are_consecutive() {
        let numbers: Vec<i64> = MIGRATIONS
            .iter()
            .map(|migration| migration.version)
            .collect();
        assert_eq!(numbers, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn database_is_migrated_once() {
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
    fn newer_database_is_detected_and_left_alone() {
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
