//! Another program that uses the same account: what it signs is no business of Lanekeeper's.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, TxKind, U256, hex};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use proof::Outcome;
use rig::evm::{CHAIN_ID, account};

/// So much that no node prefers a transaction of ours at the same nonce, and none of ours could outbid
/// it by chance.
const FEE: u128 = 900_000_000_000;

/// A transaction of somebody else.
pub(crate) struct Foreign {
    pub(crate) hash: B256,
    pub(crate) raw: String,
}

/// One wei to nobody in particular, from an account of the mnemonic, at this nonce.
pub(crate) fn sign(account_index: u32, nonce: u64) -> Outcome<Foreign> {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: FEE,
        max_priority_fee_per_gas: FEE / 2,
        to: TxKind::Call(Address::repeat_byte(0xf0)),
        value: U256::from(1),
        ..TxEip1559::default()
    };
    let signer = PrivateKeySigner::from_bytes(&account(account_index).1)?;
    let signature = signer.sign_hash_sync(&tx.signature_hash())?;
    let envelope: TxEnvelope = tx.into_signed(signature).into();
    Ok(Foreign {
        hash: *envelope.tx_hash(),
        raw: hex::encode_prefixed(envelope.encoded_2718()),
    })
}
