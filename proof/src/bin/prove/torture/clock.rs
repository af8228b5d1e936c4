//! Adjustable wall clocks, one per node: a small preloaded library adds an offset from a file.

use std::path::{Path, PathBuf};

use proof::{Outcome, Scratch, ensure};
use tokio::process::Command;

const SOURCE: &str = include_str!("clock.c");

pub(crate) struct Clocks {
    library: PathBuf,
    folder: PathBuf,
}

pub(crate) struct Clock {
    file: PathBuf,
}

impl Clocks {
    /// Builds the library.
    pub(crate) async fn build(home: &Scratch) -> Outcome<Self> {
        let folder = home.folder("clocks")?;
        let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
        std::fs::write(&source, SOURCE)?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .await?;
        let stderr = String::from_utf8_lossy(&built.stderr).into_owned();
        ensure(built.status.success(), format!("cc: {stderr}"))?;
        Ok(Self { library, folder })
    }

    /// A correct clock, and the environment of a process that uses it.
    pub(crate) fn add(&self, name: &str) -> Outcome<(Clock, Vec<(String, String)>)> {
        let clock = Clock {
            file: self.folder.join(name),
        };
        std::fs::write(&clock.file, 0_i64.to_ne_bytes())?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let env = vec![
            ("LD_PRELOAD".to_owned(), text(&self.library)),
            ("TORTURE_CLOCK".to_owned(), text(&clock.file)),
        ];
        Ok((clock, env))
    }
}

impl Clock {
    /// Sets the offset in seconds.
    pub(crate) fn set(&self, seconds: i64) -> Outcome<()> {
        use std::os::unix::fs::FileExt as _;
        // In place: the process has the file mapped.
        let file = std::fs::File::options().write(true).open(&self.file)?;
        file.write_all_at(&seconds.to_ne_bytes(), 0)?;
        Ok(())
    }
}
