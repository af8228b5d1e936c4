//! The kinds of events: the number under which each is stored, and its fields in their order.
//!
//! A field that was added to a kind later has a second number for it: events without the field are
//! written as before, and every row that was ever written can be read.

use domain::{AttemptKind, B256, EventKind, NodeName, Nonce, Token};

use super::Malformed;
use super::bytes::{ByteReader, put_number};
use super::enum_numbers::{attempt_kind, attempt_kind_number};

/// Writes and reads every kind by one table. A field that was added later is missing under the first number of
/// its kind (`without`), and stands behind the others under the second (`with`).
macro_rules! event_layouts {
    ($($number:literal $kind:ident {
        $($field:ident),* $(; without $missing:ident)? $(; with $added:ident)?
    })*) => {
        pub(super) fn kind_number(kind: &EventKind) -> u8 {
            match kind {
                $(EventKind::$kind { $($missing: None,)? $($added: Some(_),)? .. } => $number,)*
            }
        }

        pub(super) fn put_fields(out: &mut Vec<u8>, kind: &EventKind) {
            match kind {
                $(EventKind::$kind { $($field,)* $($missing: None)? $($added: Some($added))? } => {
                    $($field.put(out);)*
                    $($added.put(out);)?
                })*
            }
        }

        pub(super) fn take_fields(
            reader: &mut ByteReader<'_>,
            number: u8,
        ) -> Result<EventKind, Malformed> {
            Ok(match number {
                // The fields are read in the order in which they stand here.
                $($number => EventKind::$kind {
                    $($field: Field::take(reader)?,)*
                    $($missing: None)?
                    $($added: Some(Field::take(reader)?))?
                },)*
                _ => return Err(reader.malformed()),
            })
        }
    };
}

event_layouts! {
    1 TxAccepted { nonce }
    2 TxAllocated { nonce }
    3 TxSubmitted { tx_hash, nonce }
    4 TxReceiptUpdated { tx_hash, block_number, block_hash, succeeded }
    5 TxConfirmations { block_number, block_hash, counted, count, new_fork; without since }
    6 TxConfirmed { tx_hash, block_number, block_hash, counted, new_fork }
    7 TxFailed { reason }
    8 TxStuck { reason }
    9 TxReorged { block_number, block_hash, after_final }
    10 LaneFenced { from, token }
    11 LaneForeignNonce { nonce; without tx_hash }
    12 TxResubmitted { tx_hash, nonce, kind, count }
    13 TxReplaced { tx_hash, nonce, kind }
    14 TxRequeued { nonce, foreign }
    15 LaneForeignPending { nonce }
    16 TxConfirmations { block_number, block_hash, counted, count, new_fork; with since }
    17 LaneForeignNonce { nonce; with tx_hash }
}

/// The stored form of a field.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed>;
}

impl Field for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, *self);
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.number()
    }
}

impl Field for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, (*self).into());
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        Self::try_from(reader.number()?).map_err(|_too_large| reader.malformed())
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        match reader.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            2.. => Err(reader.malformed()),
        }
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.text()
    }
}

impl Field for B256 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_slice());
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self::from)
    }
}

impl Field for Option<B256> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(hash) = self {
            hash.put(out);
        }
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        bool::take(reader)?.then(|| B256::take(reader)).transpose()
    }
}

impl Field for Nonce {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.number().map(Self)
    }
}

/// Shifted by one, so that a nonce of 0 differs from none. (2^64 - 1 is no legal nonce.)
impl Field for Option<Nonce> {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.map_or(0, |nonce| nonce.0.saturating_add(1)));
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        Ok(reader.number()?.checked_sub(1).map(Nonce))
    }
}

impl Field for Token {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.number().map(Self)
    }
}

impl Field for NodeName {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        reader.text().map(Self)
    }
}

impl Field for AttemptKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(attempt_kind_number(*self));
    }

    fn take(reader: &mut ByteReader<'_>) -> Result<Self, Malformed> {
        attempt_kind(reader.byte()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: &EventKind) -> Vec<u8> {
        let mut bytes = vec![kind_number(kind)];
        put_fields(&mut bytes, kind);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<EventKind, Malformed> {
        let mut reader = ByteReader::new(&bytes[1..], "event");
        let kind = take_fields(&mut reader, bytes[0])?;
        assert!(reader.is_empty(), "{kind:?}");
        Ok(kind)
    }

    /// A row from its parts.
    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn rows_from_before_a_field_was_added_are_read_without_it() {
        let (two, three) = ([2; 32], [3; 32]);
        let foreign = EventKind::LaneForeignNonce {
            nonce: Nonce(7),
            tx_hash: None,
        };
        let confirmations = EventKind::TxConfirmations {
            block_number: 300,
            block_hash: two.into(),
            counted: three.into(),
            count: 20,
            since: None,
            new_fork: true,
        };
        let rows = [
            (bytes(&[&[11, 7]]), foreign),
            (
                bytes(&[&[5, 0xac, 2], &two, &three, &[20, 1]]),
                confirmations,
            ),
        ];
        for (bytes, kind) in rows {
            assert_eq!(read(&bytes), Ok(kind.clone()));
            assert_eq!(
                written(&kind),
                bytes,
                "older programs read what has no new field"
            );
        }
    }

    #[test]
    fn stored_form_is_stable() {
        let (one, two, three) = ([1; 32], [2; 32], [3; 32]);
        let (tx_hash, nonce) = (B256::from(one), Nonce(7));
        let rows = [
            (
                EventKind::TxResubmitted {
                    tx_hash,
                    nonce,
                    kind: AttemptKind::Bump,
                    count: 300,
                },
                bytes(&[&[12], &one, &[7, 1, 0xac, 2]]),
            ),
            (
                EventKind::TxReplaced {
                    tx_hash,
                    nonce,
                    kind: AttemptKind::Cancel,
                },
                bytes(&[&[13], &one, &[7, 2]]),
            ),
            (
                EventKind::TxRequeued {
                    nonce,
                    foreign: None,
                },
                bytes(&[&[14, 7, 0]]),
            ),
            (
                EventKind::TxRequeued {
                    nonce,
                    foreign: Some(two.into()),
                },
                bytes(&[&[14, 7, 1], &two]),
            ),
            (EventKind::LaneForeignPending { nonce }, bytes(&[&[15, 7]])),
            (
                EventKind::TxConfirmations {
                    block_number: 9,
                    block_hash: two.into(),
                    counted: three.into(),
                    count: 20,
                    since: Some(one.into()),
                    new_fork: false,
                },
                bytes(&[&[16, 9], &two, &three, &[20, 0], &one]),
            ),
            (
                EventKind::LaneForeignNonce {
                    nonce,
                    tx_hash: Some(two.into()),
                },
                bytes(&[&[17, 7], &two]),
            ),
        ];
        for (kind, bytes) in rows {
            assert_eq!(written(&kind), bytes, "{kind:?}");
            assert_eq!(read(&bytes), Ok(kind));
            for len in 1..bytes.len() {
                assert!(read(&bytes[..len]).is_err(), "cut at {len}");
            }
        }
    }

    #[test]
    fn unknown_kind_number_is_refused() {
        for number in [0, 18, 127] {
            assert_eq!(read(&[number; 200]), Err(Malformed("event")));
        }
        let flag_of_two = [14, 7, 2];
        assert_eq!(read(&flag_of_two), Err(Malformed("event")));
        let kind_of_nine = bytes(&[&[13], &[1; 32], &[7, 9]]);
        assert_eq!(read(&kind_of_nine), Err(Malformed("kind of attempt")));
        let count_beyond_32_bits = bytes(&[&[12], &[1; 32], &[7, 1], &[0xff; 5], &[1]]);
        assert_eq!(read(&count_beyond_32_bits), Err(Malformed("event")));
    }
}
