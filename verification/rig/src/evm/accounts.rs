//! The funded accounts of every node.

use alloy_primitives::{Address, B256};
use alloy_signer_local::MnemonicBuilder;

/// The mnemonic from which all development nodes derive their accounts.
pub const MNEMONIC: &str = "test test test test test test test test test test test junk";

/// Address and key of an account of the mnemonic.
pub fn account(index: u32) -> (Address, B256) {
    let signer = MnemonicBuilder::english()
        .phrase(MNEMONIC)
        .index(index)
        .and_then(|builder| builder.build())
        .expect("the mnemonic is valid, and so is every index that fits into 31 bits");
    (signer.address(), signer.to_bytes())
}

#[cfg(test)]
mod tests {
    use alloy_primitives::address;

    use super::*;

    #[test]
    fn accounts_are_the_well_known_ones() {
        let first = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
        let tenth = address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720");
        assert_eq!((account(0).0, account(9).0), (first, tenth));
    }
}
