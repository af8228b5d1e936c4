//! Queries to a server, and databases in it.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use crate::wait::block_on;

/// The superuser of every server that the rig starts.
pub(super) const USER: &str = "postgres";
pub(super) const PASSWORD: &str = "rig";

/// No statement of the rig takes longer on a running server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// PostgreSQL truncates longer names.
const NAME_MAX: usize = 40;

/// A running server, accessed as its superuser.
#[derive(Clone, Debug)]
pub struct Server {
    major: u32,
    port: u16,
    url: String,
}

impl Server {
    /// A server that the rig started.
    pub(super) fn on(major: u32, port: u16) -> Self {
        Self {
            major,
            port,
            url: format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"),
        }
    }

    /// A server that was started elsewhere.
    pub fn at(major: u32, url: &str) -> Self {
        let config: Result<Config, Error> = url.parse();
        let config = config.unwrap_or_else(|error| panic!("{url}: {}", error_with_cause(&error)));
        let port = config.get_ports().first();
        Self {
            major,
            port: *port.unwrap_or_else(|| panic!("{url} has no port")),
            url: url.to_owned(),
        }
    }

    /// The same server through another port on loopback: a proxy or a pooler.
    pub fn through(&self, port: u16) -> Self {
        let here = format!(":{}/", self.port);
        let url = self.url.replacen(&here, &format!(":{port}/"), 1);
        let (major, port) = (self.major, port);
        Self { major, port, url }
    }

    /// Name and password of the superuser.
    pub fn account(&self) -> (String, String) {
        let config: Config = self.url.parse().expect("it was parsed before");
        let password = config.get_password().unwrap_or_default();
        (
            config.get_user().unwrap_or(USER).to_owned(),
            String::from_utf8_lossy(password).into_owned(),
        )
    }

    pub fn major(&self) -> u32 {
        self.major
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The database `postgres`, as superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Another database, as superuser.
    pub fn url_of(&self, database: &str) -> String {
        url_with(&self.url, database)
    }

    /// A new, empty database that is dropped with the value. The name is only a hint for people who
    /// look: many tests may use the same.
    pub fn database(&self, hint: &str) -> Database {
        let name = unique_name(hint);
        // No session can be connected to template0, so none can block the copy.
        self.exec(&format!("CREATE DATABASE \"{name}\" TEMPLATE template0"));
        Database {
            url: self.url_of(&name),
            server: self.clone(),
            name,
        }
    }

    /// Runs statements in the database `postgres`.
    pub fn exec(&self, sql: &str) {
        self.try_query_value(sql)
            .unwrap_or_else(|error| panic!("{sql}: {}", error_with_cause(&error)));
    }

    /// The first column of the first row of a query in the database `postgres`, as text.
    pub fn query_value(&self, sql: &str) -> Option<String> {
        self.try_query_value(sql)
            .unwrap_or_else(|error| panic!("{sql}: {}", error_with_cause(&error)))
    }

    /// Like the above, for a server that may be down.
    pub fn try_query_value(&self, sql: &str) -> Result<Option<String>, Error> {
        query_value(&self.url, sql)
    }
}

/// A database for one test. Dropping the value drops it, even with open sessions.
#[derive(Debug)]
pub struct Database {
    server: Server,
    name: String,
    url: String,
}

impl Database {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL through another port on loopback: a proxy or a pooler.
    pub fn url_through(&self, port: u16) -> String {
        self.server.through(port).url_of(&self.name)
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn exec(&self, sql: &str) {
        self.query_value(sql);
    }

    /// The first column of the first row, as text.
    pub fn query_value(&self, sql: &str) -> Option<String> {
        query_value(&self.url, sql)
            .unwrap_or_else(|error| panic!("{sql}: {}", error_with_cause(&error)))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        // The test may have stopped the server already, and the database with it.
        self.server.try_query_value(&sql).ok();
    }
}

/// Unique across processes.
pub(super) fn unique_name(hint: &str) -> String {
    let hint: String = hint
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_lowercase(),
            false => '_',
        })
        .take(NAME_MAX)
        .collect();
    format!("{hint}_{:016x}", rand::random::<u64>())
}

/// Connects, runs the SQL and disconnects.
pub(super) fn query_value(url: &str, sql: &str) -> Result<Option<String>, Error> {
    let task = async {
        let mut config: Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(5));
        config.application_name("rig");
        let (client, connection) = config.connect(NoTls).await?;
        let driver = tokio::spawn(connection);
        let answer = first_value(&client, sql).await;
        drop(client);
        // The session must have ended before this returns: it would block a later DROP.
        driver.await.ok();
        answer
    };
    let limited = async { tokio::time::timeout(ANSWER_TIMEOUT, task).await };
    block_on(limited).unwrap_or_else(|_| panic!("no answer within {ANSWER_TIMEOUT:?}: {sql}"))
}

pub(super) async fn first_value(client: &Client, sql: &str) -> Result<Option<String>, Error> {
    let messages = client.simple_query(sql).await?;
    let mut rows = messages.iter().filter_map(|message| {
        let SimpleQueryMessage::Row(row) = message else {
            return None; // a description or a count
        };
        Some(row)
    });
    Ok(rows.next().and_then(|row| row.get(0)).map(str::to_owned))
}

/// The error with its cause, which contains PostgreSQL's own message.
pub(super) fn error_with_cause(error: &Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The same URL with another database.
fn url_with(url: &str, database: &str) -> String {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let (server, _) = address.rsplit_once('/').expect("a url ends in a database");
    match parameters {
        "" => format!("{server}/{database}"),
        _ => format!("{server}/{database}?{parameters}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_with_another_database_keeps_the_rest() {
        let url = "postgres://me:secret@127.0.0.1:5432/postgres?sslmode=disable";
        assert_eq!(
            url_with(url, "other"),
            "postgres://me:secret@127.0.0.1:5432/other?sslmode=disable"
        );
        let server = Server::at(15, url);
        assert_eq!(server.port(), 5432);
        assert_eq!(server.account(), ("me".to_owned(), "secret".to_owned()));
        assert_eq!(
            server.through(6432).url_of("other"),
            "postgres://me:secret@127.0.0.1:6432/other?sslmode=disable"
        );
    }
}
