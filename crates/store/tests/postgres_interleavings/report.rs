//! How large a run is, on which majors, and where its figures go.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// `full`: everything. Without it a run takes a share that a machine can do after every change.
const SIZE_VARIABLE: &str = "LANEKEEPER_INTERLEAVINGS";
/// `oldest-and-newest`, or one major. Without it every installed one has its turn.
const MAJORS_VARIABLE: &str = "LANEKEEPER_MAJORS";
/// A file to which figures are appended, one `name=value` per line.
const FIGURES_VARIABLE: &str = "LANEKEEPER_FIGURES";

static WRITES: Mutex<()> = Mutex::new(());

/// Whether everything is to be done.
pub(crate) fn is_full() -> bool {
    std::env::var(SIZE_VARIABLE).is_ok_and(|size| size == "full")
}

/// The majors of PostgreSQL that are tested, oldest first.
pub(crate) fn majors() -> Vec<u32> {
    let installed = rig::postgres::majors();
    match std::env::var(MAJORS_VARIABLE).as_deref() {
        Ok("oldest-and-newest") => {
            let ends = [installed.first(), installed.last()];
            ends.into_iter().flatten().copied().collect()
        }
        Ok(one) => {
            let major = installed.into_iter().find(|major| major.to_string() == one);
            vec![major.unwrap_or_else(|| panic!("PostgreSQL {one} is not installed"))]
        }
        Err(_) => installed,
    }
}

/// One number for a full run, and one for every other.
pub(crate) fn size(full: u64, share: u64) -> u64 {
    if is_full() { full } else { share }
}

/// Prints a figure, and writes it to the report file if one is configured.
pub(crate) fn figure(name: &str, value: u64) {
    eprintln!("{name}: {value}");
    let Some(path) = std::env::var_os(FIGURES_VARIABLE) else {
        return;
    };
    let one_by_one = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = File::options()
        .create(true)
        .append(true)
        .open(Path::new(&path));
    let mut file = file.expect("the file for the figures");
    writeln!(file, "{name}={value}").expect("the file for the figures");
    drop(one_by_one);
}
