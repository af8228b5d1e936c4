//! The server under test, the databases that a benchmark creates on it, and the server's counters.

use std::time::{Duration, Instant};

use cli::failure::with_sources;
use cli::{Failure, PostgresUrl};
use serde_json::{Map, Value};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::cpu;
use crate::load::Measured;

/// The settings that a result depends on.
const SETTINGS: &[&str] = &[
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "wal_compression",
];
/// A session reports its statistics with a delay of up to this time.
const STATISTICS_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Overrides the timeouts that the migration sets for the role of the nodes.
const NO_LIMITS: &str =
    "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0";

/// A server on which databases are created.
pub(crate) struct Server {
    url: PostgresUrl,
    client: Client,
}

/// A new database.
pub(crate) struct Database {
    url: PostgresUrl,
    name: String,
    client: Client,
    /// The process that serves `client`.
    backend: i32,
    /// A connection to another database, whose queries are not counted.
    observer: Client,
    /// The server process, if it runs on this machine.
    pub(super) postmaster: Option<u32>,
}

impl Server {
    pub(crate) async fn open(url: PostgresUrl) -> Result<Self, Failure> {
        let client = connect(&url).await?;
        Ok(Self { url, client })
    }

    /// Reads [`SETTINGS`].
    pub(crate) async fn read_settings(&self) -> Result<Value, Failure> {
        let mut all = Map::new();
        for name in SETTINGS {
            const SQL: &str = "SELECT current_setting($1)";
            let row = self.client.query_one(SQL, &[name]).await;
            let text: String = column(&row.map_err(|e| query_failure(&e))?, 0)?;
            all.insert((*name).to_owned(), text.into());
        }
        Ok(all.into())
    }

    pub(crate) async fn create_database(&self) -> Result<Database, Failure> {
        let name = format!("lanekeeper_bench_{:016x}", rand::random::<u64>());
        let sql = format!("CREATE DATABASE {name}");
        let made = self.client.batch_execute(&sql).await;
        made.map_err(|e| {
            Failure::Refused(format!(
                "cannot create a database for the benchmark: {} (the role needs CREATEDB)",
                with_sources(&e)
            ))
        })?;
        let url = self.url.with_database(&name);
        let client = connect(&url).await?;
        let observer = connect(&self.url).await?;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
        let backend: i32 = column(&row.map_err(|e| query_failure(&e))?, 0)?;
        let postmaster = u32::try_from(backend).ok().and_then(cpu::find_postmaster);
        Ok(Database {
            url,
            name,
            client,
            backend,
            observer,
            postmaster,
        })
    }

    /// Drops a database, even with open connections.
    pub(crate) async fn drop_database(&self, database: Database) {
        let Database { name, client, .. } = database;
        drop(client);
        let sql = format!("DROP DATABASE {name} WITH (FORCE)");
        if let Err(error) = self.client.batch_execute(&sql).await {
            let error = with_sources(&error);
            tracing::warn!(
                database = name,
                error,
                "cannot drop the database of the benchmark: drop it by hand"
            );
        }
    }
}

impl Database {
    pub(crate) fn url(&self) -> &PostgresUrl {
        &self.url
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Keeps the dirty pages of one run out of the next.
    pub(crate) async fn checkpoint(&self) -> Result<(), Failure> {
        match self.client.batch_execute("CHECKPOINT").await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Needs a privilege; without it results vary more.
                tracing::debug!(%error, "cannot run CHECKPOINT before the run");
                Ok(())
            }
        }
    }

    /// Does after a prefill what autovacuum would do during the run.
    pub(super) async fn vacuum(&self) -> Result<(), Failure> {
        let vacuumed = self.client.batch_execute("VACUUM ANALYZE");
        vacuumed.await.map_err(|e| query_failure(&e))
    }

    pub(super) async fn count_rows(&self) -> Result<u64, Failure> {
        query_count(&self.client, "SELECT count(*) FROM managed_tx").await
    }

    pub(super) async fn count_lanes(&self) -> Result<u64, Failure> {
        query_count(&self.client, "SELECT count(*) FROM lane").await
    }

    /// The transactions of this database so far.
    pub(crate) async fn count_transactions(&self) -> Result<u64, Failure> {
        const SQL: &str =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        let row = self.observer.query_one(SQL, &[&self.name]).await;
        let count: i64 = column(&row.map_err(|e| query_failure(&e))?, 0)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

impl Database {
    /// Waits until no other session is connected: a session reports its last statistics when it ends.
    pub(crate) async fn wait_until_idle(&self) -> Result<(), Failure> {
        const SQL: &str = "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = $1 AND pid <> $2 AND backend_type = 'client backend'";
        let deadline = Instant::now() + STATISTICS_TIMEOUT;
        loop {
            let row = self
                .observer
                .query_one(SQL, &[&self.name, &self.backend])
                .await;
            let others: i64 = column(&row.map_err(|e| query_failure(&e))?, 0)?;
            if others == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Failure::Refused(format!(
                    "{others} sessions of the benchmark do not end: their transactions cannot be counted"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The counters of the server at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// The position in the write-ahead log.
    wal: u64,
    wal_records: u64,
    page_images: u64,
    transactions: u64,
    txs: u64,
    rows: u64,
    hot_updates: u64,
    index_entries: u64,
}

/// What the server wrote during a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) wal_bytes: u64,
    pub(super) wal_records: u64,
    /// Full-page images: each page once after a checkpoint.
    pub(super) page_images: u64,
    /// Their size, where `pg_walinspect` is available.
    pub(super) page_image_bytes: Option<u64>,
    pub(super) transactions: u64,
    pub(super) rows_inserted: u64,
    pub(super) hot_updates: u64,
    pub(super) index_entries: u64,
}

impl Counters {
    pub(super) async fn read(database: &Database) -> Result<Self, Failure> {
        // An update that is not HOT adds an entry to every index, like an insert.
        const TABLES: &str = "SELECT \
             coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'managed_tx'), 0)::bigint, \
             coalesce(sum(n_tup_ins), 0)::bigint, \
             coalesce(sum(n_tup_hot_upd), 0)::bigint, \
             coalesce(sum((n_tup_ins + n_tup_upd - n_tup_hot_upd) * \
               (SELECT count(*) FROM pg_index WHERE indrelid = relid)), 0)::bigint \
             FROM pg_stat_user_tables WHERE relname NOT LIKE 'bench%'";
        const LOG: &str = "SELECT wal_records, wal_fpi FROM pg_stat_wal";
        let tables = database.client.query_one(TABLES, &[]).await;
        let tables = tables.map_err(|e| query_failure(&e))?;
        let log = database.client.query_one(LOG, &[]).await;
        let log = log.map_err(|e| query_failure(&e))?;
        let count = |row: &Row, at: usize| -> Result<u64, Failure> {
            Ok(u64::try_from(column::<i64>(row, at)?).unwrap_or(0))
        };
        Ok(Self {
            wal: wal_position(database).await?,
            transactions: database.count_transactions().await?,
            wal_records: count(&log, 0)?,
            page_images: count(&log, 1)?,
            txs: count(&tables, 0)?,
            rows: count(&tables, 1)?,
            hot_updates: count(&tables, 2)?,
            index_entries: count(&tables, 3)?,
        })
    }

    /// What was written since. Sessions report their statistics late, so that this waits for them; the
    /// position in the log is always exact and read first.
    pub(super) async fn written_since(
        self,
        database: &Database,
        measured: &Measured,
    ) -> Result<Written, Failure> {
        let wal = wal_position(database).await?;
        let deadline = Instant::now() + STATISTICS_TIMEOUT;
        let now = loop {
            let now = Self::read(database).await?;
            let is_complete = now.txs.saturating_sub(self.txs) >= measured.accepted_total;
            if is_complete || Instant::now() >= deadline {
                break now;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        Ok(Written {
            wal_bytes: wal.saturating_sub(self.wal),
            wal_records: now.wal_records.saturating_sub(self.wal_records),
            page_images: now.page_images.saturating_sub(self.page_images),
            page_image_bytes: page_image_bytes(database, self.wal, wal).await,
            transactions: now.transactions.saturating_sub(self.transactions),
            rows_inserted: now.rows.saturating_sub(self.rows),
            hot_updates: now.hot_updates.saturating_sub(self.hot_updates),
            index_entries: now.index_entries.saturating_sub(self.index_entries),
        })
    }
}

/// Reads the log itself; `None` where `pg_walinspect` is missing or the log was removed.
async fn page_image_bytes(database: &Database, from: u64, to: u64) -> Option<u64> {
    const EXTENSION: &str = "CREATE EXTENSION IF NOT EXISTS pg_walinspect";
    const SQL: &str = "SELECT coalesce(sum(fpi_size), 0)::bigint \
         FROM pg_get_wal_stats('0/0'::pg_lsn + $1::text::numeric, '0/0'::pg_lsn + $2::text::numeric)";
    let inspection = async {
        database.client.batch_execute(EXTENSION).await?;
        let (from, to) = (from.to_string(), to.to_string());
        database.client.query_one(SQL, &[&from, &to]).await
    };
    match inspection.await {
        Ok(row) => u64::try_from(column::<i64>(&row, 0).ok()?).ok(),
        Err(error) => {
            tracing::debug!(
                error = with_sources(&error),
                "cannot inspect the write-ahead log"
            );
            None
        }
    }
}

async fn wal_position(database: &Database) -> Result<u64, Failure> {
    const SQL: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    query_count(&database.client, SQL).await
}

async fn connect(url: &PostgresUrl) -> Result<Client, Failure> {
    let config: Config = url.secret().parse().map_err(|e: tokio_postgres::Error| {
        Failure::Usage(format!("--store {}: {}", url.redacted(), with_sources(&e)))
    })?;
    let connected = config.connect(NoTls).await;
    let (client, connection) = connected.map_err(|e| {
        Failure::Unreachable(format!(
            "cannot connect to {}: {}",
            url.redacted(),
            with_sources(&e)
        ))
    })?;
    // The client reports the errors of the connection too.
    tokio::spawn(connection);
    client
        .batch_execute(NO_LIMITS)
        .await
        .map_err(|e| query_failure(&e))?;
    Ok(client)
}

async fn query_count(client: &Client, sql: &str) -> Result<u64, Failure> {
    let row = client
        .query_one(sql, &[])
        .await
        .map_err(|e| query_failure(&e))?;
    Ok(u64::try_from(column::<i64>(&row, 0)?).unwrap_or(0))
}

fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    at: usize,
) -> Result<T, Failure> {
    row.try_get(at).map_err(|e| query_failure(&e))
}

pub(crate) fn query_failure(error: &tokio_postgres::Error) -> Failure {
    Failure::Refused(format!(
        "a query of the benchmark failed: {}",
        with_sources(error)
    ))
}
