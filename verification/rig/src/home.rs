//! The folder of one server, and the end of both.
//!
//! A server must not outlive its test, also when the test is killed or its server sits in a static
//! that nobody drops. So each home has an undertaker: a small shell that waits until its input ends,
//! which the kernel sees to when the owner is gone, then ends whoever works in the home and deletes
//! it. Dropping the home is the same road, waited for.

use std::fs;
use std::io::Error;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `$1`: the home; `$2`: the folder that is the working directory of all its processes; `$3`: the
/// signal that lets them leave in order (PostgreSQL frees its shared memory). Whoever has not left
/// after some five seconds is killed.
const UNDERTAKER: &str = r#"
inhabitants() { for p in /proc/[0-9]*; do [ "$p/cwd" -ef "$2" ] && echo "${p#/proc/}"; done; }
cat >/dev/null
tries=0
while pids=$(inhabitants "$@"); [ -n "$pids" ] && [ $tries -lt 200 ]; do
  [ $tries -eq 0 ] && kill -s "$3" $pids
  [ $tries -gt 100 ] && kill -s KILL $pids
  tries=$((tries + 1))
  sleep 0.05
done
rm -rf -- "$1"
"#;

/// A killed process is gone well before this.
const DEAD_WITHIN: Duration = Duration::from_secs(20);

/// The accounts under which servers run when we are root, because they refuse to run as root.
const SERVANTS: &[&str] = &["postgres", "nobody"];

/// A folder, its owner, and its undertaker.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    workplace: PathBuf,
    undertaker: Child,
}

impl Home {
    /// A new folder with a folder `workplace` in it, in which all processes of the server work.
    pub(crate) fn new(name: &str, farewell: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("rig-{name}-"))
            .tempdir()
            .unwrap_or_else(|error| panic!("a temporary folder: {error}"));
        // From here on the undertaker deletes it.
        let path = folder.keep().canonicalize().expect("it exists");
        let workplace = path.join("workplace");
        fs::create_dir(&workplace).expect("the folder is new");
        // PostgreSQL wants its folder closed to others.
        fs::set_permissions(&workplace, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let undertaker = Command::new("sh")
            .args(["-c", UNDERTAKER, "rig-undertaker"])
            .args([path.as_os_str(), workplace.as_os_str(), farewell.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // a Ctrl-C or a kill of the test's group must not end it too
            .spawn()
            .unwrap_or_else(|error| panic!("sh: {error}"));
        let home = Self {
            path,
            workplace,
            undertaker,
        };
        home.give_to_servant();
        home
    }

    /// The folder that is not the server's workplace: for its log and configuration.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The working directory of the server's processes.
    pub(crate) fn workplace(&self) -> &Path {
        &self.workplace
    }

    /// A command that runs in the workplace, as the servant, with nothing of our environment.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workplace)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .process_group(0);
        if let Some((uid, gid)) = servant() {
            command.gid(gid).uid(uid);
        }
        command
    }

    /// Everything in the home belongs to the account that will run the server.
    pub(crate) fn give_to_servant(&self) {
        let Some((uid, gid)) = servant() else { return };
        let closed = self.path.ancestors().skip(1).find(|folder| {
            let mode = folder.metadata().map_or(0, |about| about.mode());
            mode & 0o001 == 0
        });
        if let Some(closed) = closed {
            panic!(
                "{} is closed to the account that runs servers: chmod o+x, or set another TMPDIR",
                closed.display()
            );
        }
        give(&self.path, uid, gid).unwrap_or_else(|error| panic!("chown: {error}"));
    }

    /// `kill -9` for all processes at once; waits until none is left.
    pub(crate) fn kill_all(&self, main: u32) {
        // The first one stopped cannot start others, nor clean up after them.
        signal("STOP", &[main]);
        crate::until("all processes are dead", DEAD_WITHIN, || {
            let pids = self.inhabitants();
            signal("KILL", &pids);
            pids.is_empty().then_some(())
        });
    }

    /// The living processes that work here. One that is dead but not reaped has no directory.
    fn inhabitants(&self) -> Vec<u32> {
        let processes = fs::read_dir("/proc").expect("Linux has /proc");
        processes
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let directory = fs::read_link(entry.path().join("cwd")).ok()?;
                (directory == self.workplace).then_some(pid)
            })
            .collect()
    }

    /// Ends whoever works here and deletes the folder. Dropping does it too.
    pub(crate) fn close(&mut self) {
        drop(self.undertaker.stdin.take());
        // It was started, so it can be waited for; a failure would leave a zombie until we end.
        self.undertaker.wait().ok();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends a signal. Whoever is gone already needs none.
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

/// Whether we may become somebody else.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0)
}

/// Who runs the servers: user and group, or us.
fn servant() -> Option<(u32, u32)> {
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
    let found = SERVANTS.iter().find_map(ids);
    Some(found.unwrap_or_else(|| panic!("none of the accounts {SERVANTS:?} exists")))
}

fn give(path: &Path, uid: u32, gid: u32) -> Result<(), Error> {
    chown(path, Some(uid), Some(gid))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}
