//! What can be done to a chain while it runs.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use rig::evm::Mining;
use serde_json::{Value, json};

use super::{Make, Network, Process};
use crate::cluster::aside;
use crate::{Outcome, demand, eventually};

/// A transaction is in the pool, or out of it, well before this.
const POOL_WITHIN: Duration = Duration::from_secs(30);

impl Network {
    /// Makes no blocks by itself any more.
    pub async fn hold_blocks(&self) -> Outcome<()> {
        self.set_mining(Mining::Manual, 0).await
    }

    /// Makes blocks at its first pace again.
    pub async fn make_blocks(&self) -> Outcome<()> {
        let pace = self.terms.block_time;
        self.set_mining(Mining::Every(pace), pace.as_secs()).await
    }

    /// The same, and none is being made any more either: one made on demand waits for its turn.
    pub async fn pause_blocks(&self) -> Outcome<()> {
        self.hold_blocks().await?;
        self.mine(1).await
    }

    async fn set_mining(&self, mining: Mining, seconds: u64) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                let node = Arc::clone(node);
                aside(move || node.set_mining(mining)).await
            }
            Process::Devchain(_) => {
                let params = json!([seconds]);
                self.chain.call("evm_setIntervalMining", params).await?;
                Ok(())
            }
        }
    }

    /// Makes blocks now, so that nobody waits for depth.
    pub async fn mine(&self, blocks: u64) -> Outcome<()> {
        for _ in 0..blocks {
            self.chain.call("evm_mine", json!([])).await?;
        }
        Ok(())
    }

    /// Makes blocks again, in which there is no room for anything: a chain that moves while what was sent
    /// to it waits. (With fees that are too low it would not wait: anvil drops it.)
    pub async fn blocks_without_room(&self) -> Outcome<()> {
        self.block_gas_limit(1).await?;
        self.make_blocks().await
    }

    /// Takes as much into a block as at the start.
    pub async fn blocks_with_room(&self) -> Outcome<()> {
        self.block_gas_limit(self.terms.block_gas_limit).await
    }

    async fn block_gas_limit(&self, gas: u64) -> Outcome<()> {
        let params = json!([format!("{gas:#x}")]);
        let done = self.chain.call("evm_setBlockGasLimit", params).await?;
        demand(
            done == true,
            format!("the gas limit of blocks was not set: {done}"),
        )
    }

    /// Takes one transaction out of the pool.
    pub async fn drop_transaction(&self, hash: B256) -> Outcome<()> {
        let method = match self.make {
            Make::ANVIL | Make::Devchain => "anvil_dropTransaction",
            Make::HARDHAT => "hardhat_dropTransaction",
            Make::GANACHE => return Err("ganache cannot drop one transaction".into()),
        };
        self.chain.call(method, json!([hash])).await?;
        let what = format!("{hash} is out of the pool");
        eventually(&what, POOL_WITHIN, || async {
            Ok((!self.knows(hash).await?).then_some(()))
        })
        .await
    }

    /// The hashes in the pool. (Anvil and the dev chain, like all that follows but the last four.)
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

    /// Takes all transactions out of the pool.
    pub async fn forget_pool(&self) -> Outcome<()> {
        let method = "anvil_dropAllTransactions";
        self.chain.call(method, json!([])).await?;
        Ok(())
    }

    /// What the next block asks for per gas.
    pub async fn set_base_fee(&self, wei: u64) -> Outcome<()> {
        let params = json!([format!("{wei:#x}")]);
        let method = "anvil_setNextBlockBaseFeePerGas";
        self.chain.call(method, params).await?;
        Ok(())
    }

    /// Takes the newest blocks back and puts as many empty ones in their place. What was in the old ones
    /// is lost. No block must come by itself meanwhile.
    pub async fn fork(&self, depth: u64) -> Outcome<()> {
        let params = match self.make {
            Make::Devchain => json!([depth, [], true]),
            Make::Independent(_) => json!([depth, []]),
        };
        self.chain.call("anvil_reorg", params).await?;
        Ok(())
    }

    /// Whether the node knows a transaction, in a block or in its pool.
    pub async fn knows(&self, hash: B256) -> Outcome<bool> {
        Ok(!self.transaction(hash).await?.is_null())
    }

    /// Whether it stands in a block.
    pub async fn has_mined(&self, hash: B256) -> Outcome<bool> {
        Ok(self.transaction(hash).await?["blockNumber"].is_string())
    }

    async fn transaction(&self, hash: B256) -> Outcome<Value> {
        let call = self.chain.call("eth_getTransactionByHash", json!([hash]));
        call.await
    }

    /// Until the node knows all of these.
    pub async fn until_known(&self, hashes: &[B256]) -> Outcome<()> {
        let params: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
        let what = format!("{} transactions are at the node", hashes.len());
        eventually(&what, POOL_WITHIN, || async {
            let asked = self.chain.call_many("eth_getTransactionByHash", &params);
            let missing = asked.await?.iter().any(Value::is_null);
            Ok((!missing).then_some(()))
        })
        .await
    }

    /// Hands signed bytes over, as somebody else would.
    pub async fn send_raw(&self, raw: &[u8]) -> Outcome<()> {
        let params = json!([alloy_primitives::hex::encode_prefixed(raw)]);
        self.chain.call("eth_sendRawTransaction", params).await?;
        Ok(())
    }
}
