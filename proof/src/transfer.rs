//! Transfers that the proof signs itself with a key of the test mnemonic, like any foreign program.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use rig::evm::{CHAIN_ID, account};

use crate::Outcome;

const GWEI: u128 = 1_000_000_000;

/// The fee fields.
#[derive(Clone, Copy, Debug)]
pub struct Fee {
    max: u128,
    tip: u128,
}

impl Fee {
    /// More than any new development chain requires.
    pub const PLENTY: Self = Self {
        max: 100 * GWEI,
        tip: GWEI,
    };

    /// So high that no attempt of Lanekeeper at the same nonce can outbid it.
    pub const OUTBIDS: Self = Self {
        max: 900 * GWEI,
        tip: 450 * GWEI,
    };
}

/// A signed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub hash: B256,
    pub raw: Bytes,
}

/// One wei from an account of the mnemonic.
pub fn transfer(account_index: u32, nonce: u64, to: Address) -> Outcome<Signed> {
    sign(&key_of(account_index)?, nonce, to, Fee::PLENTY)
}

/// With another fee.
pub fn transfer_for(account_index: u32, nonce: u64, to: Address, fee: Fee) -> Outcome<Signed> {
    sign(&key_of(account_index)?, nonce, to, fee)
}

/// For many recipients, at consecutive nonces.
pub fn transfers(
    account_index: u32,
    first_nonce: u64,
    recipients: &[Address],
) -> Outcome<Vec<Signed>> {
    let key = key_of(account_index)?;
    let numbered = (first_nonce..).zip(recipients);
    numbered
        .map(|(nonce, to)| sign(&key, nonce, *to, Fee::PLENTY))
        .collect()
}

fn key_of(account_index: u32) -> Outcome<PrivateKeySigner> {
    Ok(PrivateKeySigner::from_bytes(&account(account_index).1)?)
}

fn sign(key: &PrivateKeySigner, nonce: u64, to: Address, fee: Fee) -> Outcome<Signed> {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: fee.max,
        max_priority_fee_per_gas: fee.tip,
        to: TxKind::Call(to),
        value: U256::ONE,
        ..TxEip1559::default()
    };
    let signature = key.sign_hash_sync(&tx.signature_hash())?;
    let envelope: TxEnvelope = tx.into_signed(signature).into();
    Ok(Signed {
        hash: *envelope.tx_hash(),
        raw: envelope.encoded_2718().into(),
    })
}
