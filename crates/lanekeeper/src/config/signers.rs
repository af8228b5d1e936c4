//! `[[signer]]`: the accounts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::{Address, ChainId};

use super::Config;
use super::reader::Fallback::{Required, Unset};
use super::section::section;
use super::setting::{Secret, Setting as _, choices};
use super::validation::Validation;

section! {
    /// An account, once per account.
    Signer = "signer" {
        /// Where the private key is.
        kind: SignerKind = Required;
        /// kind "key": the private key itself. Prefer keyFile or keyEnv.
        key: Option<Secret> = Unset("not set");
        /// kind "key": the file that contains the private key in hex.
        key_file: Option<PathBuf> = Unset("not set");
        /// kind "key": the environment variable that contains the private key in hex.
        key_env: Option<String> = Unset("not set");
        /// kind "keystore": the keystore file (version 3, the format of geth).
        path: Option<PathBuf> = Unset("not set");
        /// kind "keystore": the file that contains the password of the keystore.
        password_file: Option<PathBuf> = Unset("not set");
        /// kind "external": the account. Its key is elsewhere; applications reserve its nonces.
        address: Option<Address> = Unset("not set");
        /// The chains that the account is used on.
        chains: Option<Vec<u64>> = Unset("all chains");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignerKind {
    Key,
    Keystore,
    /// The key is elsewhere: applications reserve nonces, sign and send.
    External,
}

choices!(SignerKind, "\"key\", \"keystore\" or \"external\"", {
    "key" => SignerKind::Key, "keystore" => SignerKind::Keystore, "external" => SignerKind::External,
}, later {
    "web3signer" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "gcp-kms" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "aws-kms" => "remote signers are not in this version: use \"key\" or \"keystore\""
});

impl Config {
    /// The accounts whose nonces are reserved, each with its chains; an empty list means all chains.
    pub(crate) fn external_accounts(&self) -> impl Iterator<Item = (Address, Vec<ChainId>)> {
        self.signers.iter().filter_map(|signer| {
            let chains = signer.chains.iter().flatten().map(|id| ChainId(*id));
            Some((signer.address?, chains.collect()))
        })
    }
}

impl Validation<'_> {
    pub(super) fn check_signers(&mut self) {
        let mut accounts = BTreeMap::new();
        for (index, signer) in self.config.signers.iter().enumerate() {
            if let Some(account) = signer.address
                && let Some(other) = accounts.insert(account, index)
            {
                let path = format!("signer[{index}].address");
                let rule = format!(
                    "but signer[{other}] has it already: an account has one [[signer]], whose chains are \
                     one list"
                );
                self.reject(&path, &account.to_string(), &rule);
            }
            let path = format!("signer[{index}].kind");
            match (signer.kind, source_keys(signer).as_slice()) {
                (SignerKind::Key, ["key" | "keyFile" | "keyEnv"])
                | (SignerKind::Keystore, ["path", "passwordFile"])
                | (SignerKind::External, ["address"]) => {}
                (kind, given) => {
                    let takes = match kind {
                        SignerKind::Key => "exactly one of key, keyFile and keyEnv",
                        SignerKind::Keystore => "path and passwordFile",
                        SignerKind::External => "address alone",
                    };
                    let rule = format!("which takes {takes}, but has {}", join_keys(given));
                    self.reject(&path, &format!("{:?}", kind.to_text()), &rule);
                }
            }
            for chain in signer.chains.iter().flatten() {
                if !self.config.chains.iter().any(|known| known.id == *chain) {
                    let path = format!("signer[{index}].chains");
                    let rule = format!("but no [[chain]] has id {chain}: add it or leave it out");
                    self.reject(&path, &signer.chains.to_text(), &rule);
                }
            }
        }
    }
}

/// The keys of a signer that are set, of those that locate its private key.
fn source_keys(signer: &Signer) -> Vec<&'static str> {
    let keys = [
        ("key", signer.key.is_some()),
        ("keyFile", signer.key_file.is_some()),
        ("keyEnv", signer.key_env.is_some()),
        ("path", signer.path.is_some()),
        ("passwordFile", signer.password_file.is_some()),
        ("address", signer.address.is_some()),
    ];
    keys.into_iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(key, _)| key)
        .collect()
}

fn join_keys(keys: &[&str]) -> String {
    if keys.is_empty() {
        "none of them".to_owned()
    } else {
        keys.join(" and ")
    }
}
