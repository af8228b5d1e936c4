//! Why an endpoint gave no result, told apart by whether the node may have acted.

use std::fmt;
use std::time::Duration;

use domain::ChainId;
use engine::ports::ChainError;

use super::wire::NodeError;

#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nothing left this process.
    NotConnected(String),
    /// The endpoint turned the request away unread (HTTP 4xx, 503).
    TurnedAway(String),
    /// It asked to be left alone for so long, and was.
    Resting(Duration),
    /// It serves another chain, and nothing but that question was asked.
    WrongChain(ChainId),
    /// It did not say which chain it serves, and nothing else was asked.
    Unchecked(Box<Failure>),
    /// The request left and its answer did not come: the node may have acted on it.
    Lost(String),
    /// An answer came that cannot be understood or cannot be true: the node may have acted.
    Malformed(String),
    /// The node answered with an error.
    Node(NodeError),
}

impl Failure {
    /// The label in the metrics.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::NotConnected(_) => "unconnected",
            Self::TurnedAway(_) => "turned_away",
            Self::Resting(_) => "resting",
            Self::WrongChain(_) => "wrong_chain",
            Self::Unchecked(inner) => inner.as_str(),
            Self::Lost(_) => "lost",
            Self::Malformed(_) => "malformed",
            Self::Node(_) => "error",
        }
    }

    /// Whether the node certainly did nothing.
    pub(super) fn had_no_effect(&self) -> bool {
        match self {
            Self::NotConnected(_)
            | Self::TurnedAway(_)
            | Self::Resting(_)
            | Self::WrongChain(_)
            | Self::Unchecked(_) => true,
            Self::Lost(_) | Self::Malformed(_) | Self::Node(_) => false,
        }
    }

    /// Whether the endpoint is none of this chain.
    pub(super) fn is_wrong_chain(&self) -> bool {
        match self {
            Self::WrongChain(_) => true,
            Self::NotConnected(_)
            | Self::TurnedAway(_)
            | Self::Resting(_)
            | Self::Unchecked(_)
            | Self::Lost(_)
            | Self::Malformed(_)
            | Self::Node(_) => false,
        }
    }

    /// Whether the endpoint answered at all.
    fn is_answer(&self) -> bool {
        match self {
            Self::NotConnected(_) | Self::Lost(_) | Self::TurnedAway(_) | Self::Resting(_) => false,
            Self::WrongChain(_) | Self::Malformed(_) | Self::Node(_) => true,
            Self::Unchecked(inner) => inner.is_answer(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(why) | Self::TurnedAway(why) | Self::Lost(why) => f.write_str(why),
            Self::Resting(left) => write!(f, "it wants no requests for another {left:.1?}"),
            Self::WrongChain(found) => write!(f, "it serves chain {found} and is not used"),
            Self::Unchecked(inner) => write!(f, "asked for its chain id: {inner}"),
            Self::Malformed(why) => write!(f, "its answer cannot be used: {why}"),
            Self::Node(error) => write!(f, "it says: {} ({})", error.message, error.code),
        }
    }
}

/// What all endpoints of a chain, by their names, failed with.
pub(super) fn all_failed(failures: &[(&str, Failure)]) -> ChainError {
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
