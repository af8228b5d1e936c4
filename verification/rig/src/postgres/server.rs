//! Talking to a server, and databases in it.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use crate::wait::block_on;

/// The superuser of every server of ours.
pub(super) const USER: &str = "postgres";
pub(super) const PASSWORD: &str = "rig";

/// No statement of ours takes longer, on a server that lives.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// PostgreSQL cuts longer names.
const NAME_MAX: usize = 40;

/// A running server that one can talk to as its superuser.
#[derive(Clone, Debug)]
pub struct Server {
    major: u32,
    port: u16,
    url: String,
}

impl Server {
    /// One of ours on this port.
    pub(super) fn on(major: u32, port: u16) -> Self {
        Self {
            major,
            port,
            url: format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"),
        }
    }

    /// One that somebody else started.
    pub fn at(major: u32, url: &str) -> Self {
        let config: Result<Config, Error> = url.parse();
        let config = config.unwrap_or_else(|error| panic!("{url}: {}", plain(&error)));
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

    /// Its superuser's name and password.
    pub fn account(&self) -> (String, String) {
        let config: Config = self.url.parse().expect("it was parsed before");
        let password = config.get_password().unwrap_or_default();
        (
            config.get_user().unwrap_or(USER).to_owned(),
            String::from_utf8_lossy(password).into_owned(),
        )
    }

    /// Its major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Its port on loopback.
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

    /// A new, empty database that goes away with the value. The name is only a hint for people who
    /// look: many tests may use the same.
    pub fn database(&self, hint: &str) -> Database {
        let name = unique(hint);
        // Nobody can be connected to template0, so nobody can be in the way.
        self.exec(&format!("CREATE DATABASE \"{name}\" TEMPLATE template0"));
        Database {
            url: self.url_of(&name),
            server: self.clone(),
            name,
        }
    }

    /// Runs statements in the database `postgres`.
    pub fn exec(&self, sql: &str) {
        self.try_ask(sql)
            .unwrap_or_else(|error| panic!("{sql}: {}", plain(&error)));
    }

    /// Runs a query in the database `postgres`: the first column of its first row, as text.
    pub fn ask(&self, sql: &str) -> Option<String> {
        self.try_ask(sql)
            .unwrap_or_else(|error| panic!("{sql}: {}", plain(&error)))
    }

    /// The same, when the server may be away.
    pub fn try_ask(&self, sql: &str) -> Result<Option<String>, Error> {
        ask(&self.url, sql)
    }
}

/// A database of one's own. Dropping it drops it, whoever is still connected.
#[derive(Debug)]
pub struct Database {
    server: Server,
    name: String,
    url: String,
}

impl Database {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, as superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address through another port on loopback: a proxy or a pooler.
    pub fn url_through(&self, port: u16) -> String {
        self.server.through(port).url_of(&self.name)
    }

    /// The server that it is in.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Runs statements in it.
    pub fn exec(&self, sql: &str) {
        self.ask(sql);
    }

    /// Runs a query in it: the first column of its first row, as text.
    pub fn ask(&self, sql: &str) -> Option<String> {
        ask(&self.url, sql).unwrap_or_else(|error| panic!("{sql}: {}", plain(&error)))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        // A test may have ended the server already, and the database with it.
        self.server.try_ask(&sql).ok();
    }
}

/// A name that nobody else has.
pub(super) fn unique(hint: &str) -> String {
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

/// Connects, runs, and closes: sessions of ours keep nothing.
pub(super) fn ask(url: &str, sql: &str) -> Result<Option<String>, Error> {
    let task = async {
        let mut config: Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(5));
        config.application_name("rig");
        let (client, connection) = config.connect(NoTls).await?;
        let driver = tokio::spawn(connection);
        let answer = first_value(&client, sql).await;
        drop(client);
        // The session must be over when we return: it would be in the way of a later DROP.
        driver.await.ok();
        answer
    };
    let limited = async { tokio::time::timeout(ANSWER_WITHIN, task).await };
    block_on(limited).unwrap_or_else(|_| panic!("no answer within {ANSWER_WITHIN:?}: {sql}"))
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

/// The error with its cause: PostgreSQL's own words are in the latter.
pub(super) fn plain(error: &Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The same address with another database.
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
    fn another_database_keeps_the_rest_of_the_address() {
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
