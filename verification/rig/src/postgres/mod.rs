//! PostgreSQL: a private server for fault tests (`Postgres::start`), or a private database in a server that all tests
//! share (`shared`).

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

use crate::ports::{Port, free_port};
use crate::server_dir::{ServerDir, signal};
use crate::tools;

/// A server accepts connections well before this, also after a crash.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the log that a panic shows.
const LOG_TAIL_LINES: usize = 30;

/// The installed majors, oldest first.
pub fn majors() -> Vec<u32> {
    let installed: Vec<u32> = tools::POSTGRES_MAJORS
        .iter()
        .copied()
        .filter(|major| tools::postgres(*major, "postgres").is_ok())
        .collect();
    assert!(
        !installed.is_empty(),
        "{}",
        tools::MissingTool("PostgreSQL".into())
    );
    installed
}

/// A private server with `fsync` on: it may be killed, restarted and replicated. Query it through [`Server`].
/// Dropping it stops it and deletes its data.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: Port,
    dir: ServerDir,
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
    pub fn start(major: u32) -> Self {
        Self::start_with(major, &[])
    }

    /// With settings that apply from the first start on.
    pub fn start_with(major: u32, settings: &[(&str, &str)]) -> Self {
        let dir = ServerDir::new(&format!("postgres-{major}"), "QUIT");
        initdb(&dir, major);
        let postgres = Self::at(dir, major);
        postgres.append("postgresql.conf", settings);
        postgres.start_again();
        postgres
    }

    /// A server on existing data, not started.
    fn at(dir: ServerDir, major: u32) -> Self {
        let port = free_port();
        Self {
            server: Server::on(major, port.number()),
            port,
            dir,
            postmaster: Mutex::new(None),
            standbys: AtomicU32::new(0),
        }
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.work_dir().to_owned()
    }

    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The end of the log.
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
        self.dir.kill_all(child.id());
        child.wait().expect("it is a child process");
    }

    /// Stops it cleanly: open transactions are rolled back, connections closed.
    pub fn stop(&self) {
        let mut postmaster = self.postmaster();
        let mut child = postmaster.take().expect("the server is stopped");
        signal("INT", &[child.id()]);
        crate::wait_until("the server stopped", READY_TIMEOUT, || {
            child.try_wait().expect("it is a child process")
        });
    }

    /// Starts it on the same data and port, and waits until it accepts connections.
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
            .dir
            .command(&program)
            .arg("-D")
            .arg(self.dir.work_dir())
            .args(["-c", &format!("port={}", self.port.number())])
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(log.expect("the directory was created by the rig"))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let child = postmaster.insert(child);
        crate::wait_until("the server takes connections", READY_TIMEOUT, || {
            let ended = child.try_wait().expect("it is a child process");
            assert!(
                ended.is_none(),
                "the server does not start:\n{}",
                self.log_tail()
            );
            self.server.try_query_value("SELECT 1").ok()
        });
    }

    /// Changes settings for all sessions, now. A setting that needs a restart applies at the next start.
    pub fn config(&self, settings: &[(&str, &str)]) {
        for (key, value) in settings {
            let value = value.replace('\'', "''");
            self.exec(&format!("ALTER SYSTEM SET {key} = '{value}'"));
        }
        let loaded_at = || self.query_value("SELECT pg_conf_load_time()::text");
        let before = loaded_at();
        self.exec("SELECT pg_reload_conf()");
        crate::wait_until("the settings are read", READY_TIMEOUT, || {
            (loaded_at() != before).then_some(())
        });
    }

    /// Appends settings to a configuration file of a stopped server.
    fn append(&self, file: &str, settings: &[(&str, &str)]) {
        let path = self.dir.work_dir().join(file);
        let mut text = fs::read_to_string(&path).unwrap_or_default();
        for (key, value) in settings {
            text.push_str(&format!("\n{key} = '{}'", value.replace('\'', "''")));
        }
        text.push('\n');
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        // After a panic in a test that held the lock, the server must still be stopped.
        self.postmaster
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.postmaster().is_none() && self.dir.work_dir().join("postmaster.pid").exists() {
            // A killed server leaves shared memory behind, which only its next start removes. If it does not start,
            // the test has reported why or does not depend on it.
            catch_unwind(AssertUnwindSafe(|| self.run(&["-c", "fsync=off"]))).ok();
        }
        self.dir.close();
        if let Some(mut child) = self.postmaster().take() {
            // The reaper has ended the process; this only reaps the zombie.
            child.wait().ok();
        }
    }
}

fn tool(major: u32, program: &str) -> PathBuf {
    tools::postgres(major, program).unwrap_or_else(|missing| panic!("{missing}"))
}

fn initdb(dir: &ServerDir, major: u32) {
    let password = dir.path().join("password");
    fs::write(&password, server::PASSWORD).expect("the directory was created by the rig");
    let program = tool(major, "initdb");
    let output = dir
        .command(&program)
        .arg("-D")
        .arg(dir.work_dir())
        .args(["-U", server::USER, "-A", "scram-sha-256"])
        .arg("--pwfile")
        .arg(&password)
        .args(["-E", "UTF8", "--locale=C", "--no-sync"]) // syncing empty data would prove nothing
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(
        output.status.success(),
        "initdb of PostgreSQL {major}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
