//! Redis: servers of one's own, to kill, freeze, empty, copy and promote.

use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::home::{Home, signal};
use crate::ports::{Port, free_port};
use crate::tools;

/// A server answers well before this.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The variable with the address of the shared server. `rig COMMAND` sets it.
pub const VARIABLE: &str = "LANEKEEPER_TEST_REDIS";

/// The server that this process started because nobody else had.
static OURS: OnceLock<Redis> = OnceLock::new();

/// The address of a server that all tests share: the one that the environment names, else one for this process.
/// Nobody may empty it: give keys a prefix that no other test has.
pub fn shared() -> String {
    if let Ok(url) = std::env::var(VARIABLE) {
        return url;
    }
    // Never dropped: its undertaker ends it with the process.
    OURS.get_or_init(|| Redis::start(Keeps::Nothing)).url()
}

/// No answer to a command of ours takes longer, on a server that lives.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Everything that was answered: each write is on disk before its answer.
    Everything,
}

/// A running server. Dropping it ends it and deletes its data.
#[derive(Debug)]
pub struct Redis {
    port: Port,
    home: Home,
    keeps: Keeps,
    process: Mutex<Option<Child>>,
}

impl Redis {
    /// A new, empty server.
    pub fn start(keeps: Keeps) -> Self {
        let redis = Self {
            port: free_port(),
            home: Home::new("redis", "KILL"),
            keeps,
            process: Mutex::new(None),
        };
        redis.start_again();
        redis
    }

    /// A new replica of this server that has everything the server has, when this returns.
    pub fn replica(&self) -> Self {
        let replica = Self::start(Keeps::Nothing);
        replica.ask(&["REPLICAOF", "127.0.0.1", &self.port().to_string()]);
        crate::until("the replica is in step", READY_WITHIN, || {
            let about = replica.ask(&["INFO", "replication"]);
            let in_step = about.contains("master_link_status:up")
                && about.contains("master_sync_in_progress:0");
            in_step.then_some(())
        });
        replica
    }

    /// Makes a replica a server of its own. Its former master does not know.
    pub fn promote(&self) {
        self.ask(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Moves to the address of a server that is killed for it, as a virtual address does in a failover. What a
    /// replica had not got until it was promoted is lost: promote it earlier, and it lags.
    pub fn take_over(&mut self, from: &mut Self) {
        from.kill();
        self.ask(&["CONFIG", "SET", "port", &from.port().to_string()]);
        std::mem::swap(&mut self.port, &mut from.port);
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.port.address())
    }

    /// Forgets everything.
    pub fn flush(&self) {
        self.ask(&["FLUSHALL"]);
    }

    /// `kill -9`.
    pub fn kill(&self) {
        let mut process = self.process();
        let mut child = process.take().expect("the server is stopped");
        self.home.kill_all(child.id());
        child.wait().expect("it was started by us");
    }

    /// Stops answering, as a server that swaps or a host that hangs: connections stay open.
    pub fn freeze(&self) {
        signal("STOP", &[self.pid()]);
    }

    /// Goes on, with everything that was asked meanwhile.
    pub fn thaw(&self) {
        signal("CONT", &[self.pid()]);
    }

    /// Starts it on the same port, with what it keeps.
    pub fn start_again(&self) {
        let mut process = self.process();
        assert!(process.is_none(), "the server runs");
        let program = tools::redis("redis-server").unwrap_or_else(|missing| panic!("{missing}"));
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_path());
        let append_only = match self.keeps {
            Keeps::Nothing => "no",
            Keeps::Everything => "yes",
        };
        let child = self
            .home
            .command(&program)
            .args(["--port", &self.port().to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
            .args(["--appendonly", append_only, "--appendfsync", "always"])
            // A replica gets its first copy at once, and without a file.
            .args([
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
            ])
            .arg("--dir")
            .arg(self.home.workplace())
            .stdout(log.expect("the home is ours"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let child = process.insert(child);
        crate::until("Redis answers", READY_WITHIN, || {
            let ended = child.try_wait().expect("it was started by us");
            assert!(ended.is_none(), "Redis does not start:\n{}", self.log());
            let answer = self.try_ask(&["PING"]).ok()?;
            (answer == "PONG").then_some(())
        });
    }

    /// Runs a command; what it answers, as text.
    pub fn ask(&self, words: &[&str]) -> String {
        self.try_ask(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same, when the server may be away.
    pub fn try_ask(&self, words: &[&str]) -> std::io::Result<String> {
        ask(self.port.address(), words)
    }

    fn pid(&self) -> u32 {
        let process = self.process();
        process.as_ref().expect("the server is stopped").id()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked while it held the lock is no reason to leave the server running.
        self.process
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.home.close();
        if let Some(mut child) = self.process().take() {
            // The undertaker has ended it; this only takes its zombie away.
            child.wait().ok();
        }
    }
}

/// One command on a connection of its own.
fn ask(server: SocketAddr, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    answer(&mut BufReader::new(stream))
}

/// One answer; an error panics, because our commands are right; a list is its lines.
fn answer(from: &mut impl std::io::BufRead) -> std::io::Result<String> {
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
            let lines: std::io::Result<Vec<String>> = (0..length).map(|_| answer(from)).collect();
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
    fn answers_are_read_as_text() {
        let read = |mut bytes: &[u8]| answer(&mut bytes).unwrap();
        assert_eq!(read(b"+PONG\r\n"), "PONG");
        assert_eq!(read(b":7\r\n"), "7");
        assert_eq!(read(b"$-1\r\n"), "");
        assert_eq!(read(b"*2\r\n$1\r\na\r\n:2\r\n"), "a\n2");
        assert!(answer(&mut &b"-LOADING soon\r\n"[..]).is_err());
        assert!(answer(&mut &b""[..]).is_err());
    }
}
