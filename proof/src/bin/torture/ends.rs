//! Why nodes ended though nobody ended them: some ends are meant, every other one is a bug that a restart
//! would hide.

use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

/// What a node says when it serves.
const READY: &str = " INFO ready ";

/// What it says last when another process runs under its name: then it must end.
const REPLACED: &str = "another process with the same node.name has replaced this one";

/// What it says last when the database is away at its start: whoever started it tries again.
const STORE_AWAY: [&str; 2] = [
    "the store cannot be opened",
    "the store did not take this node",
];

/// What the standard library says of every panic.
pub(crate) const PANIC: &str = "panicked at";

/// All ends of one node that were not ours.
#[derive(Default)]
pub(crate) struct Ends(Mutex<Vec<End>>);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Whether it is one that is meant.
    pub(crate) is_meant: bool,
    /// How it ended, and what it said last.
    pub(crate) how: String,
}

impl End {
    /// A node ended so, after it had said this since its start.
    pub(crate) fn new(status: ExitStatus, said: &str) -> Self {
        let lines = || said.lines().map(str::trim);
        let last = lines().rfind(|line| !line.is_empty()).unwrap_or_default();
        let has_served = lines().any(|line| line.contains(READY));
        let is_start_in_vain = !has_served && STORE_AWAY.iter().any(|why| last.contains(why));
        let has_panicked = lines().any(|line| line.contains(PANIC));
        Self {
            is_meant: !has_panicked && (is_start_in_vain || last.contains(REPLACED)),
            how: format!("{status}: {last}"),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "isMeant": self.is_meant, "how": self.how })
    }
}

impl Ends {
    pub(crate) fn add(&self, end: End) {
        self.lock().push(end);
    }

    pub(crate) fn all(&self) -> Vec<End> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<End>> {
        self.0.lock().expect("nothing panics while it holds this")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SERVED: &str = "2026-01-01T00:00:00Z  INFO ready node=\"a\" address=127.0.0.1:1\n";

    fn is_meant(code: i32, said: &str) -> bool {
        End::new(ExitStatus::from_raw(code << 8), said).is_meant
    }

    #[test]
    fn only_a_lost_name_and_a_start_without_a_database_are_meant() {
        assert!(is_meant(
            1,
            &format!("{SERVED}the node ended: {REPLACED}\n")
        ));
        let away = "the store cannot be opened: the database cannot be reached\n";
        assert!(is_meant(3, away));
        assert!(!is_meant(3, &format!("{SERVED}{away}")), "it had served");
        assert!(!is_meant(1, &format!("{SERVED}the API ended: Ok(())\n")));
        assert!(!is_meant(0, SERVED), "also one that ends well");
        assert!(!is_meant(1, "the node does not start: no threads\n"));
        assert!(!is_meant(101, ""));
    }

    #[test]
    fn a_panic_is_never_meant() {
        let said = format!("thread 'x' panicked at src/a.rs:1:\n{REPLACED}\n");
        assert!(!is_meant(1, &said));
    }
}
