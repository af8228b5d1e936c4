//! pgbench on the same server: how fast it inserts rows of the shape of `managed_tx`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cli::Failure;
use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::database::{Database, query_failure};
use crate::accept::spinner;

/// Clients that insert one row per transaction.
pub(crate) const SINGLE_CLIENTS: u32 = 64;
/// Clients that insert [`BATCH_ROWS`] rows per transaction.
pub(super) const BATCH_CLIENTS: u32 = 4;
pub(super) const BATCH_ROWS: u32 = 500;
/// Threads of pgbench: the number of cores that these benchmarks are made for.
const THREADS: u32 = 2;
/// The folder of all major versions on Debian.
const DEBIAN: &str = "/usr/lib/postgresql";

pub(crate) struct PgBench {
    program: PathBuf,
}

/// A table with the columns and indexes of `managed_tx`, and scripts that insert into it.
pub(super) struct Table<'d> {
    database: &'d Database,
    /// Inserts one row.
    single: String,
    /// Inserts [`BATCH_ROWS`] rows.
    batch: String,
}

impl PgBench {
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let found = match given {
            Some(path) => Some(path.to_owned()).filter(|path| path.is_file()),
            None => find_program(),
        };
        found.map(|program| Self { program }).ok_or_else(|| {
            Failure::Usage(
                "pgbench was not found: install PostgreSQL's server package, or give --pgbench PATH"
                    .into(),
            )
        })
    }

    /// Measures rows per second, one per transaction.
    pub(super) async fn measure_single(
        &self,
        table: &Table<'_>,
        clients: u32,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let bar = spinner("pgbench, one row per commit");
        let rate = self
            .run_script(table.database, &table.single, clients, duration)
            .await;
        bar.finish_and_clear();
        rate
    }

    /// Measures rows per second, [`BATCH_ROWS`] per transaction.
    pub(super) async fn measure_batches(
        &self,
        table: &Table<'_>,
        clients: u32,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let bar = spinner("pgbench, 500 rows per commit");
        let rate = self
            .run_script(table.database, &table.batch, clients, duration)
            .await;
        bar.finish_and_clear();
        rate.map(|transactions| transactions * f64::from(BATCH_ROWS))
    }

    /// Measures the transactions per second of a script.
    pub(crate) async fn run_script(
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
            // Prepared statements: the highest limit, because nothing is parsed or planned twice.
            .args(["--no-vacuum", "--protocol=prepared", "--time", &seconds])
            .args(["--client", &clients.to_string()])
            .args(["--jobs", &THREADS.min(clients).to_string(), "--file"])
            .arg(file.path())
            .envs(connection_variables(database)?)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = command
            .output()
            .await
            .map_err(|e| Failure::refused(&self.program.display().to_string(), &e))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match (output.status.success(), parse_rate(&stdout)) {
            (true, Some(rate)) => Ok(rate),
            (true, None) | (false, _) => {
                let last = stderr.lines().last();
                let why =
                    last.unwrap_or("it completed no transaction, so the server is overloaded");
                Err(Failure::Refused(format!("pgbench failed: {why}")))
            }
        }
    }
}

impl<'d> Table<'d> {
    /// Creates a table like `managed_tx`, with rows like the newest one that a node has written.
    pub(super) async fn create_like_managed_tx(database: &'d Database) -> Result<Self, Failure> {
        const CREATE: &str = "CREATE TABLE bench_row (LIKE managed_tx INCLUDING ALL); \
             CREATE SEQUENCE bench_key CACHE 1000";
        const OPTIONS: &str = "SELECT coalesce(array_to_string(reloptions, ', '), '') \
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
        client
            .batch_execute(CREATE)
            .await
            .map_err(|e| query_failure(&e))?;
        let options = client
            .query_one(OPTIONS, &[])
            .await
            .map_err(|e| query_failure(&e))?;
        let options: String = options.try_get(0).map_err(|e| query_failure(&e))?;
        if !options.is_empty() {
            let set = format!("ALTER TABLE bench_row SET ({options})");
            client
                .batch_execute(&set)
                .await
                .map_err(|e| query_failure(&e))?;
        }
        let rows = client
            .query(ROW, &[])
            .await
            .map_err(|e| query_failure(&e))?;
        let columns: Result<Vec<(String, String)>, _> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect();
        let columns = columns.map_err(|e| query_failure(&e))?;
        if columns.is_empty() {
            return Err(Failure::Refused(
                "managed_tx is empty: no request was accepted before pgbench".into(),
            ));
        }
        let single = row_values(&columns, "md5(:key::bigint::text)");
        let batch = row_values(&columns, "md5(random()::text || random()::text)");
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

/// The values of a row like the given one with new keys: random or ascending as in `managed_tx`.
fn row_values(columns: &[(String, String)], request_id: &str) -> String {
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

fn find_program() -> Option<PathBuf> {
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

/// The connection settings for PostgreSQL programs. Not arguments, which every user can read.
fn connection_variables(database: &Database) -> Result<BTreeMap<&'static str, String>, Failure> {
    let config: Config = (database.url().secret().parse()).map_err(|e| query_failure(&e))?;
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
    // Overrides the timeouts of the role of the nodes.
    let limits = "-c statement_timeout=0 -c lock_timeout=0";
    all.insert("PGOPTIONS", limits.to_owned());
    Ok(all)
}

fn parse_rate(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.starts_with("tps = "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_parsed() {
        let output = "latency average = 3.9 ms\ntps = 16432.1 (without initial connection time)\n";
        assert_eq!(parse_rate(output), Some(16_432.1));
        assert_eq!(parse_rate("pgbench: error"), None);
    }

    #[test]
    fn keys_are_new_and_other_columns_are_copied() {
        let columns = [
            ("lane_id", "'1'::bigint"),
            ("request_id", "'a'::text"),
            ("nonce", "'7'::bigint"),
        ];
        let columns = columns.map(|(name, literal)| (name.to_owned(), literal.to_owned()));
        assert_eq!(
            row_values(&columns, "md5('x')"),
            "'1'::bigint, md5('x'), nextval('bench_key')"
        );
    }
}
