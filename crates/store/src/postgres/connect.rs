//! Connections: where to, how secured, and what the server says aside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::OpenError;
use super::fault::text;
use super::timeouts::{KEEPALIVE_COUNT, Timeouts};
use super::tls::{self, Verify};

/// How long one host of the address may take to be reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Opens connections to one database.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    /// `None`: never encrypted.
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// From an address `postgres://user:password@host/database?sslmode=…`.
    pub(super) fn parse(url: &str, timeouts: &Timeouts) -> Result<Self, OpenError> {
        let bad = |reason: String| OpenError::Address { reason };
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("it must begin with postgres://".into()));
        }
        let (rest, options) = tls::split_options(url).map_err(bad)?;
        let mut config: Config = rest.parse().map_err(|error| bad(text(&error)))?;
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
        let tls = match options.verify {
            Verify::NeverEncrypted => {
                config.ssl_mode(SslMode::Disable);
                None
            }
            Verify::Nothing { required } => {
                config.ssl_mode(if required {
                    SslMode::Require
                } else {
                    SslMode::Prefer
                });
                Some(options.connector().map_err(bad)?)
            }
            Verify::Chain | Verify::Full => {
                config.ssl_mode(SslMode::Require);
                Some(options.connector().map_err(bad)?)
            }
        };
        Ok(Self { config, tls })
    }

    /// Which database, for people: without the password.
    pub(super) fn shown(&self) -> String {
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

    /// A client, and what its server says: somebody must listen for as long as the client is used.
    async fn dial(&self) -> Result<(Client, ServerWords), tokio_postgres::Error> {
        match &self.tls {
            Some(tls) => self.dial_with(tls.clone()).await,
            None => self.dial_with(NoTls).await,
        }
    }

    async fn dial_with<T>(&self, tls: T) -> Result<(Client, ServerWords), tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut wire) = self.config.connect(tls).await?;
        let words = stream::poll_fn(move |cx| wire.poll_message(cx));
        Ok((client, words.boxed()))
    }

    pub(super) async fn connect(&self) -> Result<Connection, tokio_postgres::Error> {
        let (client, mut words) = self.dial().await?;
        let doubt = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&doubt);
        // Driven here and not by the driver's own future, which drops what the server says aside.
        // It is seen before the answer that follows it.
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = words.next().await {
                if let AsyncMessage::Notice(notice) = message {
                    hear(&notice, &seen);
                }
            }
        });
        let connection = Connection {
            client,
            doubt,
            task: task.abort_handle(),
        };
        // What the server has to say about the login itself (an old collation, a trigger) comes before
        // this answer, and is not taken for a word on the first call.
        connection.client.simple_query("").await?;
        Ok(connection)
    }
}

/// What a server says aside, and the sign that the connection is alive.
pub type ServerWords = BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

/// Opens connections to the store's database for other books beside its own, with its TLS and timeouts.
#[derive(Clone)]
pub struct Beside(Connector);

impl Beside {
    /// At the same address, with the timeouts of this lease.
    pub fn parse(url: &str, lease: Duration) -> Result<Self, OpenError> {
        Connector::parse(url, &Timeouts::of_lease(lease)).map(Self)
    }

    /// A client, and what its server says: somebody must listen for as long as the client is used.
    pub async fn dial(&self) -> Result<(Client, ServerWords), OpenError> {
        self.0.dial().await.map_err(|error| OpenError::NotReached {
            database: self.0.shown(),
            reason: text(&error),
        })
    }
}

/// An open connection.
pub(super) struct Connection {
    client: Client,
    /// Why the last commit is not as durable as it was asked to be.
    doubt: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
}

impl Connection {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn client_mut(&mut self) -> &mut Client {
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

/// A server that gives up waiting for its standbys commits all the same and only warns. Our own
/// statements warn of nothing, so every warning during a call is taken for that one.
fn hear(notice: &DbError, doubt: &Mutex<Option<String>>) {
    let is_warning = match notice.parsed_severity() {
        Some(Severity::Warning) => true,
        Some(severity) => {
            tracing::debug!(?severity, message = notice.message(), "the database says");
            false
        }
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
