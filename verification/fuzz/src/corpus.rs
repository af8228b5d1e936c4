//! The files of inputs: `corpus/<target>/` in the repository (seeds, found ones, and regressions).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of the repository's corpus.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The files of one target, in the order of their names.
pub fn files(corpus: &Path, target: &str) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(corpus.join(target))? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The inputs of one target.
pub fn inputs(corpus: &Path, target: &str) -> io::Result<Vec<Vec<u8>>> {
    files(corpus, target)?.into_iter().map(fs::read).collect()
}

/// A name that follows from the content.
#[must_use]
pub fn name_of(input: &[u8]) -> String {
    // FNV-1a: the same on every machine and in every version.
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
