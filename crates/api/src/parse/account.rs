//! Addresses, hashes and ids: fixed-width texts.

use alloy_primitives::{Address, B256, hex};
use domain::TxId;
use uuid::Uuid;

use crate::parse::{Broken, excerpt};

/// An address. Mixed case is a checksum (EIP-55) and must be right: it may be a typo otherwise.
pub(crate) fn address(text: &str) -> Result<Address, Broken> {
    let Some(bytes) = fixed::<20>(text) else {
        return Err(Broken::by(format!(
            "must be an address, 0x and 40 hex digits, not {}",
            excerpt(text)
        )));
    };
    let address = Address::from(bytes);
    let has_lower = text.bytes().skip(2).any(|b| b.is_ascii_lowercase());
    let has_upper = text.bytes().skip(2).any(|b| b.is_ascii_uppercase());
    if has_lower && has_upper && address.to_checksum_buffer(None).as_str() != text {
        return Err(Broken::by(format!(
            "has a wrong EIP-55 checksum: check {text} for a typo, or send it in lower case if \
             you are sure"
        )));
    }
    Ok(address)
}

/// A hash.
pub(crate) fn hash(text: &str) -> Result<B256, Broken> {
    fixed::<32>(text).map(B256::from).ok_or_else(|| {
        Broken::by(format!(
            "must be a hash, 0x and 64 hex digits, not {}",
            excerpt(text)
        ))
    })
}

/// A tx id, in the one form in which we write it.
pub(crate) fn tx_id(text: &str) -> Result<TxId, Broken> {
    // The parser also takes braces, URNs and no hyphens.
    let id = if text.len() == 36 {
        Uuid::try_parse(text).ok()
    } else {
        None
    };
    id.map(TxId).ok_or_else(|| {
        Broken::by(format!(
            "must be a tx id, such as 0192b2a4-5f7e-7cc1-8d59-4d5d3f6a1c11, not {}",
            excerpt(text)
        ))
    })
}

fn fixed<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.strip_prefix("0x")?;
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    // A second prefix is refused by the length, since two of its characters are no digits.
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    Some(bytes)
}
