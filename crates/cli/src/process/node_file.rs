//! Generated files of a node. They contain keys and passwords, so that only their owner may read them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::Failure;

/// A configuration file that is being generated.
#[derive(Clone, Debug, Default)]
pub struct NodeFile(toml::Table);

impl NodeFile {
    /// Starts from an existing file, whose keys win over those of [`NodeFile::add_section`].
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::Usage(format!("{} cannot be read: {e}", path.display())))?;
        let table = text
            .parse()
            .map_err(|e| Failure::Usage(format!("{} is not TOML: {e}", path.display())))?;
        Ok(Self(table))
    }

    pub fn has_section(&self, section: &str) -> bool {
        self.0.contains_key(section)
    }

    /// Adds a section; of an existing one only the missing keys.
    pub fn add_section(&mut self, section: &str, value: toml::Value) {
        match (self.0.get_mut(section), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => {
                for (key, value) in new {
                    old.entry(key).or_insert(value);
                }
            }
            (Some(_), _) => {}
            (None, value) => {
                self.0.insert(section.to_owned(), value);
            }
        }
    }

    /// Sets one key, replacing its value.
    pub fn set_key(&mut self, section: &str, key: &str, value: toml::Value) {
        let keys = self.0.entry(section).or_insert_with(|| table([]));
        if let toml::Value::Table(keys) = keys {
            keys.insert(key.to_owned(), value);
        }
    }

    pub fn to_toml(&self) -> String {
        self.0.to_string()
    }

    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        write_private_file(path, &self.to_toml())
    }
}

pub fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    let entries = entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    toml::Value::Table(entries.collect())
}

/// Writes a file that only its owner may read, from its first byte on: an existing file is replaced.
pub fn write_private_file(path: &Path, text: &str) -> Result<(), Failure> {
    let cannot =
        |e: std::io::Error| Failure::refused(&format!("{} cannot be written", path.display()), &e);
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(cannot(e)),
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(cannot)?;
    file.write_all(text.as_bytes()).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn existing_keys_win_over_added_ones() {
        let mut file = NodeFile("[lease]\nduration = \"8s\"".parse().unwrap());
        file.add_section(
            "lease",
            table([("duration", "5s".into()), ("idleRelease", "1h".into())]),
        );
        file.add_section("http", table([("maxBody", "2MiB".into())]));
        file.set_key("http", "listen", "127.0.0.1:0".into());
        let expected = "[http]\nlisten = \"127.0.0.1:0\"\nmaxBody = \"2MiB\"\n\n\
                        [lease]\nduration = \"8s\"\nidleRelease = \"1h\"\n";
        assert_eq!(file.to_toml(), expected);
    }

    #[test]
    fn private_file_replaces_a_world_readable_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "old").unwrap();
        write_private_file(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
