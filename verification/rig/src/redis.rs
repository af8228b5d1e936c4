//! Redis servers for tests, to kill, freeze, flush, replicate and promote.

use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::ports::{Port, free_port};
use crate::server_dir::{ServerDir, signal};
use crate::tools;

/// A server answers well before this.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The environment variable with the URL of the shared server. `rig COMMAND` sets it.
pub const VARIABLE: &str = "LANEKEEPER_TEST_REDIS";

/// The server that this process started, without the environment variable.
static OURS: OnceLock<Redis> = OnceLock::new();

/// The URL of a server that all tests share: the one in the environment variable, else one for this process. It must
/// not be flushed: use keys with a unique prefix.
pub fn shared() -> String {
    if let Ok(url) = std::env::var(VARIABLE) {
        return url;
    }
    // Never dropped: its reaper ends it with the process.
    OURS.get_or_init(|| Redis::start(Persistence::Nothing))
        .url()
}

/// No command of the rig takes longer on a running server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Which data survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    Nothing,
    /// Every acknowledged write: it is on disk before the response.
    Everything,
}

/// A running server. Dropping it stops it and deletes its data.
#[derive(Debug)]
pub struct Redis {
    port: Port,
    dir: ServerDir,
    keeps: Persistence,
    process: Mutex<Option<Child>>,
}

impl Redis {
    pub fn start(keeps: Persistence) -> Self {
        let redis = Self {
            port: free_port(),
            dir: ServerDir::new("redis", "KILL"),
            keeps,
            process: Mutex::new(None),
        };
        redis.start_again();
        redis
    }

    /// A new replica, in sync with this server when this returns.
    pub fn replica(&self) -> Self {
        let replica = Self::start(Persistence::Nothing);
        replica.run_command(&["REPLICAOF", "127.0.0.1", &self.port().to_string()]);
        crate::wait_until("the replica is in step", READY_TIMEOUT, || {
            let about = replica.run_command(&["INFO", "replication"]);
            let in_step = about.contains("master_link_status:up")
                && about.contains("master_sync_in_progress:0");
            in_step.then_some(())
        });
        replica
    }

    /// Promotes a replica. The former master is not informed.
    pub fn promote(&self) {
        self.run_command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Kills `from` and takes over its address, like a virtual address in a failover. Writes that the replica had not
    /// received before its promotion are lost: an earlier promotion loses more.
    pub fn take_over(&mut self, from: &mut Self) {
        from.kill();
        self.run_command(&["CONFIG", "SET", "port", &from.port().to_string()]);
        std::mem::swap(&mut self.port, &mut from.port);
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.port.address())
    }

    pub fn flush(&self) {
        self.run_command(&["FLUSHALL"]);
    }

    /// `kill -9`.
    pub fn kill(&self) {
        let mut process = self.process();
        let mut child = process.take().expect("the server is stopped");
        self.dir.kill_all(child.id());
        child.wait().expect("it is a child process");
    }

    /// Stops responding like a hanging host: connections stay open.
    pub fn freeze(&self) {
        signal("STOP", &[self.pid()]);
    }

    /// Resumes, and processes the commands that arrived meanwhile.
    pub fn thaw(&self) {
        signal("CONT", &[self.pid()]);
    }

    /// Starts it on the same port, with its persisted data.
    pub fn start_again(&self) {
        let mut process = self.process();
        assert!(process.is_none(), "the server runs");
        let program = tools::redis("redis-server").unwrap_or_else(|missing| panic!("{missing}"));
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_path());
        let append_only = match self.keeps {
            Persistence::Nothing => "no",
            Persistence::Everything => "yes",
        };
        let child = self
            .dir
            .command(&program)
            .args(["--port", &self.port().to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
            .args(["--appendonly", append_only, "--appendfsync", "always"])
            // A replica gets its first copy at once, without a file.
            .args([
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
            ])
            .arg("--dir")
            .arg(self.dir.work_dir())
            .stdout(log.expect("the directory was created by the rig"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let child = process.insert(child);
        crate::wait_until("Redis answers", READY_TIMEOUT, || {
            let ended = child.try_wait().expect("it is a child process");
            assert!(ended.is_none(), "Redis does not start:\n{}", self.log());
            let answer = self.try_run_command(&["PING"]).ok()?;
            (answer == "PONG").then_some(())
        });
    }

    /// Runs a command, and returns its response as text.
    pub fn run_command(&self, arguments: &[&str]) -> String {
        self.try_run_command(arguments)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// Like the above, for a server that may be down.
    pub fn try_run_command(&self, arguments: &[&str]) -> std::io::Result<String> {
        run_command(self.port.address(), arguments)
    }

    fn pid(&self) -> u32 {
        let process = self.process();
        process.as_ref().expect("the server is stopped").id()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        // After a panic in a test that held the lock, the server must still be stopped.
        self.process
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.dir.close();
        if let Some(mut child) = self.process().take() {
            // The reaper has ended the process; this only reaps the zombie.
            child.wait().ok();
        }
    }
}

/// One command on a new connection.
fn run_command(server: SocketAddr, arguments: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut command = format!("*{}\r\n", arguments.len());
    for word in arguments {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    read_response(&mut BufReader::new(stream))
}

/// One response; an error panics, because the rig's commands are valid; a list becomes lines.
fn read_response(from: &mut impl std::io::BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let Some((kind, rest)) = line.split_at_checked(1) else {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let count = || rest.parse::<i64>().ok();
    match (kind, count()) {
        ("$", Some(length)) if length >= 0 => {
            let length = usize::try_from(length).expect("it is not negative");
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        ("$" | "*", Some(-1)) => Ok(String::new()),
        ("*", Some(length)) => {
            let lines: std::io::Result<Vec<String>> =
                (0..length).map(|_| read_response(from)).collect();
            Ok(lines?.join("\n"))
        }
        ("-", _) => Err(std::io::Error::other(rest)),
        (_, _) => Ok(rest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_decoded_as_text() {
        let read = |mut bytes: &[u8]| read_response(&mut bytes).unwrap();
        assert_eq!(read(b"+PONG\r\n"), "PONG");
        assert_eq!(read(b":7\r\n"), "7");
        assert_eq!(read(b"$-1\r\n"), "");
        assert_eq!(read(b"*2\r\n$1\r\na\r\n:2\r\n"), "a\n2");
        assert!(read_response(&mut &b"-LOADING soon\r\n"[..]).is_err());
        assert!(read_response(&mut &b""[..]).is_err());
    }
}
