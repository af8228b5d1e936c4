//! Blocks, receipts and transactions as nodes write them, with no more fields than are used.
//!
//! Smaller than the types of alloy on purpose: chains add transaction and receipt types of their
//! own, and a receipt of somebody else must not make a whole block unreadable.

use alloy_primitives::{Address, B256, Bytes, U64, U128, U256};
use domain::{Header, Inclusion};
use serde::Deserialize;

use super::failure::Failure;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Block {
    number: U64,
    hash: B256,
    parent_hash: B256,
    timestamp: U64,
    /// Missing on chains without EIP-1559.
    pub(super) base_fee_per_gas: Option<U128>,
    /// Hashes, as long as nobody asks for more.
    #[serde(default)]
    pub(super) transactions: Vec<serde_json::Value>,
}

impl Block {
    pub(super) fn header(&self) -> Header {
        Header {
            number: self.number.to(),
            hash: self.hash,
            parent_hash: self.parent_hash,
            timestamp: self.timestamp.to(),
        }
    }

    /// The hashes of its transactions.
    pub(super) fn hashes(&self) -> Result<Vec<B256>, Failure> {
        let hash = |value: &serde_json::Value| value.as_str()?.parse().ok();
        let hashes: Option<Vec<B256>> = self.transactions.iter().map(hash).collect();
        hashes.ok_or_else(|| Failure::Malformed("a block without its hashes".to_owned()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Receipt {
    transaction_hash: B256,
    /// Missing, with its number, while a transaction is pending (some nodes answer even then).
    block_hash: Option<B256>,
    block_number: Option<U64>,
    status: Option<U64>,
    gas_used: U64,
    effective_gas_price: Option<U128>,
    contract_address: Option<Address>,
}

impl Receipt {
    /// The receipt of this transaction; `None` while it is in no block.
    pub(super) fn inclusion_of(self, hash: B256) -> Result<Option<Inclusion>, Failure> {
        if self.transaction_hash != hash {
            return Err(Failure::Malformed(
                "a receipt of another transaction".to_owned(),
            ));
        }
        self.inclusion()
    }

    /// A receipt of this block.
    pub(super) fn inclusion_in(self, block: B256) -> Result<Inclusion, Failure> {
        match self.inclusion()? {
            Some(inclusion) if inclusion.block_hash == block => Ok(inclusion),
            Some(_) | None => Err(Failure::Malformed("a receipt of another block".to_owned())),
        }
    }

    fn inclusion(self) -> Result<Option<Inclusion>, Failure> {
        let (Some(block_hash), Some(block_number)) = (self.block_hash, self.block_number) else {
            return Ok(None);
        };
        // Without a status (before Byzantium, 2017) nobody can say what became of it.
        let status = self
            .status
            .ok_or_else(|| Failure::Malformed("a receipt without a status".to_owned()))?;
        Ok(Some(Inclusion {
            tx_hash: self.transaction_hash,
            block_number: block_number.to(),
            block_hash,
            succeeded: !status.is_zero(),
            gas_used: self.gas_used.to(),
            // Old nodes of chains without EIP-1559 do not tell it: 0 is "not told" there.
            effective_gas_price: self.effective_gas_price.unwrap_or_default().to(),
            contract_address: self.contract_address,
            revert_reason: None,
        }))
    }
}

/// A mined transaction, as far as it takes to try it again.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MinedTx {
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) value: U256,
    pub(super) input: Bytes,
    pub(super) gas: U64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FeeHistory {
    #[serde(default)]
    pub(super) base_fee_per_gas: Option<Vec<Option<U128>>>,
    #[serde(default)]
    pub(super) reward: Option<Vec<Option<Vec<U128>>>>,
}
