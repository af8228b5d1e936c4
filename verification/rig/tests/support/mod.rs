//! Signed transfers.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use rig::evm::{CHAIN_ID, account};

pub(crate) const BOB: Address = Address::repeat_byte(0xb0);

/// A signed transfer to Bob from the first account: hash and bytes.
pub(crate) fn transfer(nonce: u64, wei: u64) -> (B256, Bytes) {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 10_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(BOB),
        value: U256::from(wei),
        ..TxEip1559::default()
    };
    let signer = PrivateKeySigner::from_bytes(&account(0).1).unwrap();
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    let envelope: TxEnvelope = tx.into_signed(signature).into();
    (*envelope.tx_hash(), envelope.encoded_2718().into())
}
