//! How single values look in the public JSON.

use std::fmt::{self, Write as _};

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use domain::{Header, Timestamp, TxId};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

/// An address, EIP-55 checksummed.
pub(super) struct Account(pub(super) Address);

impl Serialize for Account {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_checksum_buffer(None).as_str())
    }
}

/// A hash as 0x text.
pub(super) struct Hash(pub(super) B256);

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(hex::Buffer::<32, true>::new().format(&self.0.0))
    }
}

/// Bytes as 0x text.
pub(super) struct Data<'a>(pub(super) &'a Bytes);

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() {
            return serializer.serialize_str("0x");
        }
        serializer.serialize_str(&hex::encode_prefixed(self.0))
    }
}

/// An amount as decimal text: JSON numbers lose digits above 2^53.
pub(super) struct Amount<T>(pub(super) T);

impl<T: fmt::Display> Serialize for Amount<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// An amount of 256 bits; nearly all fit into 128, which are written several times faster.
pub(super) struct Wei(pub(super) U256);

impl Serialize for Wei {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u128::try_from(self.0) {
            Ok(small) => serializer.collect_str(&small),
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

/// A tx id.
pub(super) struct Id(pub(super) TxId);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.0.hyphenated().encode_lower(&mut [0; 36]))
    }
}

/// A time as RFC 3339 in UTC with milliseconds.
pub(super) struct At(pub(super) Timestamp);

/// The last time that RFC 3339 can say; later ones (a clock gone wild) are shown as this one.
const AT_MAX_MS: u64 = 253_402_300_799_999;

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.0.min(AT_MAX_MS);
        let seconds = i64::try_from(ms / 1_000).expect("bounded by AT_MAX_MS");
        let at = OffsetDateTime::from_unix_timestamp(seconds).expect("bounded by AT_MAX_MS");
        let (date, time) = (at.date(), at.time());
        write!(
            f,
            "{:04}-{:02}-{:02}",
            date.year(),
            u8::from(date.month()),
            date.day()
        )?;
        let (hour, minute, second) = time.as_hms();
        write!(f, "T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
    }
}

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // On the stack: three of these are in every answer of the hot path.
        let mut text = Stamp {
            bytes: [0; 24],
            len: 0,
        };
        write!(text, "{self}").expect("an RFC 3339 time with milliseconds has 24 characters");
        serializer.serialize_str(std::str::from_utf8(&text.bytes).expect("ASCII was written"))
    }
}

struct Stamp {
    bytes: [u8; 24],
    len: usize,
}

impl fmt::Write for Stamp {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.len + part.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(part.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// How an execution ended.
pub(super) fn status_word(succeeded: bool) -> &'static str {
    if succeeded { "success" } else { "reverted" }
}

/// Headers that stand on a tx's block, oldest first.
pub(super) struct Confirmations<'a>(pub(super) &'a [Header]);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Confirmation {
    number: u64,
    hash: Hash,
    parent_hash: Hash,
}

impl Serialize for Confirmations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|header| Confirmation {
            number: header.number,
            hash: Hash(header.hash),
            parent_hash: Hash(header.parent_hash),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: impl Serialize) -> String {
        serde_json::to_string(&value).unwrap()
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(json(At(Timestamp(0))), r#""1970-01-01T00:00:00.000Z""#);
        assert_eq!(
            json(At(Timestamp(1_709_210_096_007))),
            r#""2024-02-29T12:34:56.007Z""#
        );
        assert_eq!(
            json(At(Timestamp(u64::MAX))),
            r#""9999-12-31T23:59:59.999Z""#
        );
    }

    #[test]
    fn amounts_are_decimal_at_every_width() {
        assert_eq!(json(Wei(U256::ZERO)), r#""0""#);
        assert_eq!(
            json(Wei(U256::from(u128::MAX))),
            format!("\"{}\"", u128::MAX)
        );
        assert_eq!(json(Wei(U256::MAX)), format!("\"{}\"", U256::MAX));
        assert_eq!(json(Amount(21_000_u64)), r#""21000""#);
    }

    #[test]
    fn addresses_are_checksummed_and_bytes_are_hex() {
        let account = Address::from([0x5a; 20]);
        assert_eq!(
            json(Account(account)),
            format!("\"{}\"", account.to_checksum(None))
        );
        assert_eq!(json(Data(&Bytes::new())), r#""0x""#);
        assert_eq!(json(Data(&Bytes::from_static(&[0, 255]))), r#""0x00ff""#);
        assert_eq!(json(Hash(B256::ZERO)), format!("\"{}\"", B256::ZERO));
    }
}
