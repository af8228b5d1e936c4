//! Parts of the lane row: what its head waits for (flags 1 · nonce 8 · milliseconds 8 · reason?), and the newest block with
//! a final result (height 8 · hash 32). Nothing has no bytes. The fronts have fixed offsets, so that `lane_view` can read
//! them in SQL.

use std::time::Duration;

use domain::lane::{HeadWait, WatchedBlock};
use domain::{B256, Nonce};

use super::Malformed;
use super::bytes::ByteReader;

const HAS_REASON: u8 = 1;

pub(crate) fn head_to_bytes(head: Option<&HeadWait>) -> Vec<u8> {
    let Some(head) = head else {
        return Vec::new();
    };
    let reason = head.reason.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(17 + reason.len());
    out.push(if head.reason.is_some() { HAS_REASON } else { 0 });
    out.extend_from_slice(&head.nonce.0.to_be_bytes());
    let millis = u64::try_from(head.blocked_for.as_millis()).unwrap_or(u64::MAX);
    out.extend_from_slice(&millis.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
    out
}

pub(crate) fn head_from_bytes(bytes: &[u8]) -> Result<Option<HeadWait>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = ByteReader::new(bytes, "head of a lane");
    let flags = reader.byte()?;
    let nonce = Nonce(u64::from_be_bytes(reader.array()?));
    let blocked_for = Duration::from_millis(u64::from_be_bytes(reader.array()?));
    let reason = String::from_utf8(reader.rest().into()).map_err(|_not_utf8| reader.malformed())?;
    let reason = match flags {
        HAS_REASON => Some(reason),
        0 if reason.is_empty() => None,
        0..=u8::MAX => return Err(reader.malformed()),
    };
    Ok(Some(HeadWait {
        nonce,
        blocked_for,
        reason,
    }))
}

pub(crate) fn block_to_bytes(block: Option<WatchedBlock>) -> Vec<u8> {
    block.map_or_else(Vec::new, |block| {
        let mut out = block.number.to_be_bytes().to_vec();
        out.extend_from_slice(block.hash.as_slice());
        out
    })
}

pub(crate) fn block_from_bytes(bytes: &[u8]) -> Result<Option<WatchedBlock>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = ByteReader::new(bytes, "newest final block of a lane");
    let number = u64::from_be_bytes(reader.array()?);
    let hash = B256::from(reader.array()?);
    if !reader.is_empty() {
        return Err(reader.malformed());
    }
    Ok(Some(WatchedBlock { number, hash }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip_and_nothing_takes_no_bytes() {
        assert!(head_to_bytes(None).is_empty());
        for reason in [None, Some(String::new()), Some("ü".to_owned())] {
            for blocked_for in [0, 1, u64::MAX].map(Duration::from_millis) {
                let head = HeadWait {
                    nonce: Nonce(u64::MAX),
                    blocked_for,
                    reason: reason.clone(),
                };
                let bytes = head_to_bytes(Some(&head));
                assert_eq!(head_from_bytes(&bytes), Ok(Some(head)));
            }
        }
        assert_eq!(head_from_bytes(&[]), Ok(None));
        for bad in [&[1, 2][..], &[7; 17], &[0; 18], &[1; 17].map(|_| 0xff)] {
            assert!(head_from_bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn blocks_round_trip() {
        let block = Some(WatchedBlock {
            number: 7,
            hash: B256::repeat_byte(9),
        });
        assert_eq!(block_from_bytes(&block_to_bytes(block)), Ok(block));
        assert_eq!(block_from_bytes(&block_to_bytes(None)), Ok(None));
        for bad in [&[1; 39][..], &[1; 41]] {
            assert!(block_from_bytes(bad).is_err());
        }
    }
}
