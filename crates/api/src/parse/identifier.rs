//! Addresses, hashes and tx ids: texts of fixed width.

use alloy_primitives::{Address, B256, hex};
use domain::{BadAddress, TxId};
use uuid::Uuid;

use crate::parse::RuleViolation;

pub(crate) fn address(text: &str) -> Result<Address, RuleViolation> {
    domain::parse_address(text).map_err(|error| match error {
        BadAddress::Form => RuleViolation::must_be("an address, 0x and 40 hex digits", text),
        BadAddress::Checksum => RuleViolation::new(format!(
            "has a wrong EIP-55 checksum: check {text} for a typo, or send it in lower case if \
             you are sure"
        )),
    })
}

pub(crate) fn hash(text: &str) -> Result<B256, RuleViolation> {
    decode_fixed::<32>(text)
        .map(B256::from)
        .ok_or_else(|| RuleViolation::must_be("a hash, 0x and 64 hex digits", text))
}

/// A tx id, only in the form that responses use.
pub(crate) fn tx_id(text: &str) -> Result<TxId, RuleViolation> {
    hyphenated_uuid(text).map(TxId).ok_or_else(|| {
        let expected = "a tx id, such as 0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11";
        RuleViolation::must_be(expected, text)
    })
}

pub(crate) fn hyphenated_uuid(text: &str) -> Option<Uuid> {
    // The parser also takes braces, URNs and no hyphens.
    Uuid::try_parse(text).ok().filter(|_| text.len() == 36)
}

fn decode_fixed<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.strip_prefix("0x")?;
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    // A second 0x prefix does not decode, since `x` is not a hex digit.
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    Some(bytes)
}
