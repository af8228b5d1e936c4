//! Where a key comes from. Nothing here shows a key.

use std::fmt;
use std::path::PathBuf;

use domain::ChainId;

/// One configured key.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    /// Where it comes from.
    pub source: KeySource,
    /// The chains it may sign for; empty: all of them.
    pub chains: Vec<ChainId>,
}

/// Where a key comes from.
#[derive(Clone)]
pub enum KeySource {
    /// 64 hexadecimal digits, with or without `0x`, written in the configuration itself.
    Inline(String),
    /// A file that holds such digits.
    File(PathBuf),
    /// An environment variable, by its name, that holds such digits.
    Env(String),
    /// An encrypted file (Web3 Secret Storage, version 3) and the file that holds its password.
    Keystore {
        /// The encrypted file.
        path: PathBuf,
        /// The password, alone in a file; line ends after it do not count.
        password_file: PathBuf,
    },
}

impl From<KeySource> for KeyEntry {
    /// A key for every chain.
    fn from(source: KeySource) -> Self {
        Self {
            source,
            chains: Vec::new(),
        }
    }
}

/// Names the place to correct in an error message.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(_) => f.write_str("inline key"),
            Self::File(path) => write!(f, "key file {}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Keystore { path, .. } => write!(f, "keystore {}", path.display()),
        }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySource({self})")
    }
}
