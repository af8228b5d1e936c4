//! The books in PostgreSQL: the authority of every scheme but the lane's.
//!
//! Every call is one statement in autocommit and one round trip; what must happen together is a function inside
//! the database (`schema.sql`). Nothing is left in a session, so a pooler in transaction mode may sit in between,
//! and a frozen process holds no transaction open.

mod books;
mod connect;
mod fault;
mod keepers;
mod rows;
mod schema;
mod watch;

use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

pub use books::{Books, Reserved};
pub use connect::{Connect, Connection, Plain};
pub use fault::Fault;
pub use keepers::{Entry, Found, Generation, Lease, Taken, Wanted, What, Written};
pub use rows::{Lane, reservation, signed, unsigned};
pub use schema::{CheckError, PrepareError, SCHEMA_VERSION, bind_lanes, check, prepare};

/// A parameter and its type.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How the database is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DbConfig {
    /// How many connections are opened at most, when they are needed.
    pub connections: usize,
    /// How long a call waits for a free connection, a new one included.
    pub connection_within: Duration,
    /// How long a call waits for its answer. The role's `statement_timeout` should be a little shorter, so that
    /// the database says no first: after this nobody knows.
    pub answer_within: Duration,
}

impl Default for DbConfig {
    fn default() -> Self {
        Self {
            connections: 8,
            connection_within: Duration::from_secs(2),
            answer_within: Duration::from_secs(6),
        }
    }
}

/// The database.
#[derive(Debug)]
pub struct Db {
    pool: Pool<Opener>,
    config: DbConfig,
}

impl Db {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(connect: std::sync::Arc<dyn Connect>, config: DbConfig) -> Self {
        let pool = Pool::builder(Opener(connect)).max_size(config.connections.max(1));
        Self {
            pool: pool
                .build()
                .expect("a pool without timeouts of its own needs no runtime"),
            config,
        }
    }

    /// One statement, in autocommit.
    pub async fn call(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let mut call = Call(Some(self.connection().await?));
        let connection = call.0.as_mut().expect("nobody has taken it");
        connection.forget_doubt();
        let within = self.config.answer_within;
        let asked = connection.client().query_typed(sql, params);
        let answer = match tokio::time::timeout(within, asked).await {
            Ok(answer) => answer.map_err(|error| Fault::of_answer(&error)),
            Err(_elapsed) => Err(Fault::Lost(format!("no answer within {within:?}"))),
        };
        match (answer, connection.doubt()) {
            (Ok(rows), None) => {
                call.give_back();
                Ok(rows)
            }
            (Err(fault @ Fault::Refused(_)), None) => {
                // A new connection may find the primary.
                if !fault.is_of_standby() {
                    call.give_back();
                }
                Err(fault)
            }
            (Ok(_) | Err(_), Some(doubt)) => Err(Fault::Lost(doubt)),
            (Err(fault), None) => Err(fault),
        }
    }

    /// One statement that answers with exactly one row.
    pub async fn call_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, Fault> {
        let mut rows = self.call(sql, params).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            (_, _) => Err(Fault::Malformed("not one row".into())),
        }
    }

    async fn connection(&self) -> Result<Object<Opener>, Fault> {
        let within = self.config.connection_within;
        match tokio::time::timeout(within, self.pool.get()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(PoolError::Backend(why))) => Err(Fault::NotReached(why)),
            Ok(Err(error)) => Err(Fault::NotReached(error.to_string())),
            Err(_elapsed) => Err(Fault::NotReached(format!(
                "no connection to the database within {within:?}"
            ))),
        }
    }

    /// Closes idle connections and opens no more.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// A connection with a statement under way. Whoever leaves it like this, by an error or because its caller is
/// gone, ends the connection: an old answer must never meet a new question.
struct Call(Option<Object<Opener>>);

impl Call {
    fn give_back(&mut self) {
        drop(self.0.take());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            Object::take(connection).end();
        }
    }
}

struct Opener(std::sync::Arc<dyn Connect>);

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

impl Manager for Opener {
    type Type = Connection;
    type Error = String;

    async fn create(&self) -> Result<Connection, String> {
        self.0.connect().await
    }

    async fn recycle(
        &self,
        connection: &mut Connection,
        _metrics: &Metrics,
    ) -> RecycleResult<String> {
        if connection.client().is_closed() {
            return Err(RecycleError::message("closed"));
        }
        Ok(())
    }
}
