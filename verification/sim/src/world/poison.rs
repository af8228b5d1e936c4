//! A lane that never works: its signer, its rows, its requests or its purse are bad for good. The other
//! lanes of the same nodes must not notice.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::Address;
use async_trait::async_trait;
use domain::{Attempt, ChainId, LaneKey, Timestamp, UnsignedEnvelope};
use engine::ports::{SignError, Signer};

use super::plan::CHAIN;
use crate::chain::MemorySigner;

/// Which lane, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poison {
    /// Its account.
    pub account: Address,
    /// What is wrong.
    pub way: PoisonWay,
}

/// What is wrong with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoisonWay {
    /// Its signer never answers in time.
    SignerHangs,
    /// Its signer is always unavailable.
    SignerDown,
    /// Its signer refuses everything for good.
    Unsignable,
    /// Every node refuses its transactions for good.
    Rejected,
    /// It owns nothing.
    Broke,
    /// The store cannot read its rows.
    Unreadable,
    /// The store never takes its batches.
    Unwritable,
}

impl PoisonWay {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::SignerHangs,
        Self::SignerDown,
        Self::Unsignable,
        Self::Rejected,
        Self::Broke,
        Self::Unreadable,
        Self::Unwritable,
    ];
}

impl Poison {
    /// The lane.
    #[must_use]
    pub fn lane(&self) -> LaneKey {
        LaneKey {
            chain_id: CHAIN,
            signer: self.account,
        }
    }
}

/// How long a signer takes that hangs.
const HANGS_FOR: Duration = Duration::from_secs(600);

/// The keys of a node, of which one may be bad.
pub(super) struct PoisonedSigner {
    pub(super) good: MemorySigner,
    pub(super) poison: Poison,
}

impl PoisonedSigner {
    /// The signer of a node; bad where the plan says so.
    pub(super) fn around(good: MemorySigner, poison: Option<Poison>) -> Arc<dyn Signer> {
        match poison {
            Some(poison) => Arc::new(Self { good, poison }),
            None => Arc::new(good),
        }
    }
}

#[async_trait]
impl Signer for PoisonedSigner {
    fn accounts(&self) -> Vec<(Address, Vec<ChainId>)> {
        self.good.accounts()
    }

    /// A key that takes long is never a local one: that is a promise to the engine.
    fn is_local(&self, account: Address) -> bool {
        let hangs = self.poison.way == PoisonWay::SignerHangs && account == self.poison.account;
        !hangs && self.good.is_local(account)
    }

    async fn sign(
        &self,
        envelopes: Vec<UnsignedEnvelope>,
        at: Timestamp,
    ) -> Vec<Result<Attempt, SignError>> {
        let is_bad = |envelope: &UnsignedEnvelope| envelope.signer == self.poison.account;
        if !envelopes.iter().any(is_bad) {
            return self.good.sign(envelopes, at).await;
        }
        match self.poison.way {
            PoisonWay::SignerHangs => tokio::time::sleep(HANGS_FOR).await,
            PoisonWay::SignerDown => {
                let mut answers = Vec::with_capacity(envelopes.len());
                for envelope in envelopes {
                    answers.push(if is_bad(&envelope) {
                        Err(SignError::Unavailable("the signer is gone".to_owned()))
                    } else {
                        self.sign_one(envelope, at).await
                    });
                }
                return answers;
            }
            PoisonWay::Unsignable
            | PoisonWay::Rejected
            | PoisonWay::Broke
            | PoisonWay::Unreadable
            | PoisonWay::Unwritable => {}
        }
        self.good.sign(envelopes, at).await
    }
}

impl PoisonedSigner {
    async fn sign_one(
        &self,
        envelope: UnsignedEnvelope,
        at: Timestamp,
    ) -> Result<Attempt, SignError> {
        let mut answers = self.good.sign(vec![envelope], at).await;
        answers.pop().expect("a signer answers every envelope")
    }
}
