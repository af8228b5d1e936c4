//! Encrypted key files: Web3 Secret Storage, version 3, as geth and others write them.
//!
//! The decrypting library panics on short fields and does not check all of them, so this module parses and checks
//! the file first.

use std::path::Path;

use alloy_signer_local::{LocalSignerError, Secp256k1Signer};
use domain::Address;
use serde::Deserialize;

use super::load::KeyProblem;
use crate::classify::is_wrong_keystore_password;

/// Memory that decryption may take: the usual parameters need 256 MiB at most.
const SCRYPT_BYTES_MAX: u64 = 1 << 30;
/// Rounds that decryption may take: 262,144 is usual.
const PBKDF2_ROUNDS_MAX: u32 = 10_000_000;
const DERIVED_BYTES: u64 = 32;
const IV_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

#[derive(Deserialize)]
struct Stored {
    version: u64,
    address: Option<String>,
    #[serde(alias = "Crypto")]
    crypto: Crypto,
}

#[derive(Deserialize)]
struct Crypto {
    cipher: String,
    cipherparams: CipherParams,
    ciphertext: String,
    kdf: String,
    kdfparams: KdfParams,
    mac: String,
}

#[derive(Deserialize)]
struct CipherParams {
    iv: String,
}

#[derive(Deserialize)]
struct KdfParams {
    dklen: u64,
    salt: String,
    n: Option<u32>,
    r: Option<u32>,
    p: Option<u32>,
    c: Option<u32>,
    prf: Option<String>,
}

/// Decrypts the file at `path`, whose content is `text`.
pub(super) fn open(
    path: &Path,
    text: &str,
    password: &str,
    password_file: &Path,
) -> Result<Secp256k1Signer, KeyProblem> {
    let stored: Stored = serde_json::from_str(text)
        .map_err(|error| KeyProblem::Keystore(format!("not a keystore of version 3: {error}")))?;
    let stated = check(&stored).map_err(|fault| KeyProblem::Keystore(fault.to_owned()))?;
    let key = Secp256k1Signer::decrypt_keystore(path, password).map_err(|error| {
        // The file passed the checks, so a wrong MAC means a wrong password.
        if is_wrong_keystore_password(&error.to_string()) {
            return KeyProblem::WrongPassword {
                password_file: password_file.to_owned(),
            };
        }
        if matches!(error, LocalSignerError::Secp256k1Error(_)) {
            return KeyProblem::OutOfRange;
        }
        KeyProblem::Keystore(format!("cannot be opened: {error}"))
    })?;
    if key.address() != stated {
        return Err(KeyProblem::OtherAccount {
            stated,
            found: key.address(),
        });
    }
    Ok(key)
}

/// Checks everything on which the library would panic, run for ever or decrypt garbage. Returns the stated address.
fn check(stored: &Stored) -> Result<Address, &'static str> {
    let crypto = &stored.crypto;
    if stored.version != 3 {
        return Err("only keystores of version 3 can be read");
    }
    if crypto.cipher != "aes-128-ctr" {
        return Err("only the cipher aes-128-ctr is supported");
    }
    if decoded_len(&crypto.cipherparams.iv) != Some(IV_BYTES) {
        return Err("its iv is not 16 bytes");
    }
    if decoded_len(&crypto.ciphertext) != Some(KEY_BYTES) {
        return Err("its ciphertext is not 32 bytes");
    }
    if decoded_len(&crypto.mac) != Some(KEY_BYTES) {
        return Err("its mac is not 32 bytes");
    }
    if crypto.kdfparams.dklen != DERIVED_BYTES {
        return Err("its dklen is not 32");
    }
    if decoded_len(&crypto.kdfparams.salt).is_none() {
        return Err("its salt is not hexadecimal");
    }
    check_derivation(&crypto.kdf, &crypto.kdfparams)?;
    let address = stored.address.as_deref().ok_or("it has no address field")?;
    address
        .parse()
        .ok()
        .ok_or("its address field is not an address")
}

fn check_derivation(kdf: &str, params: &KdfParams) -> Result<(), &'static str> {
    match (kdf, params) {
        (
            "scrypt",
            KdfParams {
                n: Some(n),
                r: Some(r),
                p: Some(p),
                ..
            },
        ) => {
            if *n < 2 || !n.is_power_of_two() || *r == 0 || *p == 0 {
                return Err("its scrypt parameters are not valid");
            }
            let bytes = u64::from(*n)
                .saturating_mul(u64::from(*r))
                .saturating_mul(128);
            if bytes.saturating_mul(u64::from(*p)) > SCRYPT_BYTES_MAX {
                return Err("its scrypt parameters need more than 1 GiB");
            }
            Ok(())
        }
        (
            "pbkdf2",
            KdfParams {
                c: Some(c),
                prf: Some(prf),
                ..
            },
        ) => {
            if prf != "hmac-sha256" {
                return Err("only hmac-sha256 is supported for pbkdf2");
            }
            if !(1..=PBKDF2_ROUNDS_MAX).contains(c) {
                return Err("its pbkdf2 count is not between 1 and 10 million");
            }
            Ok(())
        }
        ("scrypt" | "pbkdf2", _) => Err("its kdfparams are incomplete"),
        _ => Err("only scrypt and pbkdf2 are supported as kdf"),
    }
}

fn decoded_len(digits: &str) -> Option<usize> {
    hex::decode(digits).ok().map(|bytes| bytes.len())
}
