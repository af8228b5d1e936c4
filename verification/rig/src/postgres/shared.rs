//! One server per major for all tests. A test that breaks nothing needs no server of its own, only
//! a database: starting one takes a second, and test runners start one process per test.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Postgres, Server};

/// Nobody may kill a shared server, so nothing is shown by waiting for the disk.
const SETTINGS: &[(&str, &str)] = &[("fsync", "off"), ("max_connections", "300")];

/// The servers that this process started because nobody else had.
static OURS: Mutex<BTreeMap<u32, &'static Postgres>> = Mutex::new(BTreeMap::new());

/// The variable with the address of the shared server of a major. `rig COMMAND` sets it.
pub fn variable(major: u32) -> String {
    format!("LANEKEEPER_TEST_PG_{major}")
}

/// The shared server of a major: the one that the environment names, else one for this process.
/// Ask it for a [`super::Database`] of your own. Roles belong to the whole server: give them names
/// that no other test has.
pub fn shared(major: u32) -> Server {
    if let Ok(url) = std::env::var(variable(major)) {
        return Server::at(major, &url);
    }
    let mut ours = OURS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let postgres = ours.entry(major).or_insert_with(|| {
        // Never dropped: its undertaker ends it with the process.
        Box::leak(Box::new(start_shared(major)))
    });
    Server::clone(postgres)
}

/// A server to share, as `rig COMMAND` starts it.
pub fn start_shared(major: u32) -> Postgres {
    Postgres::start_with(major, SETTINGS)
}
