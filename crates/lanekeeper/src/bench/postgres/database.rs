//! The server under test, the databases that a bench makes on it, and what the server counts.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::super::load::Measured;
use super::cpu;
use crate::config::PostgresUrl;
use crate::failure::{Failure, with_sources};

/// The settings without which a figure says nothing.
const SETTINGS: &[&str] = &[
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "wal_compression",
];
/// A session may keep its counts to itself for so long.
const COUNTS_WITHIN: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The migration gives the role the timeouts of nodes, and a bench takes longer.
const NO_LIMITS: &str =
    "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0";

/// A server on which databases are made.
pub(in crate::bench) struct Server {
    url: PostgresUrl,
    client: Client,
}

/// A new database of our own.
pub(in crate::bench) struct Database {
    url: PostgresUrl,
    name: String,
    client: Client,
    /// The process that serves `client`.
    backend: i32,
    /// Looks from outside, so that what it asks is not counted.
    outside: Client,
    /// When the server runs on this machine.
    pub(super) postmaster: Option<u32>,
}

impl Server {
    pub(in crate::bench) async fn open(url: PostgresUrl) -> Result<Self, Failure> {
        let client = connect(&url).await?;
        Ok(Self { url, client })
    }

    /// The settings that matter.
    pub(in crate::bench) async fn describe(&self) -> Result<Value, Failure> {
        let mut all = Map::new();
        for name in SETTINGS {
            const SQL: &str = "SELECT current_setting($1)";
            let row = self.client.query_one(SQL, &[name]).await;
            let text: String = value(&row.map_err(|e| failed(&e))?, 0)?;
            all.insert((*name).to_owned(), text.into());
        }
        Ok(all.into())
    }

    pub(in crate::bench) async fn create(&self) -> Result<Database, Failure> {
        let name = format!("lanekeeper_bench_{:016x}", rand::random::<u64>());
        let sql = format!("CREATE DATABASE {name}");
        let made = self.client.batch_execute(&sql).await;
        made.map_err(|e| {
            Failure::Refused(format!(
                "a database for the bench cannot be made: {} (the role needs CREATEDB)",
                with_sources(&e)
            ))
        })?;
        let url = self.url.with_database(&name);
        let client = connect(&url).await?;
        let outside = connect(&self.url).await?;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
        let backend: i32 = value(&row.map_err(|e| failed(&e))?, 0)?;
        let postmaster = u32::try_from(backend).ok().and_then(cpu::postmaster_of);
        Ok(Database {
            url,
            name,
            client,
            backend,
            outside,
            postmaster,
        })
    }

    /// Drops it, whoever is still connected.
    pub(in crate::bench) async fn discard(&self, database: Database) {
        let Database { name, client, .. } = database;
        drop(client);
        let sql = format!("DROP DATABASE {name} WITH (FORCE)");
        if let Err(error) = self.client.batch_execute(&sql).await {
            let error = with_sources(&error);
            tracing::warn!(database = name, error, "the bench's database stays behind");
        }
    }
}

impl Database {
    pub(in crate::bench) fn url(&self) -> &PostgresUrl {
        &self.url
    }

    pub(in crate::bench) fn client(&self) -> &Client {
        &self.client
    }

    /// No run inherits the pages of another.
    pub(in crate::bench) async fn checkpoint(&self) -> Result<(), Failure> {
        match self.client.batch_execute("CHECKPOINT").await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Only some roles may; the figures are only less even without it.
                tracing::debug!(%error, "no checkpoint before the run");
                Ok(())
            }
        }
    }

    /// After a fill: what autovacuum would do in the middle of the run.
    pub(super) async fn tidy_up(&self) -> Result<(), Failure> {
        let tidied = self.client.batch_execute("VACUUM ANALYZE");
        tidied.await.map_err(|e| failed(&e))
    }

    pub(super) async fn count_rows(&self) -> Result<u64, Failure> {
        number(&self.client, "SELECT count(*) FROM managed_tx").await
    }

    pub(super) async fn count_lanes(&self) -> Result<u64, Failure> {
        number(&self.client, "SELECT count(*) FROM lane").await
    }

    /// Transactions that the database has seen.
    pub(in crate::bench) async fn transactions(&self) -> Result<u64, Failure> {
        const SQL: &str =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        let row = self.outside.query_one(SQL, &[&self.name]).await;
        let count: i64 = value(&row.map_err(|e| failed(&e))?, 0)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

impl Database {
    /// Waits until nobody else is connected: a session tells all its counts when it ends.
    pub(in crate::bench) async fn alone(&self) -> Result<(), Failure> {
        const SQL: &str = "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = $1 AND pid <> $2 AND backend_type = 'client backend'";
        let deadline = Instant::now() + COUNTS_WITHIN;
        loop {
            let row = self
                .outside
                .query_one(SQL, &[&self.name, &self.backend])
                .await;
            let others: i64 = value(&row.map_err(|e| failed(&e))?, 0)?;
            if others == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Failure::Refused(format!(
                    "{others} sessions of the bench do not end: what they did cannot be counted"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What the server has counted up to a moment.
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

/// What a run wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) wal_bytes: u64,
    pub(super) wal_records: u64,
    /// Images of whole pages: each page once after a checkpoint.
    pub(super) page_images: u64,
    /// How much of the log they are, where the server can tell.
    pub(super) page_image_bytes: Option<u64>,
    pub(super) transactions: u64,
    pub(super) rows_inserted: u64,
    pub(super) hot_updates: u64,
    pub(super) index_entries: u64,
}

impl Counters {
    pub(super) async fn read(database: &Database) -> Result<Self, Failure> {
        // An update that is not HOT puts the row into every index anew, like an insert.
        const TABLES: &str = "SELECT \
             coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'managed_tx'), 0)::bigint, \
             coalesce(sum(n_tup_ins), 0)::bigint, \
             coalesce(sum(n_tup_hot_upd), 0)::bigint, \
             coalesce(sum((n_tup_ins + n_tup_upd - n_tup_hot_upd) * \
               (SELECT count(*) FROM pg_index WHERE indrelid = relid)), 0)::bigint \
             FROM pg_stat_user_tables WHERE relname NOT LIKE 'bench%'";
        const LOG: &str = "SELECT wal_records, wal_fpi FROM pg_stat_wal";
        let tables = database.client.query_one(TABLES, &[]).await;
        let tables = tables.map_err(|e| failed(&e))?;
        let log = database.client.query_one(LOG, &[]).await;
        let log = log.map_err(|e| failed(&e))?;
        let count = |row: &Row, at: usize| -> Result<u64, Failure> {
            Ok(u64::try_from(value::<i64>(row, at)?).unwrap_or(0))
        };
        Ok(Self {
            wal: wal_position(database).await?,
            transactions: database.transactions().await?,
            wal_records: count(&log, 0)?,
            page_images: count(&log, 1)?,
            txs: count(&tables, 0)?,
            rows: count(&tables, 1)?,
            hot_updates: count(&tables, 2)?,
            index_entries: count(&tables, 3)?,
        })
    }

    /// What was written since. Sessions tell their counts late, so they are waited for; the log's
    /// position is always right and read first.
    pub(super) async fn until_now(
        self,
        database: &Database,
        measured: &Measured,
    ) -> Result<Written, Failure> {
        let wal = wal_position(database).await?;
        let deadline = Instant::now() + COUNTS_WITHIN;
        let now = loop {
            let now = Self::read(database).await?;
            let told = now.txs.saturating_sub(self.txs) >= measured.accepted_in_all;
            if told || Instant::now() >= deadline {
                break now;
            }
            tokio::time::sleep(LOOK_EVERY).await;
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

/// Reads the log itself; `None` where the server has not the tool for it, or has removed the log.
async fn page_image_bytes(database: &Database, from: u64, to: u64) -> Option<u64> {
    const TOOL: &str = "CREATE EXTENSION IF NOT EXISTS pg_walinspect";
    const SQL: &str = "SELECT coalesce(sum(fpi_size), 0)::bigint \
         FROM pg_get_wal_stats('0/0'::pg_lsn + $1::text::numeric, '0/0'::pg_lsn + $2::text::numeric)";
    let look = async {
        database.client.batch_execute(TOOL).await?;
        let (from, to) = (from.to_string(), to.to_string());
        database.client.query_one(SQL, &[&from, &to]).await
    };
    match look.await {
        Ok(row) => u64::try_from(value::<i64>(&row, 0).ok()?).ok(),
        Err(error) => {
            tracing::debug!(
                error = with_sources(&error),
                "the log cannot be looked into"
            );
            None
        }
    }
}

async fn wal_position(database: &Database) -> Result<u64, Failure> {
    const SQL: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    number(&database.client, SQL).await
}

async fn connect(url: &PostgresUrl) -> Result<Client, Failure> {
    let config: Config = url.secret().parse().map_err(|e: tokio_postgres::Error| {
        Failure::Usage(format!("--store {}: {}", url.shown(), with_sources(&e)))
    })?;
    let connected = config.connect(NoTls).await;
    let (client, connection) = connected.map_err(|e| {
        Failure::Unreachable(format!(
            "{} cannot be reached: {}",
            url.shown(),
            with_sources(&e)
        ))
    })?;
    // Its errors come out at the client too.
    tokio::spawn(connection);
    client
        .batch_execute(NO_LIMITS)
        .await
        .map_err(|e| failed(&e))?;
    Ok(client)
}

async fn number(client: &Client, sql: &str) -> Result<u64, Failure> {
    let row = client.query_one(sql, &[]).await.map_err(|e| failed(&e))?;
    Ok(u64::try_from(value::<i64>(&row, 0)?).unwrap_or(0))
}

fn value<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, Failure> {
    row.try_get(at).map_err(|e| failed(&e))
}

pub(in crate::bench) fn failed(error: &tokio_postgres::Error) -> Failure {
    Failure::Refused(format!("the database refused: {}", with_sources(error)))
}
