//! Blocks and their transactions, decoded.

use alloy_primitives::{Address, B256, Bytes, U256};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub number: u64,
    pub hash: B256,
    /// The parent's hash.
    pub parent_hash: B256,
    /// In block order.
    pub transactions: Vec<BlockTx>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTx {
    pub hash: B256,
    pub from: Address,
    /// Recipient; `None` deploys.
    pub to: Option<Address>,
    pub nonce: u64,
    /// In wei.
    pub value: U256,
    /// Call data or init code.
    pub input: Bytes,
}

impl Block {
    pub(super) fn from_json(block: &Value) -> Self {
        let transactions = block["transactions"].as_array();
        Self {
            number: quantity(&block["number"]),
            hash: field(block, "hash"),
            parent_hash: field(block, "parentHash"),
            transactions: transactions
                .unwrap_or_else(|| panic!("not a block: {block}"))
                .iter()
                .map(BlockTx::from_json)
                .collect(),
        }
    }
}

impl BlockTx {
    fn from_json(tx: &Value) -> Self {
        Self {
            hash: field(tx, "hash"),
            from: field(tx, "from"),
            to: (!tx["to"].is_null()).then(|| field(tx, "to")),
            nonce: quantity(&tx["nonce"]),
            value: wei(&tx["value"]),
            input: field(tx, "input"),
        }
    }
}

/// A 64-bit quantity in a node's response.
pub(super) fn quantity(value: &Value) -> u64 {
    wei(value)
        .try_into()
        .unwrap_or_else(|_| panic!("not a number of 64 bits: {value}"))
}

/// An amount in a node's response.
pub(super) fn wei(value: &Value) -> U256 {
    let number = value.as_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("not a number: {value}"))
}

fn field<T: std::str::FromStr>(value: &Value, name: &str) -> T {
    let found = value[name].as_str().and_then(|text| text.parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {value}"))
}
