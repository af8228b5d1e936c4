//! Addresses as people write them: one rule for the API, the command line and the configuration.

use alloy_primitives::Address;
use thiserror::Error;

/// Why a text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadAddress {
    /// It does not have the form of an address.
    #[error("it is not 0x and 40 hex digits")]
    Form,
    /// Its case is a checksum that does not match.
    #[error(
        "its EIP-55 checksum is wrong: check it for a typo, or write it in lower case if you are sure"
    )]
    Checksum,
}

/// Parses `0x` and 40 hex digits. Mixed case is a checksum (EIP-55) and must match, because a mismatch may be a typo.
pub fn parse_address(text: &str) -> Result<Address, BadAddress> {
    let digits = text
        .strip_prefix("0x")
        .filter(|digits| digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .ok_or(BadAddress::Form)?;
    let address: Address = digits.parse().or(Err(BadAddress::Form))?;
    let has_lower = digits.bytes().any(|b| b.is_ascii_lowercase());
    let has_upper = digits.bytes().any(|b| b.is_ascii_uppercase());
    if has_lower && has_upper && address.to_checksum_buffer(None).as_str() != text {
        return Err(BadAddress::Checksum);
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKSUMMED: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";

    #[test]
    fn case_is_a_checksum_only_where_it_is_mixed() {
        let upper = format!("0x{}", CHECKSUMMED[2..].to_uppercase());
        for text in [CHECKSUMMED, &CHECKSUMMED.to_lowercase(), &upper] {
            let address = parse_address(text).unwrap();
            assert_eq!(address.to_string(), CHECKSUMMED);
        }
        let mistyped = CHECKSUMMED.replace("f39F", "F39F");
        assert_eq!(parse_address(&mistyped), Err(BadAddress::Checksum));
    }

    #[test]
    fn other_forms_are_refused() {
        for bad in [
            "",
            "0x",
            &CHECKSUMMED[2..],
            &CHECKSUMMED[..41],
            &format!("{CHECKSUMMED}0"),
            &format!(" {CHECKSUMMED}"),
            &CHECKSUMMED.replace("0x", "0X"),
            &CHECKSUMMED.replace("0xf3", "0x0x"),
            &CHECKSUMMED.replace("f39F", "é9F"),
        ] {
            assert_eq!(parse_address(bad), Err(BadAddress::Form), "{bad:?}");
        }
    }
}
