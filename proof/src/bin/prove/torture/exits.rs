//! Exits of nodes that the proof did not cause: some are expected, every other one is a bug that a restart would
//! hide.

use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

/// Logged when a node is ready.
const READY: &str = " INFO ready ";

/// Last message when another process has the same node name: then it must exit.
const REPLACED: &str = "another process with the same node.name has replaced this one";

/// Last message when the database is unavailable at the start: the service manager restarts it.
const STORE_UNAVAILABLE: [&str; 2] = [
    "cannot open the store",
    "the first heartbeat could not be written to the store",
];

/// The standard library's text of every panic.
pub(crate) const PANIC: &str = "panicked at";

/// All exits of one node that the proof did not cause.
#[derive(Default)]
pub(crate) struct NodeExits(Mutex<Vec<NodeExit>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeExit {
    pub(crate) is_expected: bool,
    /// Exit status and last log line.
    pub(crate) how: String,
}

impl NodeExit {
    /// From the exit status and the log since the start.
    pub(crate) fn new(status: ExitStatus, log_text: &str) -> Self {
        let lines = || log_text.lines().map(str::trim);
        let last = lines().rfind(|line| !line.is_empty()).unwrap_or_default();
        let has_served = lines().any(|line| line.contains(READY));
        let is_start_in_vain =
            !has_served && STORE_UNAVAILABLE.iter().any(|why| last.contains(why));
        let has_panicked = lines().any(|line| line.contains(PANIC));
        Self {
            is_expected: !has_panicked && (is_start_in_vain || last.contains(REPLACED)),
            how: format!("{status}: {last}"),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "isMeant": self.is_expected, "how": self.how })
    }
}

impl NodeExits {
    pub(crate) fn add(&self, end: NodeExit) {
        self.lock().push(end);
    }

    pub(crate) fn all(&self) -> Vec<NodeExit> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<NodeExit>> {
        self.0.lock().expect("nothing panics while it holds this")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SERVED: &str = "2026-01-01T00:00:00Z  INFO ready node=\"a\" address=127.0.0.1:1\n";

    fn is_expected(code: i32, log_text: &str) -> bool {
        NodeExit::new(ExitStatus::from_raw(code << 8), log_text).is_expected
    }

    #[test]
    fn only_lost_name_and_start_without_database_are_expected() {
        assert!(is_expected(
            1,
            &format!("{SERVED}the node ended: {REPLACED}\n")
        ));
        let away = "lanekeeper: cannot open the store: the database at x cannot be reached\n";
        assert!(is_expected(3, away));
        assert!(!is_expected(3, &format!("{SERVED}{away}")), "it had served");
        assert!(!is_expected(1, &format!("{SERVED}the API ended: Ok(())\n")));
        assert!(!is_expected(0, SERVED), "also one that ends well");
        assert!(!is_expected(1, "the node does not start: no threads\n"));
        assert!(!is_expected(101, ""));
    }

    #[test]
    fn panic_is_never_expected() {
        let log_text = format!("thread 'x' panicked at src/a.rs:1:\n{REPLACED}\n");
        assert!(!is_expected(1, &log_text));
    }
}
