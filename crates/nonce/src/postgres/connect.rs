//! Connections: how one is made is the wiring's affair, how it is used is ours.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::stream::{Stream, StreamExt as _, poll_fn};
use tokio::task::AbortHandle;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::fault::text;

/// Opens connections to the database that keeps the books. The wiring implements it, with its own address,
/// TLS and timeouts (`lock_timeout` and `statement_timeout` are settings of the role).
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    /// A new connection, see [`Connection::drive`], or why there is none; without the password.
    async fn connect(&self) -> Result<Connection, String>;
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    /// Why the last commit is not as durable as it was asked to be.
    doubt: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
}

impl Connection {
    /// Takes a client and what its server says (`Connection::poll_message` of the driver, as a stream), and
    /// listens in a task that ends with it.
    ///
    /// Driven here and not by the driver's own future, which drops what the server says aside: a server that
    /// gives up waiting for its standbys commits all the same and only warns.
    pub async fn drive(
        client: Client,
        mut words: impl Stream<Item = Result<AsyncMessage, tokio_postgres::Error>>
        + Unpin
        + Send
        + 'static,
    ) -> Result<Self, String> {
        let doubt = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&doubt);
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = words.next().await {
                if let AsyncMessage::Notice(notice) = message {
                    hear(&notice, &seen);
                }
            }
        });
        let connection = Self {
            client,
            doubt,
            task: task.abort_handle(),
        };
        // What the server says of the login itself comes before this answer, and is not taken for a word on
        // the first call.
        let ready = connection.client.simple_query("").await;
        ready.map_err(|error| text(&error))?;
        Ok(connection)
    }

    /// To ask with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// To open transactions with.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    pub(super) fn forget_doubt(&self) {
        *self.doubt.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn doubt(&self) -> Option<String> {
        let doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.clone()
    }

    /// Closes it at once, whatever is under way. (Nothing is cancelled: a COMMIT must never be.)
    pub(super) fn end(self) {
        self.task.abort();
    }
}

/// Our own statements warn of nothing, so every warning during a call speaks against its commit.
fn hear(notice: &DbError, doubt: &Mutex<Option<String>>) {
    let is_warning = match notice.parsed_severity() {
        Some(severity) => severity == Severity::Warning,
        None => notice.code() == &SqlState::WARNING,
    };
    if is_warning {
        tracing::warn!(
            code = notice.code().code(),
            message = notice.message(),
            "the database warns"
        );
        *doubt.lock().unwrap_or_else(PoisonError::into_inner) = Some(notice.message().to_owned());
    }
}

/// Unencrypted, by an address `postgres://user:password@host/database`: for tests, and for a library's user
/// whose database is on the same machine.
#[derive(Clone)]
pub struct Plain(pub tokio_postgres::Config);

impl Plain {
    /// From an address.
    pub fn parse(url: &str) -> Result<Self, String> {
        let config = url.parse::<tokio_postgres::Config>();
        config.map(Self).map_err(|error| text(&error))
    }
}

#[async_trait]
impl Connect for Plain {
    async fn connect(&self) -> Result<Connection, String> {
        let connected = self.0.connect(NoTls).await;
        let (client, mut wire) = connected.map_err(|error| text(&error))?;
        Connection::drive(client, poll_fn(move |cx| wire.poll_message(cx))).await
    }
}
