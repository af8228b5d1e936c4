//! PostgreSQL: a primary, a synchronous standby, and one address for whichever is the primary now. A
//! promotion loses nothing, because every commit waited for the standby.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::{aside, postgres};
use proof::wire::Wire;
use proof::{Outcome, demand};
use rig::postgres::{Postgres, Server};
use tokio::sync::Mutex;

/// What the nodes' database is called.
const NAME: &str = "torture";

/// No limit of the serving role holds for a session of ours.
const WITHOUT_LIMITS: &str = "options=-c%20statement_timeout%3D0%20-c%20lock_timeout%3D0%20\
                              -c%20idle_in_transaction_session_timeout%3D0";

/// The servers. They end with the value.
pub(crate) struct Database {
    pair: Mutex<Pair>,
    wire: Wire,
    major: u32,
    logs: PathBuf,
}

struct Pair {
    primary: Arc<Postgres>,
    standby: Arc<Postgres>,
    /// How many standbys were promoted before.
    promotions: usize,
}

impl Database {
    /// Their logs are kept in this folder.
    pub(crate) async fn start(major: u32, logs: PathBuf) -> Outcome<Self> {
        let primary = postgres(major).await?;
        let of_database = Arc::clone(&primary);
        aside(move || of_database.exec(&format!("CREATE DATABASE {NAME}"))).await?;
        let standby = standby_of(&primary).await?;
        Ok(Self {
            wire: Wire::to(primary.port()).await?,
            pair: Mutex::new(Pair {
                primary,
                standby,
                promotions: 0,
            }),
            major,
            logs,
        })
    }

    /// The port that leads to the primary.
    pub(crate) fn port(&self) -> u16 {
        self.wire.port()
    }

    /// The address of the nodes' database through a port that leads there.
    pub(crate) async fn url_through(&self, port: u16) -> String {
        let pair = self.pair.lock().await;
        pair.primary.through(port).url_of(NAME)
    }

    /// `kill -9` for all processes of the primary; it starts again after a while.
    pub(crate) async fn crash(&self, down: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let primary = Arc::clone(&pair.primary);
        aside(move || primary.kill()).await?;
        tokio::time::sleep(down).await;
        start(&pair.primary).await
    }

    /// The primary ends in order and starts again after a while.
    pub(crate) async fn restart(&self, down: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let primary = Arc::clone(&pair.primary);
        aside(move || primary.stop()).await?;
        tokio::time::sleep(down).await;
        start(&pair.primary).await
    }

    /// The standby dies, so that commits wait, and comes back after a while.
    pub(crate) async fn without_standby(&self, away: Duration) -> Outcome<()> {
        let pair = self.pair.lock().await;
        let standby = Arc::clone(&pair.standby);
        aside(move || standby.kill()).await?;
        tokio::time::sleep(away).await;
        start(&pair.standby).await
    }

    /// The primary dies, the standby takes its place, and a new standby is built behind it. Says when the
    /// address led to the new primary.
    pub(crate) async fn promote(&self) -> Outcome<Instant> {
        let mut pair = self.pair.lock().await;
        let (dying, rising) = (Arc::clone(&pair.primary), Arc::clone(&pair.standby));
        aside(move || {
            dying.kill();
            rising.promote();
        })
        .await?;
        self.wire.lead_to(pair.standby.port());
        let promoted = Instant::now();
        self.keep_log(&pair.primary, pair.promotions)?;
        let primary = Arc::clone(&pair.standby);
        let next = Pair {
            standby: standby_of(&primary).await?,
            primary,
            promotions: pair.promotions + 1,
        };
        let dead = std::mem::replace(&mut *pair, next);
        // Clearing a killed server away takes a moment.
        aside(move || drop(dead)).await?;
        Ok(promoted)
    }

    /// Keeps what the servers have logged.
    pub(crate) async fn keep_logs(&self) -> Outcome<()> {
        let pair = self.pair.lock().await;
        self.keep_log(&pair.primary, pair.promotions)?;
        self.keep_log(&pair.standby, pair.promotions + 1)
    }

    /// Of the server that is, was or would be the primary after so many promotions.
    fn keep_log(&self, server: &Postgres, promotions: usize) -> Outcome<()> {
        let file = self.logs.join(format!("postgres-{promotions}.log"));
        std::fs::write(file, server.log())?;
        Ok(())
    }

    /// Ends all sessions of the nodes, as an administrator does.
    pub(crate) async fn end_sessions(&self) -> Outcome<u64> {
        let ended = self
            .ask(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await?;
        Ok(ended.ok_or("no count")?.parse()?)
    }

    /// Another session locks rows of some lanes and keeps them.
    pub(crate) async fn lock_rows(&self, table: &str, lanes: usize, time: Duration) -> Outcome<()> {
        let seconds = time.as_secs_f64();
        self.ask(&format!(
            "BEGIN; SELECT lane_id FROM {table} ORDER BY lane_id LIMIT {lanes} FOR UPDATE; \
             SELECT pg_sleep({seconds:.3}); COMMIT"
        ))
        .await?;
        Ok(())
    }

    /// Asks in the nodes' database.
    async fn ask(&self, sql: &str) -> Outcome<Option<String>> {
        let pair = self.pair.lock().await;
        let url = pair.primary.url_of(NAME);
        let mut url = format!("{url}?{WITHOUT_LIMITS}");
        if self.major >= 17 {
            url.push_str("%20-c%20transaction_timeout%3D0");
        }
        let (server, sql) = (Server::at(self.major, &url), sql.to_owned());
        Ok(aside(move || server.try_ask(&sql)).await??)
    }

    /// Whether the standby streams, so that a promotion would lose nothing.
    pub(crate) async fn is_sound(&self) -> Outcome<()> {
        let sync = self
            .ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
            .await?;
        demand(
            sync.as_deref() == Some("1"),
            format!("{sync:?} synchronous standbys"),
        )
    }
}

async fn start(server: &Arc<Postgres>) -> Outcome<()> {
    let server = Arc::clone(server);
    aside(move || server.start_again()).await
}

async fn standby_of(primary: &Arc<Postgres>) -> Outcome<Arc<Postgres>> {
    let primary = Arc::clone(primary);
    Ok(Arc::new(aside(move || primary.standby(true)).await?))
}
