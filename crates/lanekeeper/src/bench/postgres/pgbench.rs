//! pgbench on the same server: how fast rows like ours get in without anything of ours.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::super::accept::spinner;
use super::database::{Database, failed};
use crate::failure::Failure;

/// Clients that insert one row per transaction.
pub(in crate::bench) const SINGLE_CLIENTS: u32 = 64;
/// Clients that insert [`BATCH_ROWS`] rows per transaction.
pub(super) const BATCH_CLIENTS: u32 = 4;
pub(super) const BATCH_ROWS: u32 = 500;
/// Threads of pgbench: as many as the cores that such figures are made for.
const THREADS: u32 = 2;
/// Where Debian keeps the programs of each major.
const DEBIAN: &str = "/usr/lib/postgresql";

pub(in crate::bench) struct PgBench {
    program: PathBuf,
}

/// A table with the columns and indexes of `managed_tx`, and how rows get into it.
pub(super) struct Table<'d> {
    database: &'d Database,
    /// One row with a key of pgbench's.
    single: String,
    /// Many rows at once.
    batch: String,
}

impl PgBench {
    pub(in crate::bench) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let found = match given {
            Some(path) => Some(path.to_owned()).filter(|path| path.is_file()),
            None => in_usual_places(),
        };
        found.map(|program| Self { program }).ok_or_else(|| {
            Failure::Usage(
                "pgbench is not there: install PostgreSQL's server package, or give --pgbench PATH"
                    .into(),
            )
        })
    }

    /// Rows per second, one per transaction.
    pub(super) async fn single(
        &self,
        table: &Table<'_>,
        clients: u32,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let bar = spinner("pgbench, one row per commit");
        let rate = self
            .run(table.database, &table.single, clients, duration)
            .await;
        bar.finish_and_clear();
        rate
    }

    /// Rows per second, [`BATCH_ROWS`] per transaction.
    pub(super) async fn batches(
        &self,
        table: &Table<'_>,
        clients: u32,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let bar = spinner("pgbench, 500 rows per commit");
        let rate = self
            .run(table.database, &table.batch, clients, duration)
            .await;
        bar.finish_and_clear();
        rate.map(|transactions| transactions * f64::from(BATCH_ROWS))
    }

    /// Transactions per second of any script.
    pub(in crate::bench) async fn run(
        &self,
        database: &Database,
        script: &str,
        clients: u32,
        duration: Duration,
    ) -> Result<f64, Failure> {
        database.checkpoint().await?;
        let mut file = NamedTempFile::new().map_err(|e| Failure::refused("pgbench", &e))?;
        file.write_all(script.as_bytes())
            .map_err(|e| Failure::refused("pgbench", &e))?;
        let seconds = duration.as_secs().max(1).to_string();
        let mut command = Command::new(&self.program);
        command
            // Prepared: the strongest limit, because nothing is parsed or planned twice.
            .args(["--no-vacuum", "--protocol=prepared", "--time", &seconds])
            .args(["--client", &clients.to_string()])
            .args(["--jobs", &THREADS.min(clients).to_string(), "--file"])
            .arg(file.path())
            .envs(environment(database)?)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = command
            .output()
            .await
            .map_err(|e| Failure::refused(&self.program.display().to_string(), &e))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        match (output.status.success(), per_second(&said)) {
            (true, Some(rate)) => Ok(rate),
            (true, None) | (false, _) => {
                let last = complained.lines().last().unwrap_or_default().to_owned();
                Err(Failure::Refused(format!("pgbench failed: {last}")))
            }
        }
    }
}

impl<'d> Table<'d> {
    /// Made after a row that a node has just written: the same columns, indexes, sizes and space.
    pub(super) async fn like_ours(database: &'d Database) -> Result<Self, Failure> {
        const MAKE: &str = "CREATE TABLE bench_row (LIKE managed_tx INCLUDING ALL); \
             CREATE SEQUENCE bench_key CACHE 1000";
        const SPACE: &str = "SELECT coalesce(array_to_string(reloptions, ', '), '') \
             FROM pg_class WHERE oid = 'managed_tx'::regclass";
        // Each column of the newest row, as a literal.
        const ROW: &str = "SELECT c.column_name::text, \
               coalesce(quote_literal(to_jsonb(t) ->> c.column_name::text), 'NULL') \
               || '::' || format_type(a.atttypid, a.atttypmod) \
             FROM (SELECT * FROM managed_tx ORDER BY tx_id DESC LIMIT 1) t \
             CROSS JOIN information_schema.columns c \
             JOIN pg_attribute a ON a.attrelid = 'managed_tx'::regclass AND a.attname = c.column_name \
             WHERE c.table_name = 'managed_tx' AND c.table_schema = current_schema() \
             ORDER BY c.ordinal_position";
        let client = database.client();
        client.batch_execute(MAKE).await.map_err(|e| failed(&e))?;
        let space = client.query_one(SPACE, &[]).await.map_err(|e| failed(&e))?;
        let space: String = space.try_get(0).map_err(|e| failed(&e))?;
        if !space.is_empty() {
            let set = format!("ALTER TABLE bench_row SET ({space})");
            client.batch_execute(&set).await.map_err(|e| failed(&e))?;
        }
        let rows = client.query(ROW, &[]).await.map_err(|e| failed(&e))?;
        let columns: Result<Vec<(String, String)>, _> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect();
        let columns = columns.map_err(|e| failed(&e))?;
        if columns.is_empty() {
            return Err(Failure::Refused("no row was accepted to be like".into()));
        }
        let single = values(&columns, "md5(:key::bigint::text)");
        let batch = values(&columns, "md5(random()::text || random()::text)");
        Ok(Self {
            database,
            single: format!(
                "\\set key random(1, 9223372036854775807)\nINSERT INTO bench_row VALUES ({single});\n"
            ),
            batch: format!(
                "INSERT INTO bench_row SELECT {batch} FROM generate_series(1, {BATCH_ROWS});\n"
            ),
        })
    }
}

/// A row like the given one under keys of its own: random where ours are, rising where ours are.
fn values(columns: &[(String, String)], request_id: &str) -> String {
    let value = |(name, literal): &(String, String)| match name.as_str() {
        "request_id" => request_id.to_owned(),
        "nonce" => "nextval('bench_key')".to_owned(),
        "tx_id" => {
            "('00000000-0000-7000-8000-' || lpad(to_hex(nextval('bench_key')), 12, '0'))::uuid"
                .to_owned()
        }
        _ => literal.clone(),
    };
    let values: Vec<String> = columns.iter().map(value).collect();
    values.join(", ")
}

fn in_usual_places() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path)
        .map(|folder| folder.join("pgbench"))
        .find(|program| program.is_file());
    in_path.or_else(|| {
        let folders = std::fs::read_dir(DEBIAN).ok()?;
        let mut found: Vec<PathBuf> = folders
            .filter_map(|entry| Some(entry.ok()?.path().join("bin/pgbench")))
            .filter(|program| program.is_file())
            .collect();
        found.sort();
        found.pop()
    })
}

/// Where the database is, for programs of PostgreSQL. Not by argument: everybody can read those.
fn environment(database: &Database) -> Result<BTreeMap<&'static str, String>, Failure> {
    let config: Config = (database.url().secret().parse()).map_err(|e| failed(&e))?;
    let mut all = BTreeMap::new();
    let host = config.get_hosts().first().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    all.extend(host.map(|host| ("PGHOST", host)));
    all.extend(
        config
            .get_ports()
            .first()
            .map(|port| ("PGPORT", port.to_string())),
    );
    all.extend(config.get_user().map(|user| ("PGUSER", user.to_owned())));
    let password = config.get_password();
    all.extend(password.map(|p| ("PGPASSWORD", String::from_utf8_lossy(p).into_owned())));
    all.extend(
        config
            .get_dbname()
            .map(|name| ("PGDATABASE", name.to_owned())),
    );
    // The role has the timeouts of nodes.
    let limits = "-c statement_timeout=0 -c lock_timeout=0";
    all.insert("PGOPTIONS", limits.to_owned());
    Ok(all)
}

fn per_second(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.starts_with("tps = "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let output = "latency average = 3.9 ms\ntps = 16432.1 (without initial connection time)\n";
        assert_eq!(per_second(output), Some(16_432.1));
        assert_eq!(per_second("pgbench: error"), None);
    }

    #[test]
    fn keys_are_new_and_the_rest_is_copied() {
        let columns = [
            ("lane_id", "'1'::bigint"),
            ("request_id", "'a'::text"),
            ("nonce", "'7'::bigint"),
        ];
        let columns = columns.map(|(name, literal)| (name.to_owned(), literal.to_owned()));
        assert_eq!(
            values(&columns, "md5('x')"),
            "'1'::bigint, md5('x'), nextval('bench_key')"
        );
    }
}
