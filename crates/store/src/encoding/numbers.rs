//! Unsigned numbers in signed columns: databases have no 64 unsigned bits.

use thiserror::Error;

use super::Malformed;

/// A number that is too large for a column. Nonces, times, tokens and event numbers are ordered, so
/// they may not wrap around.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} is too large to be stored")]
pub(crate) struct TooLarge(u64);

/// The stored form of a number whose order matters.
pub(crate) fn stored(number: u64) -> Result<i64, TooLarge> {
    i64::try_from(number).map_err(|_above| TooLarge(number))
}

/// A stored number, as it was.
pub(crate) fn from_stored(column: i64, what: &'static str) -> Result<u64, Malformed> {
    u64::try_from(column).map_err(|_negative| Malformed(what))
}

/// A bound of a search: a number beyond the stored range finds what the largest one finds.
pub(crate) fn bound(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number whose order does not matter (chain ids, heights and times of headers, gas): all 64 bits
/// are kept, and a value that an endpoint made up cannot fail a write.
pub(crate) fn bits(number: u64) -> i64 {
    number.cast_signed()
}

/// The number of these bits.
pub(crate) fn from_bits(column: i64) -> u64 {
    column.cast_unsigned()
}
