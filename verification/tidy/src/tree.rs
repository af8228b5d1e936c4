//! The files that the rules read.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source of ours.
const SKIPPED: [&str; 6] = [
    ".git",
    "corpus",
    "node_modules",
    "out",
    "target",
    ".lanekeeper",
];

/// All text files below one root, in path order.
pub struct SourceTree {
    pub files: Vec<SourceFile>,
}

/// One file, with its path relative to the root of the tree.
pub struct SourceFile {
    pub path: String,
    pub text: String,
}

/// The repository that is checked: this one, or the copy that `LANEKEEPER_TIDY_ROOT` names (a proof
/// plants mistakes in a copy and expects each rule to report its own).
pub fn repository_root() -> PathBuf {
    match std::env::var_os("LANEKEEPER_TIDY_ROOT") {
        Some(root) => root.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    }
}

impl SourceTree {
    /// Reads every UTF-8 file below `root`.
    ///
    /// # Panics
    /// When a folder cannot be listed or holds no file: the rule would check nothing.
    pub fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of the repository can be listed") {
                let path = entry
                    .expect("a folder of the repository can be listed")
                    .path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if path.is_dir() && !SKIPPED.contains(&name.as_ref()) {
                    folders.push(path);
                } else if path.is_file()
                    && let Ok(text) = fs::read_to_string(&path)
                {
                    let path = path.strip_prefix(root).expect("it is below the root");
                    let path = path.to_string_lossy().into_owned();
                    files.push(SourceFile { path, text });
                }
            }
        }
        assert!(!files.is_empty(), "{} holds no file", root.display());
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// The files below one of these folders with this extension.
    pub fn files_in<'a>(
        &'a self,
        folders: &'a [&str],
        extension: &'a str,
    ) -> impl Iterator<Item = &'a SourceFile> {
        self.files.iter().filter(move |file| {
            file.has_extension(extension) && folders.iter().any(|f| file.is_in(f))
        })
    }
}

impl SourceFile {
    pub fn is_in(&self, folder: &str) -> bool {
        self.path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    }

    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == extension)
    }

    /// Whether it is test code: compiled into no program, whichever crate it belongs to.
    pub fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.any(|part| part == "tests" || part == "tests.rs")
    }
}
