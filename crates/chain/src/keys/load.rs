//! Loads keys from their configured sources. Errors name the source and the fault, never the key.

use std::collections::BTreeMap;
use std::env::VarError;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy_primitives::B256;
use alloy_signer::SignerSync;
use alloy_signer_local::Secp256k1Signer;
use domain::Address;
use thiserror::Error;

use super::{Account, KeyEntry, KeySource, LocalSigner, keystore};

/// A larger file is not a key file.
pub(super) const KEY_FILE_BYTES_MAX: u64 = 64 << 10;
const KEY_DIGITS: usize = 64;

/// A key that cannot be used.
#[derive(Debug, Error)]
#[error("key {number} ({place}): {problem}")]
pub struct KeyError {
    /// The position in the configuration, counted from 1.
    pub number: usize,
    /// Where it comes from.
    pub place: String,
    /// What is wrong with it.
    pub problem: KeyProblem,
}

/// What is wrong with a key.
#[derive(Debug, Error)]
pub enum KeyProblem {
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{} is too large for a key or password file", .path.display())]
    TooLarge { path: PathBuf },
    #[error("it is not text")]
    NotText,
    #[error("it is not set")]
    NotSet,
    #[error(
        "a private key is {KEY_DIGITS} hexadecimal digits, with or without 0x; this value is not"
    )]
    NotHex,
    #[error("a private key has {KEY_DIGITS} hexadecimal digits, this value has {0}")]
    Length(usize),
    /// Zero, or not below the order of the curve.
    #[error("these digits are not a valid private key")]
    OutOfRange,
    /// The keystore is damaged or of another kind.
    #[error("{0}")]
    Keystore(String),
    #[error("the password in {} does not open it", .password_file.display())]
    WrongPassword { password_file: PathBuf },
    #[error("it states account {stated}, but its key belongs to account {found}")]
    OtherAccount {
        /// Written in the file.
        stated: Address,
        /// Derived from the key.
        found: Address,
    },
    #[error("it contains account {account}, which {other} contains already; remove one of them")]
    Duplicate { account: Address, other: String },
    /// The signing library returned a signature of another account.
    #[error("a test signature does not recover to account {0}")]
    SelfTest(Address),
}

impl KeyError {
    /// Whether its source is not there at all: it may be there on another machine.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match &self.problem {
            KeyProblem::Unreadable { error, .. } => error.kind() == ErrorKind::NotFound,
            KeyProblem::NotSet => true,
            KeyProblem::TooLarge { .. }
            | KeyProblem::NotText
            | KeyProblem::NotHex
            | KeyProblem::Length(_)
            | KeyProblem::OutOfRange
            | KeyProblem::Keystore(_)
            | KeyProblem::WrongPassword { .. }
            | KeyProblem::OtherAccount { .. }
            | KeyProblem::Duplicate { .. }
            | KeyProblem::SelfTest(_) => false,
        }
    }
}

/// Loads all keys. Blocks: reads files, and decrypting a keystore takes up to a second.
pub fn load(entries: Vec<KeyEntry>) -> Result<LocalSigner, KeyError> {
    load_with_env(entries, |name| std::env::var(name))
}

/// [`load`] with a given environment.
pub(super) fn load_with_env(
    entries: Vec<KeyEntry>,
    env: impl Fn(&str) -> Result<String, VarError>,
) -> Result<LocalSigner, KeyError> {
    let mut accounts: BTreeMap<Address, Account> = BTreeMap::new();
    for (index, KeyEntry { source, chains }) in entries.into_iter().enumerate() {
        let place = source.to_string();
        let failed = |problem| KeyError {
            number: index.saturating_add(1),
            place: place.clone(),
            problem,
        };
        let key = key_from(&source, &env)
            .and_then(check_signing)
            .map_err(failed)?;
        let account = key.address();
        if let Some(other) = accounts.get(&account) {
            let other = other.place.clone();
            return Err(failed(KeyProblem::Duplicate { account, other }));
        }
        accounts.insert(account, Account { key, place, chains });
    }
    Ok(LocalSigner {
        accounts: Arc::new(accounts),
    })
}

fn key_from(
    source: &KeySource,
    env: impl Fn(&str) -> Result<String, VarError>,
) -> Result<Secp256k1Signer, KeyProblem> {
    match source {
        KeySource::Inline(digits) => key_from_hex(digits),
        KeySource::File(path) => {
            warn_if_others_can_read(path);
            key_from_hex(&read_text(path)?)
        }
        KeySource::Env(name) => {
            let digits = env(name).map_err(|error| match error {
                VarError::NotPresent => KeyProblem::NotSet,
                VarError::NotUnicode(_) => KeyProblem::NotText,
            })?;
            key_from_hex(&digits)
        }
        KeySource::Keystore {
            path,
            password_file,
        } => {
            warn_if_others_can_read(password_file);
            let password = read_text(password_file)?;
            let text = read_text(path)?;
            keystore::open(
                path,
                &text,
                password.trim_end_matches(['\r', '\n']),
                password_file,
            )
        }
    }
}

/// Not a library's parser, because its errors quote the wrong digit.
fn key_from_hex(text: &str) -> Result<Secp256k1Signer, KeyProblem> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(KeyProblem::NotHex);
    }
    if digits.len() != KEY_DIGITS {
        return Err(KeyProblem::Length(digits.len()));
    }
    let mut key = B256::ZERO;
    hex::decode_to_slice(digits, key.as_mut_slice())
        .ok()
        .ok_or(KeyProblem::NotHex)?;
    Secp256k1Signer::from_bytes(&key)
        .ok()
        .ok_or(KeyProblem::OutOfRange)
}

/// Signs once and recovers the signer, so that envelopes need no such check later.
fn check_signing(key: Secp256k1Signer) -> Result<Secp256k1Signer, KeyProblem> {
    let probe = B256::repeat_byte(0x5a);
    let signer = key
        .sign_hash_sync(&probe)
        .ok()
        .and_then(|signature| signature.recover_address_from_prehash(&probe).ok());
    if signer == Some(key.address()) {
        Ok(key)
    } else {
        Err(KeyProblem::SelfTest(key.address()))
    }
}

pub(super) fn read_text(path: &Path) -> Result<String, KeyProblem> {
    let unreadable = |error| KeyProblem::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(KEY_FILE_BYTES_MAX.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(KeyProblem::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).ok().ok_or(KeyProblem::NotText)
}

/// A warning and not an error, because containers often mount secrets like this.
fn warn_if_others_can_read(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            tracing::warn!(file = %path.display(), "this secret is readable by every user of the host; restrict its permissions");
        }
    }
}
