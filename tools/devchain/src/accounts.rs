//! The publicly known test accounts: never hold anything of value with these keys.

use alloy_primitives::{Address, B256};
use alloy_signer_local::{MnemonicBuilder, coins_bip39::English};

const MNEMONIC: &str = "test test test test test test test test test test test junk";

/// The first `count` accounts of the well-known test mnemonic (`m/44'/60'/0'/0/i`), each with its
/// private key: the same ones that anvil and hardhat fund.
pub fn dev_accounts(count: u32) -> Vec<(Address, B256)> {
    (0..count).map(dev_account).collect()
}

/// The account at one index.
pub fn dev_account(index: u32) -> (Address, B256) {
    let signer = MnemonicBuilder::<English>::default()
        .phrase(MNEMONIC)
        .index(index)
        .and_then(|builder| builder.build())
        .expect("the test mnemonic is valid and every u32 is a valid child index");
    (signer.address(), signer.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{address, b256};

    #[test]
    fn first_account_is_the_well_known_one() {
        let (address, key) = dev_accounts(1)[0];
        assert_eq!(
            address,
            address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
        );
        let known = b256!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80");
        assert_eq!(key, known);
    }
}
