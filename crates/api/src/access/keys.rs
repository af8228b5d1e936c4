//! API keys: their format, the hashes in the configuration, and their scopes.
//!
//! A key carries 256 random bits, so it cannot be found from its hash: one round of SHA-256 is enough. A slow
//! hash protects passwords that people choose; here it would only slow down every request.

use rand::RngCore;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;

/// What a caller may do. A flat list: no scope contains another.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = BadKey, parse_err_fn = unknown_scope)]
pub enum Scope {
    /// Read txs, events, lanes and nodes.
    Read,
    /// Create txs and reserve nonces.
    Send,
    /// Operate lanes and nodes.
    Operate,
    /// Scrape the metrics, and read nothing else.
    Metrics,
}

/// A key in the configuration: the caller's name, the key's hash, and its scopes. Two keys may have the same name,
/// so that a caller can rotate its key without interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    name: String,
    hash: [u8; SHA256_OUTPUT_LEN],
    scopes: Vec<Scope>,
}

/// Why a key, or a part of one, is not valid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadKey {
    /// The name is a part of the key and appears in logs, so its characters are restricted.
    #[error("a key's name must be 1 to {NAME_LEN_MAX} letters, digits, `-` or `.`, not {0:?}")]
    Name(String),
    #[error("a key's hash must be the 64 hex digits of its SHA-256")]
    Hash,
    #[error("a scope must be read, send, operate or metrics, not {0:?}")]
    Scope(String),
    /// A key without a scope would be useless.
    #[error("a key needs at least one scope: read, send, operate or metrics")]
    NoScope,
}

/// Every key starts with it, so that secret scanners find leaked keys.
const PREFIX: &str = "lk_";
/// The longest name of a key.
const NAME_LEN_MAX: usize = 64;
/// Random bytes in a key.
const SECRET_BYTES: usize = 32;
/// The characters that encode them, five bits each.
const SECRET_CHARS: usize = (SECRET_BYTES * 8).div_ceil(5);
/// Base 32 without easily confused characters.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Generates a key for a caller: the key itself, to be shown once, and its hash for the configuration.
pub fn generate(name: &str) -> Result<(String, String), BadKey> {
    check_name(name)?;
    let mut secret = [0; SECRET_BYTES];
    rand::rng().fill_bytes(&mut secret);
    let key = format!("{PREFIX}{name}_{}", base32(&secret));
    let hash = hash(&key);
    Ok((key, hash))
}

/// The hash of a key as written in the configuration.
#[must_use]
pub fn hash(key: &str) -> String {
    hex::encode(sha256(key))
}

impl ApiKey {
    /// A configured key.
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

    /// The caller's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the key gives access to.
    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }
}

/// Finds the key that a caller presents. Takes the same time for every key and for every wrong prefix of one.
pub(super) fn find_key<'a>(keys: &'a [ApiKey], presented: &str) -> Option<&'a ApiKey> {
    let hash = sha256(presented);
    let mut found = None;
    for key in keys {
        let same: Choice = key.hash.as_slice().ct_eq(&hash);
        if bool::from(same) {
            found = Some(key);
        }
    }
    found
}

/// Whether a text has the format of an API key. It refuses short, guessable texts, whatever hashes are
/// configured.
pub(super) fn has_key_format(text: &str) -> bool {
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
    let mut push = |five: u32| {
        let index = usize::try_from(five & 31).expect("five bits");
        text.push(char::from(ALPHABET[index]));
    };
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            push(bits >> count);
        }
    }
    if count > 0 {
        push(bits << (5 - count));
    }
    text
}

impl Scope {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in the configuration and in problem documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

fn unknown_scope(name: &str) -> BadKey {
    BadKey::Scope(name.chars().take(NAME_LEN_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_found_by_its_hash_only() {
        let (ours, our_hash) = generate("payouts").unwrap();
        let (next, next_hash) = generate("payouts").unwrap();
        let (foreign, _) = generate("payouts").unwrap();
        assert_eq!(hash(&ours), our_hash);
        assert_ne!(ours, next, "keys are random");
        let keys = [
            ApiKey::new("payouts", &our_hash, &[Scope::Send]).unwrap(),
            ApiKey::new("payouts", &next_hash, &[Scope::Read]).unwrap(),
        ];
        assert_eq!(find_key(&keys, &ours), Some(&keys[0]));
        assert_eq!(find_key(&keys, &next), Some(&keys[1]));
        assert_eq!(find_key(&keys, &foreign), None);
        assert_eq!(
            find_key(&keys, &our_hash),
            None,
            "the hash is not accepted as a key"
        );
        assert_eq!(find_key(&[], &ours), None);
    }

    #[test]
    fn guessable_texts_do_not_have_the_key_format() {
        let (key, _) = generate("a.b-9").unwrap();
        assert!(
            key.starts_with("lk_a.b-9_") && has_key_format(&key),
            "{key}"
        );
        assert_eq!(key.len(), "lk_a.b-9_".len() + 52);
        let short = &key[..key.len() - 1];
        let upper = key.to_uppercase();
        let long = format!("{key}0");
        for bad in ["", "lk_", "lk_a_secret", "password", short, &upper, &long] {
            assert!(!has_key_format(bad), "{bad}");
        }
    }

    #[test]
    fn base32_encodes_every_bit_of_the_secret() {
        assert_eq!(base32(&[0; SECRET_BYTES]), "0".repeat(SECRET_CHARS));
        assert_eq!(base32(&[0b0000_1000, 0b0100_0000]), "1100");
        let last = base32(&[0xff; SECRET_BYTES]);
        assert!(last.starts_with("zzzz") && last.ends_with("zg"), "{last}");
    }

    #[test]
    fn invalid_names_hashes_and_scopes_are_refused() {
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
        for &scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert!(matches!("Read".parse::<Scope>(), Err(BadKey::Scope(_))));
    }
}
