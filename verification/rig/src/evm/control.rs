//! Queries and commands for a node, with one name for all kinds.

use alloy_primitives::{Address, B256, U256, hex};
use serde_json::{Value, json};

use super::block::{quantity, wei};
use super::{Block, EvmNode, Kind, Mining, RpcError, lock};

impl EvmNode {
    /// The height of its newest block.
    pub fn height(&self) -> u64 {
        quantity(&self.rpc.call("eth_blockNumber", json!([])))
    }

    /// A block with its transactions; `None` above the newest.
    pub fn block(&self, number: u64) -> Option<Block> {
        let params = json!([to_hex(number), true]);
        let block = match self.rpc.try_call("eth_getBlockByNumber", params) {
            Ok(block) => block,
            // Ganache's response for a missing block.
            Err(RpcError::Refused { message, .. }) if message == "header not found" => Value::Null,
            Err(error) => panic!("eth_getBlockByNumber: {error}"),
        };
        (!block.is_null()).then(|| Block::from_json(&block))
    }

    pub fn balance_of(&self, account: Address) -> U256 {
        wei(&self.rpc.call("eth_getBalance", json!([account, "latest"])))
    }

    /// The nonce in the latest block.
    pub fn nonce_of(&self, account: Address) -> u64 {
        self.count_of(account, "latest")
    }

    /// Including executable transactions in the pool.
    pub fn pending_nonce_of(&self, account: Address) -> u64 {
        self.count_of(account, "pending")
    }

    fn count_of(&self, account: Address, tag: &str) -> u64 {
        let params = json!([account, tag]);
        quantity(&self.rpc.call("eth_getTransactionCount", params))
    }

    /// The receipt of a transaction, once it is mined.
    pub fn receipt(&self, hash: B256) -> Option<Value> {
        let receipt = self.rpc.call("eth_getTransactionReceipt", json!([hash]));
        (!receipt.is_null()).then_some(receipt)
    }

    pub fn send_raw(&self, raw: &[u8]) -> Result<B256, RpcError> {
        let params = json!([hex::encode_prefixed(raw)]);
        self.hash_from("eth_sendRawTransaction", params)
    }

    /// Sends a transaction that the node signs with one of its own accounts: a foreign one. The fields are those of
    /// JSON-RPC; the node fills in missing ones.
    pub fn send(&self, transaction: Value) -> Result<B256, RpcError> {
        self.hash_from("eth_sendTransaction", json!([transaction]))
    }

    fn hash_from(&self, method: &str, params: Value) -> Result<B256, RpcError> {
        let answer = self.rpc.try_call(method, params)?;
        let hash = answer.as_str().and_then(|text| text.parse().ok());
        hash.ok_or_else(|| RpcError::NoAnswer(format!("not a hash: {answer}")))
    }

    /// Mines blocks now, the first with the pending transactions.
    pub fn mine(&self, blocks: u64) {
        for _ in 0..blocks {
            self.rpc.call("evm_mine", json!([]));
        }
    }

    /// Changes the mining mode.
    pub fn set_mining(&self, mining: Mining) {
        match self.kind {
            Kind::Anvil => self.set_anvil_mining(mining),
            Kind::Hardhat => self.set_hardhat_mining(mining),
            Kind::Ganache => self.set_ganache_mining(mining),
        }
        *lock(&self.mining) = mining;
    }

    /// One mode at a time: an interval of 0 is manual, and also ends automatic mining.
    fn set_anvil_mining(&self, mining: Mining) {
        let (method, parameter) = match mining {
            Mining::Instant => ("evm_setAutomine", json!(true)),
            Mining::Manual => ("evm_setIntervalMining", json!(0)),
            Mining::Every(time) => {
                assert_eq!(
                    time.subsec_nanos(),
                    0,
                    "anvil changes to whole seconds only"
                );
                ("evm_setIntervalMining", json!(time.as_secs()))
            }
        };
        self.rpc.call(method, json!([parameter]));
    }

    fn set_hardhat_mining(&self, mining: Mining) {
        let interval = match mining {
            Mining::Instant | Mining::Manual => 0,
            Mining::Every(time) => time.as_millis(),
        };
        let is_instant = mining == Mining::Instant;
        self.rpc.call("evm_setAutomine", json!([is_instant]));
        self.rpc.call("evm_setIntervalMining", json!([interval]));
    }

    /// The block time is fixed at the start; mining can only be paused and resumed.
    fn set_ganache_mining(&self, mining: Mining) {
        let started_with = match self.options.mining {
            Mining::Manual => Mining::Instant,
            mining @ (Mining::Instant | Mining::Every(_)) => mining,
        };
        match mining {
            Mining::Manual => self.rpc.call("miner_stop", json!([])),
            Mining::Instant | Mining::Every(_) => {
                assert_eq!(mining, started_with, "ganache cannot change its block time");
                self.rpc.call("miner_start", json!([]))
            }
        };
    }

    /// Removes a transaction from the pool. Only where [`Kind::drops_transactions`].
    pub fn drop_transaction(&self, hash: B256) {
        let method = match self.kind {
            Kind::Anvil => "anvil_dropTransaction",
            Kind::Hardhat => "hardhat_dropTransaction",
            Kind::Ganache => panic!("ganache cannot drop one transaction"),
        };
        self.rpc.call(method, json!([hash]));
    }

    pub fn set_balance(&self, account: Address, balance: U256) {
        let method = match self.kind {
            Kind::Anvil => "anvil_setBalance",
            Kind::Hardhat => "hardhat_setBalance",
            Kind::Ganache => "evm_setAccountBalance",
        };
        self.rpc.call(method, json!([account, balance]));
    }

    /// Consumes nonces without a transaction, so no block shows a consumer.
    pub fn set_nonce(&self, account: Address, nonce: u64) {
        let method = match self.kind {
            Kind::Anvil => "anvil_setNonce",
            Kind::Hardhat => "hardhat_setNonce",
            Kind::Ganache => "evm_setAccountNonce",
        };
        self.rpc.call(method, json!([account, to_hex(nonce)]));
    }

    /// The hashes in the pool, executable and queued.
    pub fn pool(&self) -> Vec<B256> {
        let waiting = match self.kind {
            Kind::Anvil | Kind::Ganache => {
                let content = self.rpc.call("txpool_content", json!([]));
                let parts = ["pending", "queued"].map(|part| content[part].clone());
                parts.iter().flat_map(transactions_by_sender).collect()
            }
            Kind::Hardhat => {
                let all = self.rpc.call("eth_pendingTransactions", json!([]));
                all.as_array().expect("a list").clone()
            }
        };
        let hash = |tx: &Value| tx["hash"].as_str().and_then(|text| text.parse().ok());
        let hashes = waiting.iter().map(|tx| hash(tx).expect("it has a hash"));
        hashes.collect()
    }
}

/// The transactions in `{sender: {nonce: transaction}}`.
fn transactions_by_sender(part: &Value) -> Vec<Value> {
    let senders = part.as_object().into_iter().flatten();
    senders
        .filter_map(|(_, of_sender)| of_sender.as_object())
        .flat_map(|of_sender| of_sender.values().cloned())
        .collect()
}

/// A number in JSON-RPC's notation.
pub(super) fn to_hex(number: u64) -> String {
    format!("{number:#x}")
}
