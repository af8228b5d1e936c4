//! Connections: the address, how they are secured, and the server's warnings.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::query_error::error_text;
use crate::timeouts::{KEEPALIVE_COUNT, Timeouts};
use crate::tls::{self, Verify};

/// How long one host of the address may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Why an address cannot be used; without its password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{reason} (an address looks like postgres://user:password@host:5432/database?sslmode=verify-full)"
)]
pub struct AddressError {
    pub reason: String,
}

/// Why a database cannot be reached; without the password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the database at {database} cannot be reached: {reason}")]
pub struct ConnectError {
    pub database: String,
    pub reason: String,
}

/// Opens connections to one database.
#[derive(Clone)]
pub struct Connector {
    config: Config,
    /// `None`: never encrypted.
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// From an address `postgres://user:password@host/database?sslmode=…`.
    pub fn parse(url: &str, timeouts: &Timeouts) -> Result<Self, AddressError> {
        let bad = |reason: String| AddressError { reason };
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("it must begin with postgres://".into()));
        }
        let (rest, options) = tls::split_options(url).map_err(bad)?;
        let mut config: Config = rest.parse().map_err(|error| bad(error_text(&error)))?;
        config
            .keepalives(true)
            .keepalives_idle(timeouts.keepalive_idle)
            .keepalives_interval(timeouts.keepalive_interval)
            .keepalives_retries(KEEPALIVE_COUNT)
            .tcp_user_timeout(timeouts.dead);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        if config.get_application_name().is_none() {
            config.application_name("lanekeeper");
        }
        config.ssl_mode(match options.verify {
            Verify::NeverEncrypted => SslMode::Disable,
            Verify::Nothing { required: false } => SslMode::Prefer,
            Verify::Nothing { required: true } | Verify::Chain | Verify::Full => SslMode::Require,
        });
        let tls = match options.verify {
            Verify::NeverEncrypted => None,
            Verify::Nothing { .. } | Verify::Chain | Verify::Full => {
                Some(options.connector().map_err(bad)?)
            }
        };
        Ok(Self { config, tls })
    }

    /// The database, for people: without the password.
    pub fn database_name(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        let ports: Vec<String> = self.config.get_ports().iter().map(u16::to_string).collect();
        let at = match ports.is_empty() {
            true => hosts.join(","),
            false => format!("{}:{}", hosts.join(","), ports.join(",")),
        };
        match self.config.get_dbname() {
            Some(database) => format!("{at}/{database}"),
            None => at,
        }
    }

    /// Opens a connection and drives it in a task that ends with it.
    pub fn connect(&self) -> BoxFuture<'_, Result<Connection, ConnectError>> {
        async move {
            let connected = match &self.tls {
                Some(tls) => self.connect_with(tls.clone()).await,
                None => self.connect_with(NoTls).await,
            };
            connected.map_err(|error| ConnectError {
                database: self.database_name(),
                reason: error_text(&error),
            })
        }
        .boxed()
    }

    async fn connect_with<T>(&self, tls: T) -> Result<Connection, tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut wire) = self.config.connect(tls).await?;
        let mut messages = stream::poll_fn(move |cx| wire.poll_message(cx));
        let warning = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&warning);
        // Driven here and not by the driver's own future, which drops notices. A notice is seen before the answer
        // that follows it.
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notice(notice) = message {
                    record_notice(&notice, &seen);
                }
            }
        });
        let connection = Connection {
            client,
            warning,
            task: task.abort_handle(),
        };
        // Warnings about the login itself (an old collation, a trigger) come before this answer, and are not
        // attributed to the first statement.
        connection.client.simple_query("").await?;
        Ok(connection)
    }
}

/// An open connection.
pub struct Connection {
    client: Client,
    /// Why the last commit may be less durable than requested.
    warning: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
}

impl Connection {
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    pub(crate) fn clear_warning(&self) {
        *self.warning.lock() = None;
    }

    pub(crate) fn warning(&self) -> Option<String> {
        self.warning.lock().clone()
    }

    /// Closes it at once, whatever is under way. (Nothing is cancelled: a COMMIT must never be.)
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

/// A server that stops waiting for its standbys commits all the same and only warns. Our own statements warn of
/// nothing, so every warning during a statement counts as that one.
fn record_notice(notice: &DbError, warning: &Mutex<Option<String>>) {
    let (code, message) = (notice.code().code(), notice.message());
    let is_warning = match notice.parsed_severity() {
        Some(severity) => severity == Severity::Warning,
        None => notice.code() == &SqlState::WARNING,
    };
    if is_warning {
        tracing::warn!(code, message, "the database sent a warning");
        *warning.lock() = Some(message.to_owned());
    } else {
        tracing::debug!(code, message, "the database sent a notice");
    }
}
