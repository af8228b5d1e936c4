//! Addresses on the command line.

use alloy_primitives::Address;
use domain::{BadAddress, parse_address};

/// Parses an address by the rule of the API: the recipient of a mistyped address cannot be undone.
pub fn parse(text: &str) -> Result<Address, String> {
    parse_address(text).map_err(|error| match error {
        BadAddress::Form => {
            format!("{text:?} is not an address: write 0x and 40 hex digits")
        }
        BadAddress::Checksum => format!(
            "{text} has a wrong EIP-55 checksum: check it for a typo, or write it in lower case if \
             you are sure"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let address = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
        assert!(parse(address).is_ok());
        let bare = parse(&address[2..]).unwrap_err();
        assert!(bare.ends_with("write 0x and 40 hex digits"), "{bare}");
        let mistyped = parse(&address.replace("aad", "aAd")).unwrap_err();
        assert!(mistyped.contains("check it for a typo"), "{mistyped}");
    }
}
