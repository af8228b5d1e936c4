//! Amounts: decimal or 0x text, never JSON numbers: many parsers lose digits above 2^53.

use alloy_primitives::U256;
use domain::ChainId;

use crate::parse::{RuleViolation, excerpt};

/// For the message about a value of another type.
pub(super) const EXPECTED_AMOUNT: &str =
    "a string with a whole amount, such as \"1000\" or \"0x3e8\" (JSON numbers lose digits)";

pub(super) fn u256(text: &str) -> Result<U256, RuleViolation> {
    let (digits, radix) = split_digits(text)?;
    // Nearly all amounts fit into 128 bits, which parse several times faster.
    if let Ok(small) = u128::from_str_radix(digits, radix) {
        return Ok(U256::from(small));
    }
    U256::from_str_radix(digits, u64::from(radix)).or(Err(too_large(text, "2^256 - 1")))
}

pub(super) fn u128(text: &str) -> Result<u128, RuleViolation> {
    let (digits, radix) = split_digits(text)?;
    u128::from_str_radix(digits, radix).or(Err(too_large(text, "2^128 - 1")))
}

pub(super) fn u64(text: &str) -> Result<u64, RuleViolation> {
    let (digits, radix) = split_digits(text)?;
    u64::from_str_radix(digits, radix).or(Err(too_large(text, "2^64 - 1")))
}

/// A chain id in a path or query: decimal.
pub(crate) fn chain_id(text: &str) -> Result<ChainId, RuleViolation> {
    let expected = "a chain id, a decimal number without leading zeros such as 31337";
    plain_decimal(text)
        .map(ChainId)
        .ok_or_else(|| RuleViolation::must_be(expected, text))
}

/// A number in a path or query. One number has one form: leading zeros are refused as in amounts.
pub(crate) fn plain_decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The digits of an amount, and their radix. Checks the characters, because the number parsers also accept a sign or
/// underscores.
fn split_digits(text: &str) -> Result<(&str, u32), RuleViolation> {
    if let Some(hex) = text.strip_prefix("0x") {
        if hex.is_empty() {
            return Err(RuleViolation::new(
                "has no digits after 0x: write \"0x0\" for zero",
            ));
        }
        if hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok((hex, 16));
        }
    } else if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(RuleViolation::new(format!(
                "must not start with 0, because {} could be read as octal: remove the leading zeros",
                excerpt(text)
            )));
        }
        return Ok((text, 10));
    }
    Err(RuleViolation::must_be(
        "a whole, non-negative amount in decimal or 0x digits, such as \"1000\" or \"0x3e8\"",
        text,
    ))
}

fn too_large(text: &str, max: &str) -> RuleViolation {
    RuleViolation::new(format!("is too large: {} is above {max}", excerpt(text)))
}
