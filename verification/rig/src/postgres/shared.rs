//! One server per major for all tests. A test without faults needs only a database, not a server: starting one takes
//! a second, and test runners start one process per test.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Postgres, Server};

/// A shared server is never killed, so waiting for the disk would prove nothing.
const SETTINGS: &[(&str, &str)] = &[("fsync", "off"), ("max_connections", "300")];

/// The servers that this process started, without the environment variable.
static OURS: Mutex<BTreeMap<u32, &'static Postgres>> = Mutex::new(BTreeMap::new());

/// The environment variable with the URL of a major's shared server. `rig COMMAND` sets it.
pub fn variable(major: u32) -> String {
    format!("LANEKEEPER_TEST_PG_{major}")
}

/// The shared server of a major: the one in the environment variable, else one for this process. Create a
/// [`super::Database`] in it. Roles belong to the whole server: give them unique names.
pub fn shared(major: u32) -> Server {
    if let Ok(url) = std::env::var(variable(major)) {
        return Server::at(major, &url);
    }
    let mut ours = OURS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let postgres = ours.entry(major).or_insert_with(|| {
        // Never dropped: its reaper ends it with the process.
        Box::leak(Box::new(start_shared(major)))
    });
    Server::clone(postgres)
}

/// Starts a server for [`shared`], as `rig COMMAND` does.
pub fn start_shared(major: u32) -> Postgres {
    Postgres::start_with(major, SETTINGS)
}
