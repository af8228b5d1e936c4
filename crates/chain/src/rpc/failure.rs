//! Why an endpoint returned no result, distinguished by whether the node may have acted on the request.

use std::time::Duration;

use domain::ChainId;
use engine::ports::ChainError;
use thiserror::Error;

use super::wire::NodeError;

#[derive(Clone, Debug, Error)]
pub(super) enum Failure {
    /// No bytes left this process.
    #[error("{0}")]
    NotConnected(String),
    /// This process's own limits did not admit the request in time: nothing was sent.
    #[error("too many requests to it are in progress")]
    NotAdmitted,
    /// The endpoint refused the request without processing it (HTTP 4xx, 503).
    #[error("{0}")]
    Refused(String),
    /// The endpoint requested a backoff, which lasts this much longer; nothing was sent.
    #[error("it requested a backoff, {0:.1?} remain")]
    BackingOff(Duration),
    /// The endpoint serves another chain; only `eth_chainId` was sent.
    #[error("it serves chain {0} and is not used")]
    WrongChain(ChainId),
    /// The endpoint did not return its chain id; nothing else was sent.
    #[error("its chain id is unknown: {0}")]
    Unchecked(Box<Failure>),
    /// The request was sent and no answer arrived: the node may have acted on it.
    #[error("{0}")]
    AnswerLost(String),
    /// The answer is undecodable or inconsistent: the node may have acted on the request.
    #[error("its answer cannot be used: {0}")]
    Malformed(String),
    /// The node answered with an error.
    #[error("it returned the error: {} (code {})", .0.message, .0.code)]
    Node(NodeError),
}

impl Failure {
    /// The label in metrics.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::NotConnected(_) => "unconnected",
            Self::NotAdmitted => "not_admitted",
            Self::Refused(_) => "turned_away",
            Self::BackingOff(_) => "resting",
            Self::WrongChain(_) => "wrong_chain",
            Self::Unchecked(inner) => inner.as_str(),
            Self::AnswerLost(_) => "lost",
            Self::Malformed(_) => "malformed",
            Self::Node(_) => "error",
        }
    }

    /// Whether the node certainly did nothing.
    pub(super) fn had_no_effect(&self) -> bool {
        match self {
            Self::NotConnected(_)
            | Self::NotAdmitted
            | Self::Refused(_)
            | Self::BackingOff(_)
            | Self::WrongChain(_)
            | Self::Unchecked(_) => true,
            Self::AnswerLost(_) | Self::Malformed(_) | Self::Node(_) => false,
        }
    }

    /// Whether the endpoint serves another chain.
    pub(super) fn is_wrong_chain(&self) -> bool {
        matches!(self, Self::WrongChain(_))
    }

    /// Whether the endpoint answered at all.
    fn is_answer(&self) -> bool {
        match self {
            Self::NotConnected(_)
            | Self::NotAdmitted
            | Self::AnswerLost(_)
            | Self::Refused(_)
            | Self::BackingOff(_) => false,
            Self::WrongChain(_) | Self::Malformed(_) | Self::Node(_) => true,
            Self::Unchecked(inner) => inner.is_answer(),
        }
    }
}

/// Combines the failures of all endpoints, with their names.
pub(super) fn endpoints_failed(failures: &[(&str, Failure)]) -> ChainError {
    let texts: Vec<String> = failures
        .iter()
        .map(|(name, failure)| format!("{name}: {failure}"))
        .collect();
    if failures.iter().any(|(_, failure)| failure.is_answer()) {
        ChainError::Unusable(texts.join("; "))
    } else {
        ChainError::Unreachable(texts.join("; "))
    }
}
