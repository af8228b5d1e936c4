//! The message authentication code (MAC) of a call between nodes: HMAC-SHA256 over its path, time and body.
//!
//! The secret itself is not sent as a bearer token: nodes may communicate without TLS, and a token read from one
//! call would be valid forever. A MAC is valid for its own call only. Replaying a call while its time is valid
//! repeats a request under its requestId, a mark or a notification: none has a second effect.
//!
//! The MAC covers the hash of the body, so a call with a wrong MAC is refused before its body is read.

use std::time::Duration;

use domain::Timestamp;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::hmac;
use strum::IntoStaticStr;
use thiserror::Error;

use crate::peers::secret::ClusterSecret;

/// The largest allowed difference between the clocks of two nodes.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);

/// The first part of a MAC header; another format gets another version.
const VERSION: &str = "v1";

/// The SHA-256 of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyHash([u8; SHA256_OUTPUT_LEN]);

/// Why a MAC is not valid.
#[derive(Clone, Copy, Debug, Error, IntoStaticStr, PartialEq, Eq)]
#[strum(serialize_all = "lowercase")]
pub(super) enum MacError {
    #[error("header `Lanekeeper-Cluster` cannot be read")]
    Malformed,
    /// Or for another call.
    #[error(
        "header `Lanekeeper-Cluster` was made with another secret: set the same \
         node.clusterSecret on every node"
    )]
    Wrong,
    /// Made too long ago, or in the future.
    #[error(
        "the clocks of the two nodes differ by {} s, and at most {} s are allowed: synchronize them",
        .0.as_secs(), CLOCK_SKEW_MAX.as_secs()
    )]
    Stale(Duration),
}

impl ClusterSecret {
    /// The MAC header of a call.
    pub(super) fn make_mac(&self, path: &str, at: Timestamp, body: &[u8]) -> String {
        let body = BodyHash::of(body);
        let tag = hmac::sign(&self.key, mac_input(path, at, body).as_bytes());
        let (body, tag) = (hex::encode(body.0), hex::encode(tag));
        format!("{VERSION} {} {body} {tag}", at.0)
    }

    /// Verifies the MAC header of a call, and returns the hash that its body must have.
    pub(super) fn verify_mac(
        &self,
        mac: &str,
        path: &str,
        now: Timestamp,
    ) -> Result<BodyHash, MacError> {
        let (at, body, tag) = parse_mac(mac).ok_or(MacError::Malformed)?;
        // Compares in constant time.
        if hmac::verify(&self.key, mac_input(path, at, body).as_bytes(), &tag).is_err() {
            return Err(MacError::Wrong);
        }
        let skew = Duration::from_millis(at.0.abs_diff(now.0));
        if skew > CLOCK_SKEW_MAX {
            return Err(MacError::Stale(skew));
        }
        Ok(body)
    }
}

impl BodyHash {
    pub(super) fn of(body: &[u8]) -> Self {
        let hash = digest(&SHA256, body);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// The text that the MAC covers. It includes the method, although that is always POST today: the MAC must not
/// be valid for a call with another method.
fn mac_input(path: &str, at: Timestamp, body: BodyHash) -> String {
    let body = hex::encode(body.0);
    format!(
        "lanekeeper-cluster {VERSION}\nPOST\n{path}\n{}\n{body}",
        at.0
    )
}

fn parse_mac(mac: &str) -> Option<(Timestamp, BodyHash, [u8; SHA256_OUTPUT_LEN])> {
    let mut parts = mac.split(' ');
    if parts.next()? != VERSION {
        return None;
    }
    let at = Timestamp(parts.next()?.parse().ok()?);
    let mut hash = || {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        hex::decode_to_slice(parts.next()?, &mut bytes).ok()?;
        Some(bytes)
    };
    let (body, tag) = (BodyHash(hash()?), hash()?);
    parts.next().is_none().then_some((at, body, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/internal/v1/forward";
    const NOW: Timestamp = Timestamp(1_767_225_600_000);

    fn secret(text: &str) -> ClusterSecret {
        ClusterSecret::parse(&text.repeat(32)).unwrap()
    }

    #[test]
    fn mac_is_bound_to_secret_path_time_and_body() {
        let ours = secret("a");
        let mac = ours.make_mac(PATH, NOW, b"body");
        assert_eq!(ours.verify_mac(&mac, PATH, NOW), Ok(BodyHash::of(b"body")));
        assert_ne!(
            ours.verify_mac(&mac, PATH, NOW),
            Ok(BodyHash::of(b"another"))
        );
        assert_eq!(
            secret("b").verify_mac(&mac, PATH, NOW),
            Err(MacError::Wrong)
        );
        assert_eq!(
            ours.verify_mac(&mac, "/internal/v1/notify", NOW),
            Err(MacError::Wrong)
        );
        // Neither time nor body can be changed under a tag.
        let other = ours.make_mac(PATH, NOW.plus(Duration::from_millis(1)), b"other");
        let (ours_words, others): (Vec<_>, Vec<_>) =
            (mac.split(' ').collect(), other.split(' ').collect());
        for swapped in 1..4 {
            let mut parts = ours_words.clone();
            parts[swapped] = others[swapped];
            let mixed = parts.join(" ");
            assert_eq!(
                ours.verify_mac(&mixed, PATH, NOW),
                Err(MacError::Wrong),
                "{mixed}"
            );
        }
    }

    #[test]
    fn mac_is_valid_within_the_allowed_clock_skew() {
        let ours = secret("a");
        let mac = ours.make_mac(PATH, NOW, b"");
        let after = |time: Duration| ours.verify_mac(&mac, PATH, NOW.plus(time));
        assert!(after(CLOCK_SKEW_MAX).is_ok());
        let late = CLOCK_SKEW_MAX + Duration::from_millis(1);
        assert_eq!(after(late), Err(MacError::Stale(late)));
        let from_the_future = ours.make_mac(PATH, NOW.plus(late), b"");
        assert_eq!(
            ours.verify_mac(&from_the_future, PATH, NOW),
            Err(MacError::Stale(late))
        );
    }

    #[test]
    fn other_formats_are_malformed() {
        let ours = secret("a");
        let good = ours.make_mac(PATH, NOW, b"");
        let cases = [
            String::new(),
            "v1".to_owned(),
            good.replace("v1", "v2"),
            format!("{good} more"),
            good.replace("1767225600000", "-1"),
            good.replace(' ', "  "),
            good[..good.len() - 1].to_owned(),
            "Bearer secret".to_owned(),
        ];
        for case in cases {
            assert_eq!(
                ours.verify_mac(&case, PATH, NOW),
                Err(MacError::Malformed),
                "{case}"
            );
        }
    }
}
