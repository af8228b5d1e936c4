//! Transfers that are signed here, with a key of the test mnemonic: what any other program would send.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, TxKind, U256, hex};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use rig::evm::{CHAIN_ID, account};

use crate::Outcome;

/// More than any new development chain asks for.
const MAX_FEE_WEI: u128 = 100_000_000_000;
const TIP_WEI: u128 = 1_000_000_000;

/// Transfers of 1 wei from an account, one per recipient, at nonces in a row: the bytes as JSON-RPC
/// has them.
pub fn transfers(
    account_index: u32,
    first_nonce: u64,
    recipients: &[Address],
) -> Outcome<Vec<String>> {
    let signer = PrivateKeySigner::from_bytes(&account(account_index).1)?;
    let numbered = (first_nonce..).zip(recipients);
    numbered
        .map(|(nonce, to)| {
            let tx = TxEip1559 {
                chain_id: CHAIN_ID,
                nonce,
                gas_limit: 21_000,
                max_fee_per_gas: MAX_FEE_WEI,
                max_priority_fee_per_gas: TIP_WEI,
                to: TxKind::Call(*to),
                value: U256::ONE,
                ..TxEip1559::default()
            };
            let signature = signer.sign_hash_sync(&tx.signature_hash())?;
            let envelope: TxEnvelope = tx.into_signed(signature).into();
            Ok(hex::encode_prefixed(envelope.encoded_2718()))
        })
        .collect()
}
