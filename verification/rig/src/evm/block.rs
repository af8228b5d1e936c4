//! Blocks as a test wants to see them.

use alloy_primitives::{Address, B256, Bytes, U256};
use serde_json::Value;

/// A block with its transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The block below it.
    pub parent_hash: B256,
    /// In order.
    pub transactions: Vec<BlockTx>,
}

/// A transaction in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTx {
    /// Its hash.
    pub hash: B256,
    /// Who sent it.
    pub from: Address,
    /// Recipient; `None` deploys.
    pub to: Option<Address>,
    /// Its place in the account's order.
    pub nonce: u64,
    /// Wei that it moves.
    pub value: U256,
    /// Call data or init code.
    pub input: Bytes,
}

impl Block {
    pub(super) fn of(block: &Value) -> Self {
        let transactions = block["transactions"].as_array();
        Self {
            number: quantity(&block["number"]),
            hash: field(block, "hash"),
            parent_hash: field(block, "parentHash"),
            transactions: transactions
                .unwrap_or_else(|| panic!("not a block: {block}"))
                .iter()
                .map(BlockTx::of)
                .collect(),
        }
    }
}

impl BlockTx {
    fn of(tx: &Value) -> Self {
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

/// A number of a node's answer.
pub(super) fn quantity(value: &Value) -> u64 {
    wei(value)
        .try_into()
        .unwrap_or_else(|_| panic!("not a number of 64 bits: {value}"))
}

/// An amount of a node's answer.
pub(super) fn wei(value: &Value) -> U256 {
    let number = value.as_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("not a number: {value}"))
}

fn field<T: std::str::FromStr>(value: &Value, name: &str) -> T {
    let found = value[name].as_str().and_then(|text| text.parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {value}"))
}
