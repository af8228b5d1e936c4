//! The directory of a proof's processes. Both end with the proof, even if it is killed: a small shell waits for the
//! end of its input, which the kernel closes, and cleans up.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Outcome;

/// `$1`: the directory. Kills the processes in it, then deletes it.
const REAPER: &str = r#"
cat >/dev/null
for process in /proc/[0-9]*; do
  case "$(readlink "$process/cwd")" in
    "$1" | "$1"/*) kill -s KILL "${process#/proc/}" ;;
  esac
done
rm -rf -- "$1"
"#;

/// A directory whose processes end with it.
pub struct Scratch {
    path: PathBuf,
    reaper: Child,
}

impl Scratch {
    pub fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("proof-").tempdir()?;
        // From here on the reaper deletes it.
        let path = folder.keep().canonicalize()?;
        let reaper = Command::new("sh")
            .args(["-c", REAPER, "proof-undertaker"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // a Ctrl-C or a kill of the proof's group must not end it too
            .spawn()?;
        Ok(Self { path, reaper })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new subdirectory.
    pub fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        // A failure would only leave a zombie until this process ends.
        self.reaper.wait().ok();
    }
}
