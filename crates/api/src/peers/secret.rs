//! The secret that the nodes of a cluster share.

use std::fmt;

use ring::hmac;
use thiserror::Error;

/// The cluster's secret (`node.clusterSecret`): the same on every node.
#[derive(Clone)]
pub struct ClusterSecret {
    pub(super) key: hmac::Key,
}

/// Why a text is not a valid cluster secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadSecret {
    /// An observer of one call could find a short secret by brute force.
    #[error(
        "the cluster secret has {0} characters, but needs at least {min}: make one with \
         `openssl rand -hex 32`",
        min = ClusterSecret::LEN_MIN
    )]
    TooShort(usize),
}

impl ClusterSecret {
    /// The fewest characters: hex digits of 128 random bits.
    pub const LEN_MIN: usize = 32;

    /// Parses a secret. Surrounding whitespace is ignored: files end with a newline.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let text = text.trim();
        if text.len() < Self::LEN_MIN {
            return Err(BadSecret::TooShort(text.len()));
        }
        Ok(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()),
        })
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_has_a_minimum_length_and_is_never_shown() {
        let text = "0123456789abcdef0123456789abcdef";
        let secret = ClusterSecret::parse(&format!("{text}\n")).unwrap();
        assert_eq!(format!("{secret:?}"), "ClusterSecret(***)");
        let short = ClusterSecret::parse(&text[1..]).unwrap_err();
        assert!(short.to_string().contains("31 characters"), "{short}");
        assert!(ClusterSecret::parse(&" ".repeat(64)).is_err());
    }
}
