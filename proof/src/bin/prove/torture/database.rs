//! PostgreSQL: a primary, a synchronous standby, and one virtual address for the current primary. A promotion loses
//! nothing, because every commit waits for the standby.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{postgres, run_blocking};
use proof::virtual_address::VirtualAddress;
use proof::{Outcome, ensure};
use rig::postgres::{Postgres, Server};
use tokio::sync::Mutex;

const NAME: &str = "torture";

/// Sessions of the proof have no timeouts of the serving role.
const WITHOUT_LIMITS: &str = "options=-c%20statement_timeout%3D0%20-c%20lock_timeout%3D0%20\
                              -c%20idle_in_transaction_session_timeout%3D0";

pub(crate) struct Database {
    pair: Mutex<Pair>,
    wire: VirtualAddress,
    major: u32,
    logs: PathBuf,
}

struct Pair {
    primary: Arc<Postgres>,
    standby: Arc<Postgres>,
    /// The number of earlier promotions.
    promotions: usize,
}

impl Database {
    /// Logs are kept in this directory.
    pub(crate) async fn start(major: u32, logs: PathBuf) -> Outcome<Self> {
        let primary = postgres(major).await?;
        let of_database = Arc::clone(&primary);
        run_blocking(move || of_database.exec(&format!("CREATE DATABASE {NAME}"))).await?;
        let standby = standby_of(&primary).await?;
        Ok(Self {
            wire: VirtualAddress::to(primary.port()).await?,
            pair: Mutex::new(Pair {
                primary,
                standby,
                promotions: 0,
            }),
            major,
            logs,
        })
    }

    /// The port of the virtual address.
    pub(crate) fn port(&self) -> u16 {
        self.wire.port()
    }

    /// The URL of the nodes' database through a port.
    pub(crate) async fn url_through(&self, port: u16) -> String {
        let pair = self.pair.lock().await;
        pair.primary.through(port).url_of(NAME)
    }

    /// `kill -9` for all processes of the primary, and a restart after a while.
    pub(crate) async fn crash(&self, down: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let primary = Arc::clone(&pair.primary);
        run_blocking(move || primary.kill()).await?;
        tokio::time::sleep(down).await;
        start(&pair.primary).await
    }

    /// Stops the primary cleanly, and restarts it after a while.
    pub(crate) async fn restart(&self, down: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let primary = Arc::clone(&pair.primary);
        run_blocking(move || primary.stop()).await?;
        tokio::time::sleep(down).await;
        start(&pair.primary).await
    }

    /// Kills the standby, so that commits wait, and restarts it after a while.
    pub(crate) async fn without_standby(&self, away: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let standby = Arc::clone(&pair.standby);
        run_blocking(move || standby.kill()).await?;
        tokio::time::sleep(away).await;
        start(&pair.standby).await
    }

    /// Kills the primary, promotes the standby and builds a new standby. Returns when the virtual address pointed
    /// to the new primary.
    pub(crate) async fn promote(&self) -> Outcome<Instant> {
        let mut pair = self.pair.lock().await;
        let (dying, rising) = (Arc::clone(&pair.primary), Arc::clone(&pair.standby));
        run_blocking(move || {
            dying.kill();
            rising.promote();
        })
        .await?;
        self.wire.point_to(pair.standby.port());
        let promoted = Instant::now();
        self.keep_log(&pair.primary, pair.promotions)?;
        let primary = Arc::clone(&pair.standby);
        let next = Pair {
            standby: standby_of(&primary).await?,
            primary,
            promotions: pair.promotions + 1,
        };
        let dead = std::mem::replace(&mut *pair, next);
        // Cleaning up a killed server takes a moment.
        run_blocking(move || drop(dead)).await?;
        Ok(promoted)
    }

    /// Keeps the logs of the servers.
    pub(crate) async fn keep_logs(&self) -> Outcome<()> {
        let pair = self.pair.lock().await;
        self.keep_log(&pair.primary, pair.promotions)?;
        self.keep_log(&pair.standby, pair.promotions + 1)
    }

    /// The log of the primary after this many promotions.
    fn keep_log(&self, server: &Postgres, promotions: usize) -> Outcome<()> {
        let file = self.logs.join(format!("postgres-{promotions}.log"));
        std::fs::write(file, server.log())?;
        Ok(())
    }

    /// Terminates all sessions of the nodes, like an administrator.
    pub(crate) async fn end_sessions(&self) -> Outcome<u64> {
        let ended = self
            .query_value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await?;
        Ok(ended.ok_or("no count")?.parse()?)
    }

    /// Another session locks rows of some lanes for a while.
    pub(crate) async fn lock_rows(&self, table: &str, lanes: usize, time: Duration) -> Outcome<()> {
        let seconds = time.as_secs_f64();
        self.query_value(&format!(
            "BEGIN; SELECT lane_id FROM {table} ORDER BY lane_id LIMIT {lanes} FOR UPDATE; \
             SELECT pg_sleep({seconds:.3}); COMMIT"
        ))
        .await?;
        Ok(())
    }

    async fn query_value(&self, sql: &str) -> Outcome<Option<String>> {
        let pair = self.pair.lock().await;
        let url = pair.primary.url_of(NAME);
        let mut url = format!("{url}?{WITHOUT_LIMITS}");
        if self.major >= 17 {
            url.push_str("%20-c%20transaction_timeout%3D0");
        }
        let (server, sql) = (Server::at(self.major, &url), sql.to_owned());
        Ok(run_blocking(move || server.try_query_value(&sql)).await??)
    }

    /// Whether the standby is streaming, so that a promotion would lose nothing.
    pub(crate) async fn is_sound(&self) -> Outcome<()> {
        let sync = self
            .query_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
            .await?;
        ensure(
            sync.as_deref() == Some("1"),
            format!("{sync:?} synchronous standbys"),
        )
    }
}

async fn start(server: &Arc<Postgres>) -> Outcome<()> {
    let server = Arc::clone(server);
    run_blocking(move || server.start_again()).await
}

async fn standby_of(primary: &Arc<Postgres>) -> Outcome<Arc<Postgres>> {
    let primary = Arc::clone(primary);
    Ok(Arc::new(run_blocking(move || primary.standby(true)).await?))
}
