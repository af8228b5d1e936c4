//! A headless Chromium with a fresh profile that opens one page. The page reports to its own server what it found.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use crate::server_dir::ServerDir;
use crate::tools;

/// Everything that a browser does by itself is switched off: it must reach the addresses of the test, and nothing else.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox", // it may run in a container, and opens pages of the test only
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-proxy-server",
];

/// A running browser. Dropping it ends all its processes and deletes its profile.
#[derive(Debug)]
pub struct Chromium {
    dir: ServerDir,
    child: Child,
}

impl Chromium {
    /// Opens a page. A name in `hosts` is reached at its loopback port, whatever port the URL names, which is how a name
    /// server that the owner of the name controls looks from inside the browser. Other names do not exist.
    pub fn open(url: &str, hosts: &[(&str, u16)]) -> Self {
        let program = tools::chromium().unwrap_or_else(|missing| panic!("{missing}"));
        let dir = ServerDir::new("chromium", "KILL");
        let log = File::create(dir.path().join("log")).expect("the directory is new");
        let errors = log.try_clone().expect("a file handle");
        let mut rules: Vec<String> = hosts
            .iter()
            .map(|(name, port)| format!("MAP {name} 127.0.0.1:{port}"))
            .collect();
        rules.push("MAP * ~NOTFOUND".into());
        rules.push("EXCLUDE localhost".into());
        rules.push("EXCLUDE 127.0.0.1".into());
        let mut profile = dir.work_dir().as_os_str().to_owned();
        profile.push("/profile");
        let mut user_data = std::ffi::OsString::from("--user-data-dir=");
        user_data.push(profile);
        let child = dir
            .command(&program)
            .args(FLAGS)
            .arg(user_data)
            .arg(format!("--host-resolver-rules={}", rules.join(", ")))
            .arg(url)
            .env("HOME", dir.work_dir())
            .env("TMPDIR", dir.work_dir())
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { dir, child }
    }

    /// Its output, for messages.
    pub fn log(&self) -> String {
        let text = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The version line of the installed browser.
pub fn version() -> String {
    let program = tools::chromium().unwrap_or_else(|missing| panic!("{missing}"));
    let output = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Drop for Chromium {
    fn drop(&mut self) {
        self.dir.close();
        // The reaper has ended the process; this only reaps the zombie.
        self.child.wait().ok();
    }
}
