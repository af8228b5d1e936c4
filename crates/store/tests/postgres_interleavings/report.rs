//! How large a run is, and where its figures go.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// `full`: everything. Without it a run takes a share that a machine can do after every change.
const SIZE_VARIABLE: &str = "LANEKEEPER_INTERLEAVINGS";
/// A file to which figures are appended, one `name=value` per line.
const FIGURES_VARIABLE: &str = "LANEKEEPER_FIGURES";

static WRITES: Mutex<()> = Mutex::new(());

/// Whether everything is to be done.
pub(crate) fn is_full() -> bool {
    std::env::var(SIZE_VARIABLE).is_ok_and(|size| size == "full")
}

/// One number for a full run, and one for every other.
pub(crate) fn size(full: u64, share: u64) -> u64 {
    if is_full() { full } else { share }
}

/// Says a figure, and writes it down when somebody wants it.
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
