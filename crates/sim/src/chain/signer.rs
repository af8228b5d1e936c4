//! The twin of a signer: "signs" by encoding.

use std::time::Duration;

use alloy_primitives::Address;
use async_trait::async_trait;
use domain::{Attempt, ChainId, Time, Unsigned};
use engine::ports::{SignError, Signer};

use super::envelope;

/// Signs for a list of accounts, on every chain.
#[derive(Clone, Debug)]
pub struct MemorySigner {
    accounts: Vec<Address>,
    /// How long a remote signer takes; `None` is a local key.
    travel: Option<Duration>,
}

impl MemorySigner {
    /// Local keys for these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Address>) -> Self {
        Self {
            accounts,
            travel: None,
        }
    }

    /// The same keys behind a network: never to be used inside a turn.
    #[must_use]
    pub fn remote(self, travel: Duration) -> Self {
        Self {
            travel: Some(travel),
            ..self
        }
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

    async fn sign(&self, envelopes: Vec<Unsigned>, at: Time) -> Vec<Result<Attempt, SignError>> {
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
    fn sign_one(&self, envelope: &Unsigned, at: Time) -> Result<Attempt, SignError> {
        if !self.accounts.contains(&envelope.signer) {
            return Err(SignError::Refused(format!(
                "no key for {}",
                envelope.signer
            )));
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
