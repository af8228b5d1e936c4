//! Why a request was not accepted: one closed list, which the API turns into problem documents.

use domain::{Address, ChainId, NodeName, RequestId};
use thiserror::Error;

use crate::ports::StoreError;

/// Why a request was not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The chain is not configured.
    #[error("chain {0} is not configured")]
    UnknownChain(ChainId),
    /// No signer of this node has that account on that chain.
    #[error("no signer is configured for {1} on chain {0}")]
    UnknownSigner(ChainId, Address),
    /// The request id was used for another payload.
    #[error("requestId {0} was used before with another payload")]
    KeyReused(RequestId),
    /// The payload breaks a rule.
    #[error("{0}")]
    BadPayload(String),
    /// No block can hold its gas.
    #[error("{0}")]
    GasAboveLimit(String),
    /// Its gas does not pay for its execution.
    #[error("{0}")]
    GasTooLow(String),
    /// No block includes it at its fee at present.
    #[error("{0}")]
    FeeBelowFloor(String),
    /// The chain does not take transactions of its type.
    #[error("{0}")]
    TypeNotSupported(String),
    /// The simulated call reverts.
    #[error("the call reverts: {0}")]
    Reverted(String),
    /// The account cannot pay for it.
    #[error("the account cannot pay for the call: {0}")]
    Underfunded(String),
    /// Too much is waiting already; the request was not looked up.
    #[error("too many requests are waiting; try again in a moment")]
    Busy,
    /// Another node keeps the lane, and this one is configured to reject (or got the request from a peer).
    #[error("node {0} is the keeper of this lane")]
    NotKeeper(NodeName),
    /// Gas must be estimated, and no endpoint of the chain answers.
    #[error(
        "gas cannot be estimated because the chain does not answer ({0}); send `gas` to be accepted anyway"
    )]
    ChainUnavailable(String),
    /// The store does not answer, and this call has stored nothing; the request was not looked up.
    #[error("the store does not answer: {0}")]
    StoreUnavailable(String),
    /// The outcome of a commit is unknown: the request may be stored or not.
    #[error(
        "the store's answer was lost; repeat the request, with the same requestId if it has one, to learn what happened"
    )]
    OutcomeUnknown,
    /// The lane takes no work until an operator decides.
    #[error("the lane is halted: {0}")]
    Halted(String),
    /// This node drains.
    #[error("this node is shutting down; ask another one")]
    Draining,
}

impl Refusal {
    /// Whether the request may have an effect all the same: one that was refused before it could be looked up may repeat
    /// a request that was accepted.
    #[must_use]
    pub fn may_have_effect(&self) -> bool {
        match self {
            Self::Busy | Self::StoreUnavailable(_) | Self::OutcomeUnknown => true,
            Self::UnknownChain(_)
            | Self::UnknownSigner(..)
            | Self::KeyReused(_)
            | Self::BadPayload(_)
            | Self::GasAboveLimit(_)
            | Self::GasTooLow(_)
            | Self::FeeBelowFloor(_)
            | Self::TypeNotSupported(_)
            | Self::Reverted(_)
            | Self::Underfunded(_)
            | Self::NotKeeper(_)
            | Self::ChainUnavailable(_)
            | Self::Halted(_)
            | Self::Draining => false,
        }
    }

    /// Of a write that failed, outside of the gate: where the store's answer is lost, it may have happened.
    pub(crate) fn of_write(error: StoreError) -> Self {
        match error {
            StoreError::Halted(reason) => Self::Halted(reason),
            StoreError::Unreconciled(_) | StoreError::Busy(_) => error.into(),
            StoreError::Unavailable(_) | StoreError::Corrupt(_) | StoreError::Invalid(_) => {
                tracing::warn!(%error, "the store gave no certain answer to a write, which may have happened");
                Self::OutcomeUnknown
            }
        }
    }

    /// Whether it stems from the state of a lane or node, which does not look the request up: that is left to the node
    /// which answers the client.
    pub(crate) fn needs_look_up(&self) -> bool {
        matches!(self, Self::Halted(_) | Self::Draining)
    }
}

/// Of a failed read. A write without a certain answer may have happened: its refusal is [`Refusal::OutcomeUnknown`].
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy(_) => Self::Busy,
            StoreError::Unavailable(_)
            | StoreError::Corrupt(_)
            | StoreError::Invalid(_)
            | StoreError::Halted(_)
            | StoreError::Unreconciled(_) => Self::StoreUnavailable(error.to_string()),
        }
    }
}
