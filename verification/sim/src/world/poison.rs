//! A poisoned lane: its signer, its rows, its requests or its balance are permanently faulty. The other
//! lanes of the same nodes must not be affected.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::Address;
use async_trait::async_trait;
use domain::{Attempt, ChainId, LaneKey, Timestamp, UnsignedEnvelope};
use engine::ports::{SignError, Signer};

use super::plan::CHAIN;
use crate::chain::MemorySigner;

/// The lane, and its fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poison {
    /// Its account.
    pub account: Address,
    /// Its fault.
    pub kind: PoisonKind,
}

/// The fault of a poisoned lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoisonKind {
    /// Its signer never answers in time.
    SignerHangs,
    /// Its signer is always unavailable.
    SignerDown,
    /// Its signer refuses everything permanently.
    Unsignable,
    /// Every endpoint rejects its transactions.
    Rejected,
    /// Its account is empty.
    Broke,
    /// The store cannot read its rows.
    Unreadable,
    /// The store never accepts its batches.
    Unwritable,
}

impl PoisonKind {
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

/// How long a hanging signer takes.
const HANG_DURATION: Duration = Duration::from_secs(600);

/// The keys of a node, one of which may be faulty.
pub(super) struct PoisonedSigner {
    pub(super) good: MemorySigner,
    pub(super) poison: Poison,
}

impl PoisonedSigner {
    /// The signer of a node; faulty where the plan says so.
    pub(super) fn wrap(good: MemorySigner, poison: Option<Poison>) -> Arc<dyn Signer> {
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

    /// A slow key is never reported as local: the engine relies on that.
    fn is_local(&self, account: Address) -> bool {
        let hangs = self.poison.kind == PoisonKind::SignerHangs && account == self.poison.account;
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
        match self.poison.kind {
            PoisonKind::SignerHangs => tokio::time::sleep(HANG_DURATION).await,
            PoisonKind::SignerDown => {
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
            PoisonKind::Unsignable
            | PoisonKind::Rejected
            | PoisonKind::Broke
            | PoisonKind::Unreadable
            | PoisonKind::Unwritable => {}
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
