//! PostgreSQL: a server of one's own to break (`Postgres::start`), or a database of one's own in a
//! server that all tests share (`shared`).

mod schema;
mod server;
mod shared;
mod standby;

pub use schema::Schema;
pub use server::{Database, Server};
pub use shared::{shared, start_shared, variable};

use std::fs::{self, File};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::home::{Home, signal};
use crate::ports::{Port, free_port};
use crate::tools;

/// A server takes connections well before this, also after a crash.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How much of the log a panic shows.
const LOG_TAIL_LINES: usize = 30;

/// Which installed majors there are to test with, oldest first.
pub fn majors() -> Vec<u32> {
    let installed: Vec<u32> = tools::POSTGRES_MAJORS
        .iter()
        .copied()
        .filter(|major| tools::postgres(*major, "postgres").is_ok())
        .collect();
    assert!(
        !installed.is_empty(),
        "{}",
        tools::Missing("PostgreSQL".into())
    );
    installed
}

/// A server of one's own, with `fsync` on: it may be killed, restarted and replicated. Talk to it
/// through [`Server`]. Dropping it ends it and deletes its data.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: Port,
    home: Home,
    postmaster: Mutex<Option<Child>>,
    standbys: AtomicU32,
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Postgres {
    /// A new, empty server.
    pub fn start(major: u32) -> Self {
        Self::start_with(major, &[])
    }

    /// The same, with settings that hold from its first start on.
    pub fn start_with(major: u32, settings: &[(&str, &str)]) -> Self {
        let home = Home::new(&format!("postgres-{major}"), "QUIT");
        initdb(&home, major);
        let postgres = Self::at(home, major);
        postgres.append("postgresql.conf", settings);
        postgres.start_again();
        postgres
    }

    /// A server on existing data, not started.
    fn at(home: Home, major: u32) -> Self {
        let port = free_port();
        Self {
            server: Server::on(major, port.number()),
            port,
            home,
            postmaster: Mutex::new(None),
            standbys: AtomicU32::new(0),
        }
    }

    /// Where its data lie.
    pub fn data(&self) -> PathBuf {
        self.home.workplace().to_owned()
    }

    /// Its log.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The end of it.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// The process id of the postmaster, the parent of all others.
    pub fn pid(&self) -> u32 {
        let postmaster = self.postmaster();
        postmaster.as_ref().expect("the server is stopped").id()
    }

    /// `kill -9` for the postmaster and all its children.
    pub fn kill(&self) {
        let mut postmaster = self.postmaster();
        let mut child = postmaster.take().expect("the server is stopped");
        self.home.kill_all(child.id());
        child.wait().expect("it was started by us");
    }

    /// Ends it in order: open transactions are rolled back, connections closed.
    pub fn stop(&self) {
        let mut postmaster = self.postmaster();
        let mut child = postmaster.take().expect("the server is stopped");
        signal("INT", &[child.id()]);
        crate::until("the server stopped", READY_WITHIN, || {
            child.try_wait().expect("it was started by us")
        });
    }

    /// Starts it on the same data and port, and waits until it takes connections.
    pub fn start_again(&self) {
        self.run(&[]);
    }

    fn run(&self, arguments: &[&str]) {
        let mut postmaster = self.postmaster();
        assert!(postmaster.is_none(), "the server runs");
        let program = tool(self.server.major(), "postgres");
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_path());
        let child = self
            .home
            .command(&program)
            .arg("-D")
            .arg(self.home.workplace())
            .args(["-c", &format!("port={}", self.port.number())])
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(log.expect("the home is ours"))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let child = postmaster.insert(child);
        crate::until("the server takes connections", READY_WITHIN, || {
            let ended = child.try_wait().expect("it was started by us");
            assert!(
                ended.is_none(),
                "the server does not start:\n{}",
                self.log_tail()
            );
            self.server.try_ask("SELECT 1").ok()
        });
    }

    /// Changes settings for all sessions, now. One that needs a restart comes with the next start.
    pub fn config(&self, settings: &[(&str, &str)]) {
        for (key, value) in settings {
            let value = value.replace('\'', "''");
            self.exec(&format!("ALTER SYSTEM SET {key} = '{value}'"));
        }
        let loaded_at = || self.ask("SELECT pg_conf_load_time()::text");
        let before = loaded_at();
        self.exec("SELECT pg_reload_conf()");
        crate::until("the settings are read", READY_WITHIN, || {
            (loaded_at() != before).then_some(())
        });
    }

    /// Adds settings to a configuration file of a server that does not run.
    fn append(&self, file: &str, settings: &[(&str, &str)]) {
        let path = self.home.workplace().join(file);
        let mut text = fs::read_to_string(&path).unwrap_or_default();
        for (key, value) in settings {
            text.push_str(&format!("\n{key} = '{}'", value.replace('\'', "''")));
        }
        text.push('\n');
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked while it held the lock is no reason to leave the server running.
        self.postmaster
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.postmaster().is_none() && self.home.workplace().join("postmaster.pid").exists() {
            // It was killed and left shared memory behind, which only its next start takes away.
            // Should it not start, the test has said why or did not care.
            catch_unwind(AssertUnwindSafe(|| self.run(&["-c", "fsync=off"]))).ok();
        }
        self.home.close();
        if let Some(mut child) = self.postmaster().take() {
            // The undertaker has ended it; this only takes its zombie away.
            child.wait().ok();
        }
    }
}

fn tool(major: u32, program: &str) -> PathBuf {
    tools::postgres(major, program).unwrap_or_else(|missing| panic!("{missing}"))
}

fn initdb(home: &Home, major: u32) {
    let password = home.path().join("password");
    fs::write(&password, server::PASSWORD).expect("the home is ours");
    let program = tool(major, "initdb");
    let output = home
        .command(&program)
        .arg("-D")
        .arg(home.workplace())
        .args(["-U", server::USER, "-A", "scram-sha-256"])
        .arg("--pwfile")
        .arg(&password)
        .args(["-E", "UTF8", "--locale=C", "--no-sync"]) // syncing empty data proves nothing
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(
        output.status.success(),
        "initdb of PostgreSQL {major}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
