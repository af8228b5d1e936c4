//! The binary as a process, and its output.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;

pub(crate) const ALICE: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
pub(crate) const BOB: &str = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";

pub(crate) fn lanekeeper() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanekeeper"));
    // The developer's environment must not affect tests.
    for name in [
        "LANEKEEPER_URL",
        "LANEKEEPER_KEY",
        "LANEKEEPER_LOG",
        "RUST_LOG",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    lanekeeper().args(args).output().expect("the binary runs")
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", err(output));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

/// A process that has printed its ready line. Killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) ready: Value,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("stdout can be read");
        let ready = serde_json::from_str(&line).expect("the first line is JSON");
        Self { child, ready }
    }

    pub(crate) fn dev(folder: &Path, args: &[&str]) -> Self {
        let mut command = lanekeeper();
        command.args(["dev", "--json", "--chain-port", "0", "--dir"]);
        command.arg(folder).args(args);
        if !args.contains(&"--port") {
            command.args(["--port", "0"]);
        }
        Self::start(command)
    }

    pub(crate) fn url(&self, key: &str) -> String {
        self.ready[key]
            .as_str()
            .expect("the ready line has an address")
            .to_owned()
    }

    /// Runs a client command against this node.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        lanekeeper()
            .args(args)
            .env("LANEKEEPER_URL", self.url("api"))
            .output()
            .expect("it runs")
    }

    pub(crate) fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .expect("kill runs");
        assert!(kill.success());
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
