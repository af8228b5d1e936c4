//! The encoding of single values in the public JSON.

use std::fmt::{self, Write as _};

use alloy_primitives::{Address, B256, U256};
use domain::{Header, Timestamp, TxId};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

/// An address, EIP-55 checksummed.
pub(crate) struct ChecksumAddress(pub(crate) Address);

impl Serialize for ChecksumAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_checksum_buffer(None).as_str())
    }
}

/// A number as decimal text: many JSON parsers lose digits above 2^53.
pub(crate) struct Decimal<T>(pub(crate) T);

impl<T: fmt::Display> Serialize for Decimal<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A 256-bit number as decimal text; nearly all fit into 128 bits, which are formatted several times faster.
pub(crate) struct DecimalU256(pub(crate) U256);

impl Serialize for DecimalU256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u128::try_from(self.0) {
            Ok(small) => serializer.collect_str(&small),
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

/// A tx id as a hyphenated UUID.
pub(crate) struct TxIdText(pub(crate) TxId);

impl Serialize for TxIdText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.0.hyphenated().encode_lower(&mut [0; 36]))
    }
}

/// A timestamp as RFC 3339 in UTC with milliseconds.
pub(crate) struct Rfc3339Time(pub(crate) Timestamp);

/// The last time that RFC 3339 can express; later ones (from a broken clock) are shown as this one.
const RFC3339_MAX_MS: u64 = 253_402_300_799_999;

impl fmt::Display for Rfc3339Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.0.min(RFC3339_MAX_MS);
        let seconds = i64::try_from(ms / 1_000).expect("bounded by RFC3339_MAX_MS");
        let at = OffsetDateTime::from_unix_timestamp(seconds).expect("bounded by RFC3339_MAX_MS");
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

impl Serialize for Rfc3339Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // On the stack: every response of the hot path contains three timestamps.
        let mut text = StackText {
            bytes: [0; 24],
            len: 0,
        };
        write!(text, "{self}").expect("an RFC 3339 time with milliseconds has 24 characters");
        serializer.serialize_str(std::str::from_utf8(&text.bytes).expect("ASCII was written"))
    }
}

struct StackText {
    bytes: [u8; 24],
    len: usize,
}

impl fmt::Write for StackText {
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

/// The `status` of a receipt.
pub(crate) fn execution_status(succeeded: bool) -> &'static str {
    if succeeded { "success" } else { "reverted" }
}

/// The headers from a tx's block upwards, oldest first.
pub(crate) struct HeaderList<'a>(pub(crate) &'a [Header]);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeaderView {
    number: u64,
    hash: B256,
    parent_hash: B256,
}

impl Serialize for HeaderList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|header| HeaderView {
            number: header.number,
            hash: header.hash,
            parent_hash: header.parent_hash,
        }))
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Bytes;

    use super::*;

    fn json(value: impl Serialize) -> String {
        serde_json::to_string(&value).unwrap()
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(
            json(Rfc3339Time(Timestamp(0))),
            r#""1970-01-01T00:00:00.000Z""#
        );
        assert_eq!(
            json(Rfc3339Time(Timestamp(1_709_210_096_007))),
            r#""2024-02-29T12:34:56.007Z""#
        );
        assert_eq!(
            json(Rfc3339Time(Timestamp(u64::MAX))),
            r#""9999-12-31T23:59:59.999Z""#
        );
    }

    #[test]
    fn amounts_are_decimal_at_every_width() {
        assert_eq!(json(DecimalU256(U256::ZERO)), r#""0""#);
        assert_eq!(
            json(DecimalU256(U256::from(u128::MAX))),
            format!("\"{}\"", u128::MAX)
        );
        assert_eq!(json(DecimalU256(U256::MAX)), format!("\"{}\"", U256::MAX));
        assert_eq!(json(Decimal(21_000_u64)), r#""21000""#);
    }

    #[test]
    fn addresses_are_checksummed_and_bytes_are_hex() {
        let account = Address::from([0x5a; 20]);
        assert_eq!(
            json(ChecksumAddress(account)),
            format!("\"{}\"", account.to_checksum(None))
        );
        assert_eq!(json(Bytes::new()), r#""0x""#);
        assert_eq!(json(Bytes::from_static(&[0, 255])), r#""0x00ff""#);
        assert_eq!(json(B256::ZERO), format!("\"{}\"", B256::ZERO));
    }
}
