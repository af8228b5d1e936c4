//! Why an endpoint returned no result, distinguished by whether the node may have acted on the request.

use std::fmt;
use std::time::Duration;

use domain::ChainId;
use engine::ports::ChainError;

use super::wire::NodeError;

#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No bytes left this process.
    NotConnected(String),
    /// The endpoint refused the request without processing it (HTTP 4xx, 503).
    Refused(String),
    /// The endpoint requested a backoff, which lasts this much longer; nothing was sent.
    BackingOff(Duration),
    /// The endpoint serves another chain; only `eth_chainId` was sent.
    WrongChain(ChainId),
    /// The endpoint did not return its chain id; nothing else was sent.
    Unchecked(Box<Failure>),
    /// The request was sent and no answer arrived: the node may have acted on it.
    AnswerLost(String),
    /// The answer is undecodable or inconsistent: the node may have acted on the request.
    Malformed(String),
    /// The node answered with an error.
    Node(NodeError),
}

impl Failure {
    /// The label in metrics.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::NotConnected(_) => "unconnected",
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
            | Self::Refused(_)
            | Self::BackingOff(_)
            | Self::WrongChain(_)
            | Self::Unchecked(_) => true,
            Self::AnswerLost(_) | Self::Malformed(_) | Self::Node(_) => false,
        }
    }

    /// Whether the endpoint serves another chain.
    pub(super) fn is_wrong_chain(&self) -> bool {
        match self {
            Self::WrongChain(_) => true,
            Self::NotConnected(_)
            | Self::Refused(_)
            | Self::BackingOff(_)
            | Self::Unchecked(_)
            | Self::AnswerLost(_)
            | Self::Malformed(_)
            | Self::Node(_) => false,
        }
    }

    /// Whether the endpoint answered at all.
    fn is_answer(&self) -> bool {
        match self {
            Self::NotConnected(_)
            | Self::AnswerLost(_)
            | Self::Refused(_)
            | Self::BackingOff(_) => false,
            Self::WrongChain(_) | Self::Malformed(_) | Self::Node(_) => true,
            Self::Unchecked(inner) => inner.is_answer(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(why) | Self::Refused(why) | Self::AnswerLost(why) => {
                f.write_str(why)
            }
            Self::BackingOff(left) => write!(f, "it requested a backoff, {left:.1?} remain"),
            Self::WrongChain(found) => write!(f, "it serves chain {found} and is not used"),
            Self::Unchecked(inner) => write!(f, "its chain id is unknown: {inner}"),
            Self::Malformed(why) => write!(f, "its answer cannot be used: {why}"),
            Self::Node(error) => write!(
                f,
                "it returned the error: {} (code {})",
                error.message, error.code
            ),
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
