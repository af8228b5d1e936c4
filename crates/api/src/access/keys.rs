//! API keys: what a caller shows, what the configuration keeps, and what a key may do.
//!
//! A key carries 256 random bits, so its hash tells nothing that could be guessed: one round of
//! SHA-256 is enough. A slow hash protects passwords that people think up; here it would only make
//! every request slow.

use std::fmt;
use std::str::FromStr;

use rand::RngCore;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;

/// What a caller may do. A flat list: no scope contains another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Look at txs, events, lanes and nodes.
    Read,
    /// Make txs.
    Send,
    /// Change how lanes and nodes work.
    Operate,
    /// Scrape the metrics, and see nothing else.
    Metrics,
}

/// A key as the configuration keeps it: who shows it, its hash, and what it may do. Two keys may
/// have one name, so that a caller can change over without a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    name: String,
    hash: [u8; SHA256_OUTPUT_LEN],
    scopes: Vec<Scope>,
}

/// Why something is not a key, or not a part of one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadKey {
    /// The name breaks its rule: it is a part of the key, and shown in logs.
    #[error("a key's name must be 1 to {NAME_LEN_MAX} letters, digits, `-` or `.`, not {0:?}")]
    Name(String),
    /// The hash is none.
    #[error("a key's hash must be the 64 hex digits of its SHA-256")]
    Hash,
    /// No such scope.
    #[error("a scope must be read, send, operate or metrics, not {0:?}")]
    Scope(String),
    /// A key without a scope opens nothing.
    #[error("a key needs at least one scope: read, send, operate or metrics")]
    NoScope,
}

/// What every key begins with, so that leaked ones can be searched for.
const PREFIX: &str = "lk_";
/// The longest name of a key.
const NAME_LEN_MAX: usize = 64;
/// Random bytes in a key.
const SECRET_BYTES: usize = 32;
/// The characters they make: five bits each.
const SECRET_CHARS: usize = (SECRET_BYTES * 8).div_ceil(5);
/// Base 32 without characters that people confuse.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Makes a key for a caller of this name: the key itself, to be shown once, and its hash for the
/// configuration.
pub fn generate(name: &str) -> Result<(String, String), BadKey> {
    check_name(name)?;
    let mut secret = [0; SECRET_BYTES];
    rand::rng().fill_bytes(&mut secret);
    let key = format!("{PREFIX}{name}_{}", base32(&secret));
    let hash = hash(&key);
    Ok((key, hash))
}

/// The hash of a key, as the configuration keeps it.
#[must_use]
pub fn hash(key: &str) -> String {
    hex::encode(sha256(key))
}

impl ApiKey {
    /// A key by its hash.
    pub fn new(name: &str, hash: &str, scopes: &[Scope]) -> Result<Self, BadKey> {
        check_name(name)?;
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if hex::decode_to_slice(hash, &mut bytes).is_err() {
            return Err(BadKey::Hash);
        }
        if scopes.is_empty() {
            return Err(BadKey::NoScope);
        }
        Ok(Self {
            name: name.to_owned(),
            hash: bytes,
            scopes: scopes.to_vec(),
        })
    }

    /// Who shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may do.
    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }
}

/// The key that a caller shows, when it is one of these. Takes the same time whichever it is and how
/// much of it is right.
pub(super) fn find<'a>(keys: &'a [ApiKey], shown: &str) -> Option<&'a ApiKey> {
    let hash = sha256(shown);
    let mut found = None;
    for key in keys {
        let same: Choice = key.hash.as_slice().ct_eq(&hash);
        if bool::from(same) {
            found = Some(key);
        }
    }
    found
}

/// Whether a text has the form of our keys. It keeps short, guessable texts out, whatever hashes
/// somebody has configured.
pub(super) fn is_formed(text: &str) -> bool {
    let parts = text
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split_once('_'));
    parts.is_some_and(|(name, secret)| {
        check_name(name).is_ok()
            && secret.len() == SECRET_CHARS
            && secret.bytes().all(|byte| ALPHABET.contains(&byte))
    })
}

fn check_name(name: &str) -> Result<(), BadKey> {
    let fits = (1..=NAME_LEN_MAX).contains(&name.len());
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if fits && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(BadKey::Name(name.chars().take(NAME_LEN_MAX).collect()))
}

fn sha256(text: &str) -> [u8; SHA256_OUTPUT_LEN] {
    digest(&SHA256, text.as_bytes())
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(SECRET_CHARS);
    let (mut bits, mut count) = (0_u32, 0_u32);
    let mut put = |five: u32| {
        let place = usize::try_from(five & 31).expect("five bits");
        text.push(char::from(ALPHABET[place]));
    };
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            put(bits >> count);
        }
    }
    if count > 0 {
        put(bits << (5 - count));
    }
    text
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Read, Self::Send, Self::Operate, Self::Metrics];

    /// The word in the configuration and in problems.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Send => "send",
            Self::Operate => "operate",
            Self::Metrics => "metrics",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = BadKey;

    fn from_str(word: &str) -> Result<Self, BadKey> {
        let known = Self::ALL.into_iter().find(|scope| scope.as_str() == word);
        known.ok_or_else(|| BadKey::Scope(word.chars().take(NAME_LEN_MAX).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_hash_and_nothing_else_is() {
        let (ours, our_hash) = generate("payouts").unwrap();
        let (next, next_hash) = generate("payouts").unwrap();
        let (foreign, _) = generate("payouts").unwrap();
        assert_eq!(hash(&ours), our_hash);
        assert_ne!(ours, next, "chance is in it");
        let keys = [
            ApiKey::new("payouts", &our_hash, &[Scope::Send]).unwrap(),
            ApiKey::new("payouts", &next_hash, &[Scope::Read]).unwrap(),
        ];
        assert_eq!(find(&keys, &ours), Some(&keys[0]));
        assert_eq!(find(&keys, &next), Some(&keys[1]));
        assert_eq!(find(&keys, &foreign), None);
        assert_eq!(find(&keys, &our_hash), None, "the hash opens nothing");
        assert_eq!(find(&[], &ours), None);
    }

    #[test]
    fn keys_have_a_form_that_guessable_texts_do_not_have() {
        let (key, _) = generate("a.b-9").unwrap();
        assert!(key.starts_with("lk_a.b-9_") && is_formed(&key), "{key}");
        assert_eq!(key.len(), "lk_a.b-9_".len() + 52);
        let short = &key[..key.len() - 1];
        let upper = key.to_uppercase();
        let long = format!("{key}0");
        for bad in ["", "lk_", "lk_a_secret", "password", short, &upper, &long] {
            assert!(!is_formed(bad), "{bad}");
        }
    }

    #[test]
    fn every_bit_of_the_secret_is_in_the_text() {
        assert_eq!(base32(&[0; SECRET_BYTES]), "0".repeat(SECRET_CHARS));
        assert_eq!(base32(&[0b0000_1000, 0b0100_0000]), "1100");
        let last = base32(&[0xff; SECRET_BYTES]);
        assert!(last.starts_with("zzzz") && last.ends_with("zg"), "{last}");
    }

    #[test]
    fn what_is_no_part_of_a_key_is_told() {
        let good = "0".repeat(64);
        for name in ["", "two words", "under_score", "ü", &"x".repeat(65)] {
            assert!(matches!(generate(name), Err(BadKey::Name(_))), "{name}");
            let made = ApiKey::new(name, &good, &[Scope::Read]);
            assert!(matches!(made, Err(BadKey::Name(_))), "{name}");
        }
        for hash in ["", "0", &"g".repeat(64), &"0".repeat(62), &"0".repeat(66)] {
            assert_eq!(
                ApiKey::new("a", hash, &[Scope::Read]),
                Err(BadKey::Hash),
                "{hash}"
            );
        }
        assert_eq!(ApiKey::new("a", &good, &[]), Err(BadKey::NoScope));
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert!(matches!("Read".parse::<Scope>(), Err(BadKey::Scope(_))));
    }
}
