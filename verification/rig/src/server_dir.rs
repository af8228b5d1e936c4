//! The directory of one server, and the cleanup of both.
//!
//! A server must not outlive its test, even when the test is killed or the server is in a static that is never
//! dropped. So each directory has a reaper: a small shell that waits for the end of its input, which the kernel
//! closes when the owner ends, then kills the processes in the directory and deletes it. Dropping the directory
//! closes the input and waits for the reaper.

use std::fs;
use std::io::Error;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `$1`: the directory; `$2`: the working directory of all its processes; `$3`: the signal for a clean stop
/// (PostgreSQL frees its shared memory). A process that has not ended after about five seconds is killed.
const REAPER: &str = r#"
processes() { for p in /proc/[0-9]*; do [ "$p/cwd" -ef "$2" ] && echo "${p#/proc/}"; done; }
cat >/dev/null
tries=0
while pids=$(processes "$@"); [ -n "$pids" ] && [ $tries -lt 200 ]; do
  [ $tries -eq 0 ] && kill -s "$3" $pids
  [ $tries -gt 100 ] && kill -s KILL $pids
  tries=$((tries + 1))
  sleep 0.05
done
rm -rf -- "$1"
"#;

/// A killed process has ended well before this.
const DEAD_TIMEOUT: Duration = Duration::from_secs(20);

/// The users that run servers when the rig is root, because the servers refuse to run as root.
const SERVER_USERS: &[&str] = &["postgres", "nobody"];

/// A server's directory and its reaper.
#[derive(Debug)]
pub(crate) struct ServerDir {
    path: PathBuf,
    work_dir: PathBuf,
    reaper: Child,
}

impl ServerDir {
    /// A new directory, with a subdirectory in which all processes of the server run.
    pub(crate) fn new(name: &str, stop_signal: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("rig-{name}-"))
            .tempdir()
            .unwrap_or_else(|error| panic!("a temporary folder: {error}"));
        // From here on the reaper deletes it.
        let path = folder.keep().canonicalize().expect("it exists");
        let work_dir = path.join("workplace");
        fs::create_dir(&work_dir).expect("the folder is new");
        // PostgreSQL requires a directory that others cannot read.
        fs::set_permissions(&work_dir, fs::Permissions::from_mode(0o700))
            .expect("it was just created");
        let reaper = Command::new("sh")
            .args(["-c", REAPER, "rig-reaper"])
            .args([path.as_os_str(), work_dir.as_os_str(), stop_signal.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // a Ctrl-C or a kill of the test's group must not end it too
            .spawn()
            .unwrap_or_else(|error| panic!("sh: {error}"));
        let dir = Self {
            path,
            work_dir,
            reaper,
        };
        dir.chown_to_server_user();
        dir
    }

    /// For the log and configuration.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The working directory of the server's processes.
    pub(crate) fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    /// A command that runs in the work directory, as the server user, with an empty environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.work_dir)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .process_group(0);
        if let Some((uid, gid)) = server_user() {
            command.gid(gid).uid(uid);
        }
        command
    }

    pub(crate) fn chown_to_server_user(&self) {
        let Some((uid, gid)) = server_user() else {
            return;
        };
        let closed = self.path.ancestors().skip(1).find(|folder| {
            let mode = folder.metadata().map_or(0, |about| about.mode());
            mode & 0o001 == 0
        });
        if let Some(closed) = closed {
            panic!(
                "{} is not accessible for the user that runs servers: chmod o+x, or set another TMPDIR",
                closed.display()
            );
        }
        chown_all(&self.path, uid, gid).unwrap_or_else(|error| panic!("chown: {error}"));
    }

    /// `kill -9` for all processes; waits until none is left.
    pub(crate) fn kill_all(&self, main: u32) {
        // The main process is stopped first, so that it cannot start others or clean up.
        signal("STOP", &[main]);
        crate::wait_until("all processes are dead", DEAD_TIMEOUT, || {
            let pids = self.processes();
            signal("KILL", &pids);
            pids.is_empty().then_some(())
        });
    }

    /// The running processes in the work directory. A zombie has no working directory.
    fn processes(&self) -> Vec<u32> {
        let processes = fs::read_dir("/proc").expect("Linux has /proc");
        processes
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let directory = fs::read_link(entry.path().join("cwd")).ok()?;
                (directory == self.work_dir).then_some(pid)
            })
            .collect()
    }

    /// Ends all processes and deletes the directory, as dropping does.
    pub(crate) fn close(&mut self) {
        drop(self.reaper.stdin.take());
        // A failure would only leave a zombie until this process ends.
        self.reaper.wait().ok();
    }
}

impl Drop for ServerDir {
    fn drop(&mut self) {
        self.close();
    }
}

/// Processes that have ended already are ignored.
pub(crate) fn signal(name: &str, pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    Command::new("sh")
        .args(["-c", r#"kill -s "$0" "$@""#, name])
        .args(pids.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status()
        .unwrap_or_else(|error| panic!("sh: {error}"));
}

/// Root can start processes as another user.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0)
}

/// User and group that run the servers; `None`: the current user.
fn server_user() -> Option<(u32, u32)> {
    if !is_root() {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &&str| {
        let line = accounts
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let found = SERVER_USERS.iter().find_map(ids);
    Some(found.unwrap_or_else(|| panic!("none of the users {SERVER_USERS:?} exists")))
}

fn chown_all(path: &Path, uid: u32, gid: u32) -> Result<(), Error> {
    chown(path, Some(uid), Some(gid))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            chown_all(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}
