//! Private keys in this process's memory, and signing with them.
//!
//! Signing uses the C library behind [`Secp256k1Signer`]: about 30 µs per envelope. The same crate's default
//! `PrivateKeySigner` is pure Rust and takes more than twice as long, also with the feature `secp256k1`.

mod keystore;
mod load;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;

use alloy_signer::SignerSync;
use alloy_signer_local::Secp256k1Signer;
use async_trait::async_trait;
use domain::{Address, Attempt, ChainId, Timestamp, UnsignedEnvelope};
use engine::ports::{SignError, Signer};
use futures::future::join_all;

use crate::envelope::Envelope;

pub use load::{KeyError, KeyProblem, load};
pub use source::{KeyEntry, KeySource};

/// Up to this many envelopes are signed on the caller's task (half a millisecond), more on the blocking pool.
const INLINE_MAX: usize = 16;

/// The keys of this node. Cheap to clone; shows addresses only.
#[derive(Clone)]
pub struct LocalSigner {
    accounts: Arc<BTreeMap<Address, Account>>,
}

struct Account {
    key: Secp256k1Signer,
    /// The source, for error messages.
    place: String,
    /// Empty: every chain.
    chains: Vec<ChainId>,
}

#[async_trait]
impl Signer for LocalSigner {
    fn accounts(&self) -> Vec<(Address, Vec<ChainId>)> {
        self.accounts
            .iter()
            .map(|(address, account)| (*address, account.chains.clone()))
            .collect()
    }

    fn is_local(&self, account: Address) -> bool {
        self.accounts.contains_key(&account)
    }

    async fn sign(
        &self,
        envelopes: Vec<UnsignedEnvelope>,
        at: Timestamp,
    ) -> Vec<Result<Attempt, SignError>> {
        if envelopes.len() <= INLINE_MAX {
            return envelopes
                .into_iter()
                .map(|unsigned| self.sign_one(unsigned, at))
                .collect();
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = envelopes.len().div_ceil(cores).max(INLINE_MAX);
        let parts = envelopes
            .chunks(share)
            .map(|part| self.sign_on_blocking_pool(part.to_vec(), at));
        join_all(parts).await.into_iter().flatten().collect()
    }
}

impl LocalSigner {
    fn sign_one(&self, unsigned: UnsignedEnvelope, at: Timestamp) -> Result<Attempt, SignError> {
        // The map's key is the address that was derived from the private key, so only the account that an
        // envelope names can sign it.
        let account = self.accounts.get(&unsigned.signer).ok_or_else(|| {
            SignError::Refused(format!("no key for account {} is loaded", unsigned.signer))
        })?;
        if !account.chains.is_empty() && !account.chains.contains(&unsigned.chain_id) {
            return Err(SignError::Refused(format!(
                "account {} may not sign for chain {}",
                unsigned.signer, unsigned.chain_id
            )));
        }
        let envelope =
            Envelope::new(&unsigned).map_err(|error| SignError::Refused(error.to_string()))?;
        let signature = account
            .key
            .sign_hash_sync(&envelope.signing_hash())
            .map_err(|error| SignError::Refused(error.to_string()))?;
        let signed = envelope.seal(signature);
        Ok(Attempt {
            hash: signed.hash,
            tx_id: unsigned.tx_id,
            kind: unsigned.kind,
            nonce: unsigned.nonce,
            gas: unsigned.gas,
            fees: unsigned.fees,
            raw: signed.raw,
            signed_at: at,
            first_sent_at: None,
        })
    }

    async fn sign_on_blocking_pool(
        &self,
        part: Vec<UnsignedEnvelope>,
        at: Timestamp,
    ) -> Vec<Result<Attempt, SignError>> {
        let count = part.len();
        let signer = self.clone();
        let work = move || {
            part.into_iter()
                .map(|unsigned| signer.sign_one(unsigned, at))
                .collect()
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| {
                // The runtime is shutting down, or signing panicked: nothing was signed.
                let why = SignError::Unavailable(format!("the signing task ended early: {error}"));
                vec![Err(why); count]
            })
    }
}

impl fmt::Debug for LocalSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSigner")
            .field("accounts", &self.accounts())
            .finish()
    }
}

#[cfg(test)]
mod tests;
