//! What the nodes of a cluster know and nobody else.

use std::fmt;

use ring::hmac;
use thiserror::Error;

/// The cluster's secret (`node.clusterSecret`): the same on every node.
#[derive(Clone)]
pub struct ClusterSecret {
    pub(super) key: hmac::Key,
}

/// Why a text is no cluster secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadSecret {
    /// Whoever sees one call could find it out by trying.
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

    /// Takes a text as secret. Space around it is not a part of it: files end with a newline.
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
    fn a_secret_is_long_and_never_shown() {
        let text = "0123456789abcdef0123456789abcdef";
        let secret = ClusterSecret::parse(&format!("{text}\n")).unwrap();
        assert_eq!(format!("{secret:?}"), "ClusterSecret(***)");
        let short = ClusterSecret::parse(&text[1..]).unwrap_err();
        assert!(short.to_string().contains("31 characters"), "{short}");
        assert!(ClusterSecret::parse(&" ".repeat(64)).is_err());
    }
}
