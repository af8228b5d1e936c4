//! Calls: one statement each, on a connection of the right pool, with an answer in time.
//!
//! Every statement is typed and unnamed, and stands alone in autocommit: nothing is left in a session,
//! so a pooler in transaction mode may sit in between, and no frozen node can hold a transaction open.

use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Connection, Connector};
use super::fault::{Fault, text};
use super::timeouts::Timeouts;

/// How long a call waits for a free connection, a new one included.
const CONNECTION_WITHIN: Duration = Duration::from_secs(2);

/// How much longer than the database itself a caller waits, so that the database answers first.
const GRACE: Duration = Duration::from_millis(500);

/// One connection is kept for heartbeats and renewals, so that nothing else ever delays them.
const LEASE_CONNECTIONS: usize = 1;

/// A parameter and its type.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The database. Reads, writes and heartbeats have connections of their own: none starves another.
pub(super) struct Db {
    reads: Pool<Opener>,
    writes: Pool<Opener>,
    leases: Pool<Opener>,
    answer_within: Duration,
}

impl Db {
    /// With so many connections in all, opened when they are needed.
    pub(super) fn new(connector: Connector, timeouts: &Timeouts, connections: usize) -> Self {
        let others = connections.saturating_sub(LEASE_CONNECTIONS).max(2);
        let for_reads = others / 2;
        let pool = |size| {
            Pool::builder(Opener(connector.clone()))
                .max_size(size)
                .build()
                .expect("a pool without timeouts of its own needs no runtime")
        };
        Self {
            reads: pool(for_reads),
            writes: pool(others.saturating_sub(for_reads)),
            leases: pool(LEASE_CONNECTIONS),
            answer_within: timeouts.statement.saturating_add(GRACE),
        }
    }

    /// How many writes can be under way at once.
    pub(super) fn writers(&self) -> usize {
        self.writes.status().max_size
    }

    /// Asks.
    pub(super) async fn read(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        self.call(&self.reads, sql, params).await
    }

    /// Writes, and reads what a keeper needs to write.
    pub(super) async fn write(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        self.call(&self.writes, sql, params).await
    }

    /// Renews and beats: on the connection that is kept for it.
    pub(super) async fn beat(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        self.call(&self.leases, sql, params).await
    }

    async fn call(
        &self,
        pool: &Pool<Opener>,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let mut call = Call(Some(connection(pool).await?));
        let connection = call.0.as_mut().expect("nobody has taken it");
        connection.forget_doubt();
        let asked = connection.client().query_typed(sql, params);
        let answer = match tokio::time::timeout(self.answer_within, asked).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(Fault::of_answer(error)),
            Err(_elapsed) => Err(Fault::Lost(format!(
                "no answer within {:?}",
                self.answer_within
            ))),
        };
        match (answer, connection.doubt()) {
            (Ok(rows), None) => {
                call.give_back();
                Ok(rows)
            }
            (Err(fault @ Fault::Refused(_)), None) => {
                // The database tells a refusal before the transaction has let go of its rows. An empty
                // statement is answered when it has, so that whoever writes them next finds them free.
                let over = connection.client().batch_execute("");
                let over = tokio::time::timeout(self.answer_within, over).await;
                // A new connection may find the primary.
                if !fault.is_of_standby() && matches!(over, Ok(Ok(()))) {
                    call.give_back();
                }
                Err(fault)
            }
            (Ok(_) | Err(_), Some(doubt)) => Err(Fault::Lost(doubt)),
            (Err(fault), None) => Err(fault),
        }
    }
}

/// A connection with a statement under way. Whoever leaves it like this, by an error or because its
/// caller is gone, ends the connection: an old answer must never meet a new question.
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

async fn connection(pool: &Pool<Opener>) -> Result<Object<Opener>, Fault> {
    match tokio::time::timeout(CONNECTION_WITHIN, pool.get()).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(PoolError::Backend(error))) => Err(Fault::NotReached(text(&error))),
        Ok(Err(error)) => Err(Fault::NotReached(error.to_string())),
        Err(_elapsed) => Err(Fault::NotReached(format!(
            "no connection within {CONNECTION_WITHIN:?}"
        ))),
    }
}

struct Opener(Connector);

impl Manager for Opener {
    type Type = Connection;
    type Error = tokio_postgres::Error;

    async fn create(&self) -> Result<Connection, tokio_postgres::Error> {
        self.0.connect().await
    }

    async fn recycle(
        &self,
        connection: &mut Connection,
        _metrics: &Metrics,
    ) -> RecycleResult<tokio_postgres::Error> {
        if connection.client().is_closed() {
            return Err(RecycleError::message("closed"));
        }
        Ok(())
    }
}
