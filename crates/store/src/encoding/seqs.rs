//! The numbers of a tx's events: each as its distance from the one before, which is mostly one byte.

use super::Malformed;
use super::bytes::{ByteReader, put_number};

pub(crate) fn seqs_to_bytes(seqs: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(seqs.len() + 4);
    let mut before = 0_u64;
    for seq in seqs {
        put_number(&mut out, seq.wrapping_sub(before));
        before = *seq;
    }
    out
}

pub(crate) fn seqs_from_bytes(bytes: &[u8]) -> Result<Vec<u64>, Malformed> {
    let mut reader = ByteReader::new(bytes, "event numbers");
    let mut seqs = Vec::new();
    let mut before = 0_u64;
    while !reader.is_empty() {
        before = before.wrapping_add(reader.number()?);
        seqs.push(before);
    }
    Ok(seqs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_in_any_order() {
        for seqs in [&[][..], &[1], &[1, 2, 3], &[5, 900, 901], &[u64::MAX, 0, 7]] {
            assert_eq!(seqs_from_bytes(&seqs_to_bytes(seqs)), Ok(seqs.to_vec()));
        }
        assert_eq!(
            seqs_to_bytes(&[300, 301]),
            [0xac, 0x02, 1],
            "the stored form"
        );
    }
}
