//! A pool: one statement per call, on a connection of its own, with an answer in time.

use std::time::Duration;

use deadpool::managed::{self, Manager, Metrics, Object, PoolError, RecycleError, RecycleResult};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::connector::{ConnectError, Connection, Connector};
use crate::query_error::QueryError;

/// A parameter and its type.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How a pool uses the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many connections are opened at most, when they are needed.
    pub connections: usize,
    /// How long a call waits for a free connection, a new one included.
    pub connection_within: Duration,
    /// How many calls may wait for a connection; further ones are refused at once.
    pub waiting_max: usize,
    /// How long a call waits for its answer. The role's `statement_timeout` should be a little shorter, so that
    /// the database refuses first: after this time the outcome is unknown.
    pub answer_within: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            connections: 8,
            connection_within: Duration::from_secs(2),
            waiting_max: usize::MAX,
            answer_within: Duration::from_secs(6),
        }
    }
}

/// Connections to one database.
pub struct Pool {
    connections: managed::Pool<ConnectionManager>,
    config: PoolConfig,
}

impl Pool {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(connector: Connector, config: PoolConfig) -> Self {
        let connections = managed::Pool::builder(ConnectionManager(connector))
            .max_size(config.connections.max(1))
            .build()
            .expect("a pool without timeouts of its own needs no runtime");
        Self {
            connections,
            config,
        }
    }

    /// How many calls can be under way at once.
    pub fn capacity(&self) -> usize {
        self.connections.status().max_size
    }

    /// Runs one statement in autocommit.
    pub fn query<'a>(
        &'a self,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, QueryError>> {
        async move {
            let mut call = Call(Some(self.connection().await?));
            let connection = call.0.as_mut().expect("it is put there one line above");
            connection.clear_warning();
            let within = self.config.answer_within;
            let query = connection.client().query_typed(sql, params);
            let answer = match tokio::time::timeout(within, query).await {
                Ok(answer) => answer.map_err(|error| QueryError::from_answer(&error)),
                Err(_elapsed) => Err(QueryError::Unknown(format!("no answer within {within:?}"))),
            };
            match (answer, connection.warning()) {
                (Ok(rows), None) => {
                    call.recycle();
                    Ok(rows)
                }
                (Err(error @ QueryError::Refused(_)), None) => {
                    // The database reports a refusal before the transaction has released its row locks. An empty
                    // statement is answered when it has, so that the next writer of these rows finds them unlocked.
                    let barrier = connection.client().batch_execute("");
                    let barrier = tokio::time::timeout(within, barrier).await;
                    // A new connection may find the primary.
                    if !error.is_from_standby() && matches!(barrier, Ok(Ok(()))) {
                        call.recycle();
                    }
                    Err(error)
                }
                (Ok(_) | Err(_), Some(warning)) => Err(QueryError::Unknown(warning)),
                (Err(error), None) => Err(error),
            }
        }
        .boxed()
    }

    /// Runs one statement that answers with exactly one row.
    pub async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, QueryError> {
        let mut rows = self.query(sql, params).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            (_, _) => Err(QueryError::Malformed("not one row".into())),
        }
    }

    async fn connection(&self) -> Result<Object<ConnectionManager>, QueryError> {
        let (within, waiting_max) = (self.config.connection_within, self.config.waiting_max);
        if self.connections.status().waiting >= waiting_max {
            return Err(QueryError::Busy(format!(
                "{waiting_max} reads wait for a connection to the database already; try again in a moment"
            )));
        }
        match tokio::time::timeout(within, self.connections.get()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(PoolError::Backend(error))) => Err(QueryError::NotSent(error.reason)),
            Ok(Err(error)) => Err(QueryError::NotSent(error.to_string())),
            Err(_elapsed) => Err(QueryError::NotSent(format!(
                "no connection to the database within {within:?}"
            ))),
        }
    }
}

/// Without the connector: it holds the password.
impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut pool = f.debug_struct("Pool");
        pool.field("config", &self.config).finish_non_exhaustive()
    }
}

/// A connection with a statement under way. If it is dropped like this, after an error or because the caller was
/// cancelled, the connection is closed: a late answer must never be read as the answer to the next statement.
struct Call(Option<Object<ConnectionManager>>);

impl Call {
    fn recycle(&mut self) {
        drop(self.0.take());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            Object::take(connection).abort();
        }
    }
}

struct ConnectionManager(Connector);

impl Manager for ConnectionManager {
    type Type = Connection;
    type Error = ConnectError;

    async fn create(&self) -> Result<Connection, ConnectError> {
        self.0.connect().await
    }

    async fn recycle(
        &self,
        connection: &mut Connection,
        _metrics: &Metrics,
    ) -> RecycleResult<ConnectError> {
        if connection.client().is_closed() {
            return Err(RecycleError::message("closed"));
        }
        Ok(())
    }
}
