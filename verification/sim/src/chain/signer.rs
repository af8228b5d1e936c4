//! The twin of a signer: "signs" by encoding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::Address;
use async_trait::async_trait;
use domain::{Attempt, ChainId, Timestamp, UnsignedEnvelope};
use engine::ports::{SignError, Signer};

use super::envelope;
use crate::rng::Rng;

/// Call data with this prefix is never signed.
pub const UNSIGNABLE: [u8; 4] = [0x0b, 0xad, 0xbe, 0xef];

/// Signs for a list of accounts, on every chain. Clones are the same signer.
#[derive(Clone, Debug)]
pub struct MemorySigner {
    accounts: Vec<Address>,
    /// The delay of a remote signer; `None` is a local key.
    travel: Option<Duration>,
    trouble: Arc<Mutex<Option<SignerFaults>>>,
    was_unavailable: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
struct SignerFaults {
    rng: Rng,
    /// How many of a thousand envelopes fail with "unavailable".
    permille: u64,
}

impl MemorySigner {
    /// Local keys for these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Address>) -> Self {
        Self {
            accounts,
            travel: None,
            trouble: Arc::default(),
            was_unavailable: Arc::default(),
        }
    }

    /// The same keys over a network: never to be used inside a turn.
    #[must_use]
    pub fn remote(self, travel: Duration) -> Self {
        Self {
            travel: Some(travel),
            ..self
        }
    }

    /// From now on `permille` envelopes in a thousand fail with "unavailable"; 0 is none.
    pub fn set_unavailable_permille(&self, rng: Rng, permille: u64) {
        let trouble = (permille > 0).then_some(SignerFaults { rng, permille });
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn is_unavailable(&self) -> bool {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unavailable = trouble
            .as_ref()
            .is_some_and(|trouble| trouble.rng.permille(trouble.permille));
        self.was_unavailable
            .fetch_or(is_unavailable, Ordering::Relaxed);
        is_unavailable
    }

    /// Whether an envelope found it unavailable.
    #[must_use]
    pub fn was_unavailable(&self) -> bool {
        self.was_unavailable.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Signer for MemorySigner {
    fn accounts(&self) -> Vec<(Address, Vec<ChainId>)> {
        self.accounts
            .iter()
            .map(|account| (*account, Vec::new()))
            .collect()
    }

    fn is_local(&self, _account: Address) -> bool {
        self.travel.is_none()
    }

    async fn sign(
        &self,
        envelopes: Vec<UnsignedEnvelope>,
        at: Timestamp,
    ) -> Vec<Result<Attempt, SignError>> {
        if let Some(travel) = self.travel {
            tokio::time::sleep(travel).await;
        }
        envelopes
            .into_iter()
            .map(|envelope| self.sign_one(&envelope, at))
            .collect()
    }
}

impl MemorySigner {
    fn sign_one(&self, envelope: &UnsignedEnvelope, at: Timestamp) -> Result<Attempt, SignError> {
        if !self.accounts.contains(&envelope.signer) {
            return Err(SignError::Refused(format!(
                "no key for {}",
                envelope.signer
            )));
        }
        if envelope.data.starts_with(&UNSIGNABLE) {
            return Err(SignError::Refused(
                "the policy forbids this call".to_owned(),
            ));
        }
        if self.is_unavailable() {
            return Err(SignError::Unavailable("the signer is busy".to_owned()));
        }
        let raw = envelope::encode(envelope);
        Ok(Attempt {
            hash: envelope::hash(&raw),
            tx_id: envelope.tx_id,
            kind: envelope.kind,
            nonce: envelope.nonce,
            gas: envelope.gas,
            fees: envelope.fees,
            raw,
            signed_at: at,
            first_sent_at: None,
        })
    }
}
