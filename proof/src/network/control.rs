//! Control of a running chain.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use rig::evm::Mining;
use serde_json::{Value, json};

use super::{Network, NodeKind, Process};
use crate::cluster::run_blocking;
use crate::{Outcome, ensure, eventually};

/// The pool changes well before this.
const POOL_WITHIN: Duration = Duration::from_secs(30);

impl Network {
    pub async fn stop_mining(&self) -> Outcome<()> {
        self.set_mining(Mining::Manual, 0).await
    }

    /// With the original block time.
    pub async fn resume_mining(&self) -> Outcome<()> {
        let pace = self.terms.block_time;
        self.set_mining(Mining::Every(pace), pace.as_secs()).await
    }

    /// Also waits for a block that is being mined.
    pub async fn stop_mining_and_wait(&self) -> Outcome<()> {
        self.stop_mining().await?;
        self.mine(1).await
    }

    async fn set_mining(&self, mining: Mining, seconds: u64) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                let node = Arc::clone(node);
                run_blocking(move || node.set_mining(mining)).await
            }
            Process::Devchain(_) => {
                let params = json!([seconds]);
                self.chain.call("evm_setIntervalMining", params).await?;
                Ok(())
            }
        }
    }

    /// Mines blocks, so that a proof need not wait for depth.
    pub async fn mine(&self, blocks: u64) -> Outcome<()> {
        for _ in 0..blocks {
            self.chain.call("evm_mine", json!([])).await?;
        }
        Ok(())
    }

    /// Mines blocks without room for transactions: the chain advances while the pool waits. (With fees that are too
    /// low it would not wait: anvil drops transactions.)
    pub async fn mine_without_room(&self) -> Outcome<()> {
        self.block_gas_limit(1).await?;
        self.resume_mining().await
    }

    /// Restores the original gas limit of blocks.
    pub async fn mine_with_room(&self) -> Outcome<()> {
        self.block_gas_limit(self.terms.block_gas_limit).await
    }

    async fn block_gas_limit(&self, gas: u64) -> Outcome<()> {
        let params = json!([format!("{gas:#x}")]);
        let done = self.chain.call("evm_setBlockGasLimit", params).await?;
        ensure(
            done == true,
            format!("the gas limit of blocks was not set: {done}"),
        )
    }

    /// Removes one transaction from the pool.
    pub async fn drop_transaction(&self, hash: B256) -> Outcome<()> {
        let method = match self.node_kind {
            NodeKind::ANVIL | NodeKind::Devchain => "anvil_dropTransaction",
            NodeKind::HARDHAT => "hardhat_dropTransaction",
            NodeKind::GANACHE => return Err("ganache cannot drop one transaction".into()),
        };
        self.chain.call(method, json!([hash])).await?;
        let what = format!("{hash} is not in the pool");
        eventually(&what, POOL_WITHIN, || async {
            Ok((!self.knows_transaction(hash).await?).then_some(()))
        })
        .await
    }

    /// The hashes in the pool. (Only anvil and the dev chain, like the following functions except the last four.)
    pub async fn pool(&self) -> Outcome<Vec<B256>> {
        let content = self.chain.call("txpool_content", json!([])).await?;
        let mut hashes = Vec::new();
        for part in ["pending", "queued"] {
            for of_sender in content[part].as_object().into_iter().flatten() {
                for tx in of_sender.1.as_object().into_iter().flatten() {
                    hashes.push(tx.1["hash"].as_str().ok_or("no hash")?.parse()?);
                }
            }
        }
        Ok(hashes)
    }

    pub async fn clear_pool(&self) -> Outcome<()> {
        let method = "anvil_dropAllTransactions";
        self.chain.call(method, json!([])).await?;
        Ok(())
    }

    /// The base fee of the next block.
    pub async fn set_base_fee(&self, wei: u64) -> Outcome<()> {
        let params = json!([format!("{wei:#x}")]);
        let method = "anvil_setNextBlockBaseFeePerGas";
        self.chain.call(method, params).await?;
        Ok(())
    }

    /// Replaces the newest blocks by empty ones; their transactions are lost. Mining must be stopped meanwhile.
    pub async fn fork(&self, depth: u64) -> Outcome<()> {
        let params = match self.node_kind {
            NodeKind::Devchain => json!([depth, [], true]),
            NodeKind::Independent(_) => json!([depth, []]),
        };
        self.chain.call("anvil_reorg", params).await?;
        Ok(())
    }

    /// Whether a transaction is in the pool or in a block.
    pub async fn knows_transaction(&self, hash: B256) -> Outcome<bool> {
        Ok(!self.transaction(hash).await?.is_null())
    }

    pub async fn has_mined(&self, hash: B256) -> Outcome<bool> {
        Ok(self.transaction(hash).await?["blockNumber"].is_string())
    }

    async fn transaction(&self, hash: B256) -> Outcome<Value> {
        let call = self.chain.call("eth_getTransactionByHash", json!([hash]));
        call.await
    }

    pub async fn wait_until_known(&self, hashes: &[B256]) -> Outcome<()> {
        let params: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
        let what = format!("{} transactions are at the node", hashes.len());
        eventually(&what, POOL_WITHIN, || async {
            let asked = self.chain.call_many("eth_getTransactionByHash", &params);
            let missing = asked.await?.iter().any(Value::is_null);
            Ok((!missing).then_some(()))
        })
        .await
    }

    /// Sends signed bytes like a foreign program.
    pub async fn send_raw(&self, raw: &[u8]) -> Outcome<()> {
        let params = json!([alloy_primitives::hex::encode_prefixed(raw)]);
        self.chain.call("eth_sendRawTransaction", params).await?;
        Ok(())
    }
}
