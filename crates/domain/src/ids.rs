//! Ids are types, so that a lane cannot be passed where a node is meant.

use std::fmt;

use alloy_primitives::Address;
use thiserror::Error;
use uuid::Uuid;

/// An EVM chain, by its EIP-155 id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub u64);

/// One signer on one chain: the unit of order, of ownership and of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The chain.
    pub chain_id: ChainId,
    /// The account that signs.
    pub signer: Address,
}

/// A lane's short id inside one store: keys lead with it instead of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub i64);

/// A position in the account's order on chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u64);

impl Nonce {
    /// The nonce after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("an account never sends 2^64 transactions"),
        )
    }

    /// How many nonces lie from `self` (inclusive) to `end` (exclusive); 0 when `end` is not above.
    #[must_use]
    pub fn until(self, end: Self) -> u64 {
        end.0.saturating_sub(self.0)
    }
}

/// The fencing token: rises by one with every takeover of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// The token of the next keeper.
    #[must_use]
    pub fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("a lane is never taken over 2^64 times"),
        )
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
        )]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id! {
    /// A tx's id for ever. Time-ordered (UUID v7), so that new rows land at the end of an index.
    TxId
}
uuid_id! {
    /// One run of a node process: a restarted node has its old name and a new incarnation.
    Incarnation
}
uuid_id! {
    /// One grant of a lane to a keeper. The token alone is not enough: an asynchronous failover
    /// can hand out the same number twice.
    GrantId
}

/// What a keeper must show to write for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The lane.
    pub lane: LaneId,
    /// The fencing token under which it was granted.
    pub token: Token,
    /// The grant itself.
    pub grant: GrantId,
}

/// The configured name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(pub String);

/// The client's idempotency key for one effect: 1 to 128 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

/// Why a text is not a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("requestId must be 1 to 128 visible ASCII characters (no spaces)")]
pub struct BadRequestId;

impl RequestId {
    /// The longest request id.
    pub const LEN_MAX: usize = 128;

    /// Takes a text as request id when it keeps the rule.
    pub fn parse(text: impl Into<String>) -> Result<Self, BadRequestId> {
        let text = text.into();
        let fits = (1..=Self::LEN_MAX).contains(&text.len());
        if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(BadRequestId)
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.chain_id, self.signer)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_1_to_128_visible_ascii_characters() {
        assert!(RequestId::parse("payout-7").is_ok());
        assert!(RequestId::parse("x".repeat(128)).is_ok());
        for bad in ["", "has space", "tab\t", "ümlaut", &"x".repeat(129)] {
            assert_eq!(RequestId::parse(bad), Err(BadRequestId), "{bad:?}");
        }
    }
}
