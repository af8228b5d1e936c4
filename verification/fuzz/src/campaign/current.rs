//! The input that is being run, in a file: what kills the process (a full stack, no memory) leaves it there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

pub(super) struct Current {
    file: File,
}

impl Current {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::create(path)?;
        Ok(Self { file })
    }

    pub(super) fn write(&self, input: &[u8]) -> io::Result<()> {
        self.file.write_all_at(input, 0)?;
        self.file.set_len(input.len() as u64)
    }
}
