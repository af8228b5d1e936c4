//! The folder in which the processes of a proof work. Both are gone with the proof, even when it is
//! killed: a small shell waits until its input ends, which the kernel sees to, and clears up.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Outcome;

/// `$1`: the folder. Kills whoever works in it or below it, then deletes it.
const UNDERTAKER: &str = r#"
cat >/dev/null
for process in /proc/[0-9]*; do
  case "$(readlink "$process/cwd")" in
    "$1" | "$1"/*) kill -s KILL "${process#/proc/}" ;;
  esac
done
rm -rf -- "$1"
"#;

/// A folder whose inhabitants do not outlive it.
pub struct Scratch {
    path: PathBuf,
    undertaker: Child,
}

impl Scratch {
    /// A new one.
    pub fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("proof-").tempdir()?;
        // From here on the undertaker deletes it.
        let path = folder.keep().canonicalize()?;
        let undertaker = Command::new("sh")
            .args(["-c", UNDERTAKER, "proof-undertaker"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // a Ctrl-C or a kill of the proof's group must not end it too
            .spawn()?;
        Ok(Self { path, undertaker })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new folder in it.
    pub fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.undertaker.stdin.take());
        // It was started, so it can be waited for; a failure would leave a zombie until we end.
        self.undertaker.wait().ok();
    }
}
