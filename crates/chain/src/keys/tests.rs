use std::env::VarError;
use std::fs;
use std::path::{Path, PathBuf};

use alloy_consensus::TxEnvelope;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{U256, address, b256};
use alloy_signer::k256::elliptic_curve::rand_core::OsRng;
use domain::{AttemptKind, B256, Bytes, Fees, Nonce, TxId};

use super::load::load_with_env;
use super::*;

/// The first two accounts that anvil and hardhat fund.
const KEY: B256 = b256!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80");
const ACCOUNT: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
const KEY_2: B256 = b256!("59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d");
const ACCOUNT_2: Address = address!("70997970C51812dc3A010C7d01b50e0d17dc79C8");

fn inline(key: B256) -> KeySource {
    KeySource::Inline(key.to_string())
}

fn unsigned(signer: Address, chain: u64, nonce: u64) -> UnsignedEnvelope {
    UnsignedEnvelope {
        tx_id: TxId(Default::default()),
        kind: AttemptKind::Original,
        chain_id: ChainId(chain),
        signer,
        nonce: Nonce(nonce),
        to: Some(Address::ZERO),
        value: U256::from(1),
        data: Bytes::new(),
        gas: 21_000,
        fees: Fees::Eip1559 {
            max_fee: 2,
            max_priority_fee: 1,
        },
    }
}

fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path
}

fn write_keystore(folder: &Path, name: &str, password: &str) -> PathBuf {
    Secp256k1Signer::encrypt_keystore(folder, &mut OsRng, KEY, password, Some(name)).unwrap();
    folder.join(name)
}

fn refusal(source: KeySource) -> String {
    load(vec![source.into()]).unwrap_err().to_string()
}

#[tokio::test]
async fn envelopes_are_signed_in_order_by_their_accounts() {
    let signer = load(vec![inline(KEY).into(), inline(KEY_2).into()]).unwrap();
    for count in [0, 1, INLINE_MAX, INLINE_MAX + 1, 200] {
        let unsigned_envelopes: Vec<UnsignedEnvelope> = (0..count as u64)
            .map(|nonce| unsigned(if nonce % 2 == 0 { ACCOUNT } else { ACCOUNT_2 }, 1, nonce))
            .collect();
        let attempts = signer.sign(unsigned_envelopes.clone(), Timestamp(7)).await;
        assert_eq!(attempts.len(), count);
        for (unsigned_envelopes, attempt) in unsigned_envelopes.iter().zip(attempts) {
            let attempt = attempt.unwrap();
            assert_eq!(
                (attempt.nonce, attempt.signed_at),
                (unsigned_envelopes.nonce, Timestamp(7))
            );
            assert_eq!(
                (attempt.gas, attempt.fees),
                (unsigned_envelopes.gas, unsigned_envelopes.fees)
            );
            assert_eq!(attempt.first_sent_at, None);
            let envelope = TxEnvelope::decode_2718_exact(&attempt.raw).unwrap();
            assert_eq!(
                envelope.recover_signer().unwrap(),
                unsigned_envelopes.signer
            );
            assert_eq!(*envelope.tx_hash(), attempt.hash);
        }
    }
}

#[tokio::test]
async fn refused_envelope_does_not_block_the_others() {
    let entry = KeyEntry {
        source: inline(KEY),
        chains: vec![ChainId(1), ChainId(5)],
    };
    let signer = load(vec![entry, inline(KEY_2).into()]).unwrap();
    assert_eq!(
        signer.accounts(),
        vec![(ACCOUNT_2, vec![]), (ACCOUNT, vec![ChainId(1), ChainId(5)])]
    );
    assert!(signer.is_local(ACCOUNT) && !signer.is_local(Address::ZERO));
    let unsigned_envelopes = vec![
        unsigned(ACCOUNT, 5, 0),
        unsigned(ACCOUNT, 2, 1),
        unsigned(ACCOUNT_2, 2, 2),
        unsigned(Address::ZERO, 1, 3),
        unsigned(ACCOUNT_2, 0, 4),
    ];
    let answers = signer.sign(unsigned_envelopes, Timestamp(0)).await;
    assert!(answers[0].is_ok() && answers[2].is_ok());
    for refused in [1, 3, 4] {
        assert!(
            matches!(answers[refused], Err(SignError::Refused(_))),
            "{:?}",
            answers[refused]
        );
    }
}

#[test]
fn every_source_loads_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let digits = KEY.to_string();
    let bare = digits.strip_prefix("0x").unwrap();
    let password_file = write(folder.path(), "password", "open sesame\n");
    let keystore = write_keystore(folder.path(), "store", "open sesame");
    let sources = vec![
        KeySource::Inline(bare.to_uppercase()),
        KeySource::Inline(format!("  {digits}\n")),
        KeySource::File(write(folder.path(), "key", format!("{bare}\r\n"))),
        KeySource::Env("LANE_KEY".to_owned()),
        KeySource::Keystore {
            path: keystore,
            password_file,
        },
    ];
    for source in sources {
        let place = source.to_string();
        let env = |name: &str| {
            if name == "LANE_KEY" {
                Ok(digits.clone())
            } else {
                Err(VarError::NotPresent)
            }
        };
        let signer = load_with_env(vec![source.into()], env).unwrap();
        assert!(signer.is_local(ACCOUNT), "{place}");
    }
}

#[test]
fn errors_name_source_and_fault_but_not_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let digits = KEY.to_string();
    let cut = &digits[..digits.len() - 2];
    let typo = digits.replace('c', "g");
    let short = write(folder.path(), "short.key", cut);
    let large = write(folder.path(), "large.key", vec![b'1'; 70_000]);
    let binary = write(folder.path(), "binary.key", [0xff, 0xfe]);
    let cases = [
        (
            KeySource::Inline(cut.to_owned()),
            "key 1 (inline key): ",
            "this value has 62",
        ),
        (
            KeySource::Inline(typo),
            "key 1 (inline key): ",
            "64 hexadecimal digits",
        ),
        (
            KeySource::Inline(String::new()),
            "inline key",
            "this value has 0",
        ),
        (
            KeySource::Inline("0".repeat(64)),
            "inline key",
            "not a valid private key",
        ),
        (
            KeySource::Inline("f".repeat(64)),
            "inline key",
            "not a valid private key",
        ),
        (KeySource::File(short), "short.key", "this value has 62"),
        (KeySource::File(large), "large.key", "too large"),
        (KeySource::File(binary), "binary.key", "not text"),
        (
            KeySource::File(folder.path().join("missing.key")),
            "missing.key",
            "No such file",
        ),
        (
            KeySource::File(folder.path().to_owned()),
            "key file",
            "cannot read",
        ),
        (
            KeySource::Env("LANEKEEPER_NO_SUCH_KEY".to_owned()),
            "LANEKEEPER_NO_SUCH_KEY",
            "not set",
        ),
    ];
    for (source, place, fault) in cases {
        let text = refusal(source);
        assert!(text.contains(place) && text.contains(fault), "{text}");
        assert!(!text.contains("0974bec3"), "{text}");
    }
}

#[test]
fn duplicate_account_is_refused() {
    let error = load(vec![inline(KEY).into(), inline(KEY).into()])
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("key 2 (inline key)") && error.contains(&ACCOUNT.to_string()));
}

#[test]
fn debug_output_contains_no_key() {
    let signer = load(vec![inline(KEY).into()]).unwrap();
    let entry = KeyEntry {
        source: inline(KEY),
        chains: vec![ChainId(1)],
    };
    let shown = format!("{signer:?} {entry:?}");
    assert!(shown.contains(&format!("{ACCOUNT:?}")), "{shown}");
    assert!(!shown.contains("0974bec3"), "{shown}");
}

#[test]
fn keystore_test_vector_is_decrypted() {
    // Test vector of the Web3 Secret Storage definition (pbkdf2), with the address added.
    let text = r#"{"address":"008aeeda4d805471df9b2a5b0f38a0c3bcba786b","crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":"6087dab2f9fdbbfaddc31a909735c1e6"},"ciphertext":"5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46","kdf":"pbkdf2","kdfparams":{"c":262144,"dklen":32,"prf":"hmac-sha256","salt":"ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd"},"mac":"517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2"},"id":"3198bc9c-6672-5ab3-d995-4942343ae5b6","version":3}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "store", text);
    let password_file = write(folder.path(), "password", "testpassword");
    let signer = load(vec![
        KeySource::Keystore {
            path,
            password_file,
        }
        .into(),
    ])
    .unwrap();
    assert!(signer.is_local(address!("008AeEda4D805471dF9b2A5B0f38A0C3bCBA786b")));
}

#[test]
fn damaged_keystore_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let good = write_keystore(folder.path(), "good", "right");
    let good_text = fs::read_to_string(&good).unwrap();
    let stored: serde_json::Value = serde_json::from_str(&good_text).unwrap();
    let damaged = |pointer: &str, value: serde_json::Value| {
        let mut copy = stored.clone();
        *copy.pointer_mut(pointer).unwrap() = value;
        copy.to_string()
    };
    let cases = [
        ("{}".to_owned(), "not a keystore"),
        ("garbage".to_owned(), "not a keystore"),
        (damaged("/version", 1.into()), "version 3"),
        (damaged("/address", serde_json::Value::Null), "no address"),
        (
            damaged("/address", ACCOUNT_2.to_string()[2..].into()),
            "states account",
        ),
        (damaged("/crypto/cipher", "aes-256".into()), "aes-128-ctr"),
        (damaged("/crypto/cipherparams/iv", "00".into()), "iv"),
        (damaged("/crypto/ciphertext", "00".into()), "ciphertext"),
        (damaged("/crypto/mac", "zz".into()), "mac"),
        (damaged("/crypto/kdf", "argon2".into()), "scrypt and pbkdf2"),
        (damaged("/crypto/kdf", "pbkdf2".into()), "incomplete"),
        (damaged("/crypto/kdfparams/dklen", 16.into()), "dklen"),
        (damaged("/crypto/kdfparams/n", 1000.into()), "not valid"),
        (
            damaged("/crypto/kdfparams/n", (1_u32 << 31).into()),
            "1 GiB",
        ),
    ];
    let password_file = write(folder.path(), "password", "right");
    for (text, fault) in cases {
        let path = write(folder.path(), "bad", &text);
        let source = KeySource::Keystore {
            path,
            password_file: password_file.clone(),
        };
        let error = refusal(source);
        assert!(
            error.contains("keystore") && error.contains(fault),
            "{fault}: {error}"
        );
    }
    let password_file = write(folder.path(), "other-password", "wrong");
    let error = refusal(KeySource::Keystore {
        path: good,
        password_file,
    });
    assert!(error.contains("other-password does not open it"), "{error}");
}
