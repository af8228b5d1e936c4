//! The files of a generated node: they hold keys and passwords, so only their owner may read them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::failure::Failure;

/// A configuration in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(toml::Table);

impl Settings {
    /// What a file says already, which wins over what is put later.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::Usage(format!("{} cannot be read: {e}", path.display())))?;
        let table = text
            .parse()
            .map_err(|e| Failure::Usage(format!("{} is not TOML: {e}", path.display())))?;
        Ok(Self(table))
    }

    pub(crate) fn has(&self, section: &str) -> bool {
        self.0.contains_key(section)
    }

    /// Puts a section: its keys one by one where the section is there already.
    pub(crate) fn put(&mut self, section: &str, value: toml::Value) {
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

    /// Puts one key, whatever was there.
    pub(crate) fn set(&mut self, section: &str, key: &str, value: toml::Value) {
        let keys = self.0.entry(section).or_insert_with(|| table([]));
        if let toml::Value::Table(keys) = keys {
            keys.insert(key.to_owned(), value);
        }
    }

    pub(crate) fn text(&self) -> String {
        self.0.to_string()
    }

    /// Writes it where only its owner may read it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        private_file(path, &self.text())
    }
}

pub(crate) fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    let entries = entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    toml::Value::Table(entries.collect())
}

/// Writes a file that only its owner may read, from its first byte on.
pub(crate) fn private_file(path: &Path, text: &str) -> Result<(), Failure> {
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
    fn what_is_there_wins_unless_it_is_set() {
        let mut settings = Settings("[lease]\nduration = \"8s\"".parse().unwrap());
        settings.put(
            "lease",
            table([("duration", "5s".into()), ("idleRelease", "1h".into())]),
        );
        settings.put("http", table([("maxBody", "2MiB".into())]));
        settings.set("http", "listen", "127.0.0.1:0".into());
        let expected = "[http]\nlisten = \"127.0.0.1:0\"\nmaxBody = \"2MiB\"\n\n\
                        [lease]\nduration = \"8s\"\nidleRelease = \"1h\"\n";
        assert_eq!(settings.text(), expected);
    }

    #[test]
    fn a_private_file_is_closed_to_others_also_when_it_was_open_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "old").unwrap();
        private_file(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
