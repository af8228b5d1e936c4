//! The seal on a call between nodes: an HMAC-SHA256 over its path, its time and its body.
//!
//! Not the secret itself, as a bearer: nodes may talk without TLS, and whoever read one call would
//! then be a node of the cluster for ever. A seal is good for its own call only. Whoever repeats one
//! in time repeats a request under its own requestId, or a ring: neither has a second effect.
//!
//! The body's hash is a part of the seal, so that a stranger is turned away before its body is read.

use std::time::Duration;

use domain::Timestamp;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::hmac;

use crate::peers::secret::ClusterSecret;

/// How far the clocks of two nodes may be apart.
pub(super) const CLOCKS_APART_MAX: Duration = Duration::from_secs(300);

/// The first word of a seal: another form would be another word.
const VERSION: &str = "v1";

/// The SHA-256 of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyHash([u8; SHA256_OUTPUT_LEN]);

/// Why a seal does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadSeal {
    /// It has not the form of one.
    Malformed,
    /// It was made with another secret, or for another call.
    Wrong,
    /// It was made at another time.
    Stale(Duration),
}

impl ClusterSecret {
    /// Seals a call.
    pub(super) fn seal(&self, path: &str, at: Timestamp, body: &[u8]) -> String {
        let body = BodyHash::of(body);
        let tag = hmac::sign(&self.key, sealed_text(path, at, body).as_bytes());
        let (body, tag) = (hex::encode(body.0), hex::encode(tag));
        format!("{VERSION} {} {body} {tag}", at.0)
    }

    /// Checks the seal of a call, and tells which body belongs to it.
    pub(super) fn check(
        &self,
        seal: &str,
        path: &str,
        now: Timestamp,
    ) -> Result<BodyHash, BadSeal> {
        let (at, body, tag) = parts(seal).ok_or(BadSeal::Malformed)?;
        // Compares in constant time.
        if hmac::verify(&self.key, sealed_text(path, at, body).as_bytes(), &tag).is_err() {
            return Err(BadSeal::Wrong);
        }
        let apart = Duration::from_millis(at.0.abs_diff(now.0));
        if apart > CLOCKS_APART_MAX {
            return Err(BadSeal::Stale(apart));
        }
        Ok(body)
    }
}

impl BodyHash {
    /// The hash of a body.
    pub(super) fn of(body: &[u8]) -> Self {
        let hash = digest(&SHA256, body);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// What the seal is made over. The method is always POST, and said all the same: a call with another
/// one must not be able to borrow the seal.
fn sealed_text(path: &str, at: Timestamp, body: BodyHash) -> String {
    let body = hex::encode(body.0);
    format!(
        "lanekeeper-cluster {VERSION}\nPOST\n{path}\n{}\n{body}",
        at.0
    )
}

fn parts(seal: &str) -> Option<(Timestamp, BodyHash, [u8; SHA256_OUTPUT_LEN])> {
    let mut words = seal.split(' ');
    if words.next()? != VERSION {
        return None;
    }
    let at = Timestamp(words.next()?.parse().ok()?);
    let mut hash = || {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        hex::decode_to_slice(words.next()?, &mut bytes).ok()?;
        Some(bytes)
    };
    let (body, tag) = (BodyHash(hash()?), hash()?);
    words.next().is_none().then_some((at, body, tag))
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
    fn a_seal_belongs_to_its_secret_path_time_and_body() {
        let ours = secret("a");
        let seal = ours.seal(PATH, NOW, b"body");
        assert_eq!(ours.check(&seal, PATH, NOW), Ok(BodyHash::of(b"body")));
        assert_ne!(ours.check(&seal, PATH, NOW), Ok(BodyHash::of(b"another")));
        assert_eq!(secret("b").check(&seal, PATH, NOW), Err(BadSeal::Wrong));
        assert_eq!(
            ours.check(&seal, "/internal/v1/ring", NOW),
            Err(BadSeal::Wrong)
        );
        // Neither time nor body can be changed under a tag.
        let other = ours.seal(PATH, NOW.plus(Duration::from_millis(1)), b"other");
        let (ours_words, others): (Vec<_>, Vec<_>) =
            (seal.split(' ').collect(), other.split(' ').collect());
        for swapped in 1..4 {
            let mut words = ours_words.clone();
            words[swapped] = others[swapped];
            let mixed = words.join(" ");
            assert_eq!(
                ours.check(&mixed, PATH, NOW),
                Err(BadSeal::Wrong),
                "{mixed}"
            );
        }
    }

    #[test]
    fn a_seal_is_good_while_clocks_agree() {
        let ours = secret("a");
        let seal = ours.seal(PATH, NOW, b"");
        let after = |time: Duration| ours.check(&seal, PATH, NOW.plus(time));
        assert!(after(CLOCKS_APART_MAX).is_ok());
        let late = CLOCKS_APART_MAX + Duration::from_millis(1);
        assert_eq!(after(late), Err(BadSeal::Stale(late)));
        let from_the_future = ours.seal(PATH, NOW.plus(late), b"");
        assert_eq!(
            ours.check(&from_the_future, PATH, NOW),
            Err(BadSeal::Stale(late))
        );
    }

    #[test]
    fn what_is_no_seal_is_malformed() {
        let ours = secret("a");
        let good = ours.seal(PATH, NOW, b"");
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
                ours.check(&case, PATH, NOW),
                Err(BadSeal::Malformed),
                "{case}"
            );
        }
    }
}
