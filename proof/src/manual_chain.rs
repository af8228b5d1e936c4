//! A chain of any kind (anvil, hardhat, ganache or the dev chain) with one interface and the same accounts. Blocks
//! are mined only on command.
//!
//! Calls block for a moment, like the rig's; no load runs meanwhile.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex};
use rig::evm::{CHAIN_ID, EvmNode, Kind, Rpc};
use serde_json::{Value, json};

use crate::cluster::run_blocking;
use crate::network::NodeKind;
use crate::{Chain, Outcome, Scratch, Server, ensure};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u64,
    pub hash: B256,
    /// The parent's hash.
    pub parent: B256,
}

impl Head {
    /// From the JSON of a header, whose height is a number or a quantity.
    pub fn read(header: &Value) -> Outcome<Self> {
        let number = match header["number"].as_u64() {
            Some(number) => number,
            None => u64::try_from(quantity(&header["number"])?)?,
        };
        Ok(Self {
            number,
            hash: hash_of(&header["hash"])?,
            parent: hash_of(&header["parentHash"])?,
        })
    }
}

pub fn hash_of(value: &Value) -> Outcome<B256> {
    let text = value.as_str().ok_or_else(|| format!("no hash: {value}"))?;
    Ok(text.parse()?)
}

/// A node with its own chain. Everything ends with the value.
pub struct ManualChain {
    node_kind: NodeKind,
    rpc: Rpc,
    node: Node,
}

enum Node {
    Rig(EvmNode),
    Dev {
        _server: Server,
        _home: Scratch, // after the server that works in it
    },
}

impl ManualChain {
    /// A new chain.
    pub async fn start(node_kind: NodeKind) -> Outcome<Self> {
        let (rpc, node) = match node_kind {
            NodeKind::Independent(kind) => {
                let node = run_blocking(move || EvmNode::manual(kind)).await?;
                (node.rpc().clone(), Node::Rig(node))
            }
            NodeKind::Devchain => {
                let home = Scratch::new()?;
                let server = Server::devchain(&home.folder("chain")?, &[]).await?;
                let rpc = Rpc::at(server.chain.url());
                rpc.try_call("evm_setAutomine", json!([false]))?;
                let node = Node::Dev {
                    _server: server,
                    _home: home,
                };
                (rpc, node)
            }
        };
        Ok(Self {
            node_kind,
            rpc,
            node,
        })
    }

    pub fn node_kind(&self) -> NodeKind {
        self.node_kind
    }

    pub fn sets_base_fee(&self) -> bool {
        self.node_kind != NodeKind::GANACHE
    }

    /// Whether a single transaction can be removed from the pool.
    pub fn drops_transactions(&self) -> bool {
        match self.node_kind {
            NodeKind::Independent(kind) => kind.drops_transactions(),
            NodeKind::Devchain => true,
        }
    }

    /// The JSON-RPC URL.
    pub fn url(&self) -> &str {
        self.rpc.url()
    }

    /// The WebSocket URL, if it has one.
    pub fn ws_url(&self) -> Option<String> {
        match &self.node {
            Node::Rig(node) => Some(node.ws_url()),
            Node::Dev { .. } => None,
        }
    }

    /// An asynchronous client for the same chain.
    pub fn chain(&self) -> Outcome<Chain> {
        Chain::new(self.rpc.url().to_owned())
    }

    pub fn height(&self) -> Outcome<u64> {
        Ok(u64::try_from(quantity(
            &self.rpc.try_call("eth_blockNumber", json!([]))?,
        )?)?)
    }

    /// A block of the current chain.
    pub fn head(&self, number: u64) -> Outcome<Head> {
        let params = json!([format!("{number:#x}"), false]);
        Head::read(&self.rpc.try_call("eth_getBlockByNumber", params)?)
    }

    /// Blocks of the current chain.
    pub fn heads(&self, numbers: std::ops::RangeInclusive<u64>) -> Outcome<Vec<Head>> {
        numbers.map(|number| self.head(number)).collect()
    }

    /// Mines blocks, the first with the pending transactions.
    pub fn mine(&self, blocks: u64) -> Outcome<()> {
        for _ in 0..blocks {
            self.rpc.try_call("evm_mine", json!([]))?;
        }
        Ok(())
    }

    /// Takes a snapshot where a later fork needs one.
    pub fn snapshot(&self) {
        match &self.node {
            Node::Rig(node) if node.kind() != Kind::Anvil => {
                node.snapshot();
            }
            Node::Rig(_) | Node::Dev { .. } => {}
        }
    }

    /// Replaces the newest blocks, with these transactions in the lowest new block. The old blocks' transactions
    /// are lost.
    pub fn fork(&self, depth: u64, transactions: &[Bytes]) -> Outcome<()> {
        let lowest: Vec<(Bytes, u64)> = transactions.iter().map(|raw| (raw.clone(), 0)).collect();
        let first = self.height()? + 1 - depth;
        let before = self.head(first)?;
        match &self.node {
            Node::Rig(node) => node.reorg_with(depth, &lowest),
            Node::Dev { .. } => {
                let pair = |(raw, block): &(Bytes, u64)| json!([hex::encode_prefixed(raw), block]);
                let pairs: Vec<Value> = lowest.iter().map(pair).collect();
                self.rpc
                    .try_call("anvil_reorg", json!([depth, pairs, true]))?;
            }
        }
        // Empty blocks of the same second can be identical: then there is no fork.
        ensure(
            self.head(first)? != before,
            "the fork has the same blocks; give it a transaction of its own",
        )
    }

    /// A transaction in the pool or in a block.
    pub fn transaction(&self, hash: B256) -> Outcome<Option<Value>> {
        let found = self
            .rpc
            .try_call("eth_getTransactionByHash", json!([hash]))?;
        Ok((!found.is_null()).then_some(found))
    }

    /// The block of a mined transaction.
    pub fn mined_in(&self, hash: B256) -> Outcome<Option<(u64, B256)>> {
        let receipt = self
            .rpc
            .try_call("eth_getTransactionReceipt", json!([hash]))?;
        if receipt.is_null() {
            return Ok(None);
        }
        let number = u64::try_from(quantity(&receipt["blockNumber"])?)?;
        Ok(Some((number, hash_of(&receipt["blockHash"])?)))
    }

    /// The signed bytes of a known transaction: no kind returns them, but all return the fields.
    pub fn raw(&self, hash: B256) -> Outcome<Bytes> {
        let tx = self.transaction(hash)?.ok_or("the node does not know it")?;
        let to: Address = tx["to"].as_str().ok_or("no recipient")?.parse()?;
        let signed = TxEip1559 {
            chain_id: CHAIN_ID,
            nonce: u64::try_from(quantity(&tx["nonce"])?)?,
            gas_limit: u64::try_from(quantity(&tx["gas"])?)?,
            max_fee_per_gas: u128::try_from(quantity(&tx["maxFeePerGas"])?)?,
            max_priority_fee_per_gas: u128::try_from(quantity(&tx["maxPriorityFeePerGas"])?)?,
            to: TxKind::Call(to),
            value: quantity(&tx["value"])?,
            ..TxEip1559::default()
        };
        let is_odd = quantity(&tx["v"])? == U256::from(1);
        let signature = Signature::new(quantity(&tx["r"])?, quantity(&tx["s"])?, is_odd);
        let envelope: TxEnvelope = signed.into_signed(signature).into();
        ensure(
            *envelope.tx_hash() == hash,
            format!("{tx} does not give {hash} when it is put together again"),
        )?;
        Ok(envelope.encoded_2718().into())
    }

    pub fn send_raw(&self, raw: &[u8]) -> Outcome<()> {
        let params = json!([hex::encode_prefixed(raw)]);
        self.rpc.try_call("eth_sendRawTransaction", params)?;
        Ok(())
    }

    /// Removes a transaction from the pool. Only where [`Self::drops_transactions`].
    pub fn drop_transaction(&self, hash: B256) -> Outcome<()> {
        match &self.node {
            Node::Rig(node) => node.drop_transaction(hash),
            Node::Dev { .. } => {
                self.rpc.try_call("anvil_dropTransaction", json!([hash]))?;
            }
        }
        Ok(())
    }

    /// The base fee of the next block. Only where [`Self::sets_base_fee`].
    pub fn set_base_fee(&self, wei: u64) -> Outcome<()> {
        let method = match self.node_kind {
            NodeKind::HARDHAT => "hardhat_setNextBlockBaseFeePerGas",
            NodeKind::Independent(Kind::Anvil | Kind::Ganache) | NodeKind::Devchain => {
                "anvil_setNextBlockBaseFeePerGas"
            }
        };
        self.rpc.try_call(method, json!([format!("{wei:#x}")]))?;
        Ok(())
    }

    pub fn set_balance(&self, account: Address, wei: U256) -> Outcome<()> {
        match &self.node {
            Node::Rig(node) => node.set_balance(account, wei),
            Node::Dev { .. } => {
                self.rpc
                    .try_call("anvil_setBalance", json!([account, wei]))?;
            }
        }
        Ok(())
    }

    /// The nonce in the latest block.
    pub fn nonce(&self, account: Address) -> Outcome<u64> {
        let params = json!([account, "latest"]);
        let count = self.rpc.try_call("eth_getTransactionCount", params)?;
        Ok(u64::try_from(quantity(&count)?)?)
    }
}

fn quantity(value: &Value) -> Outcome<U256> {
    let text = value
        .as_str()
        .ok_or_else(|| format!("no number: {value}"))?;
    Ok(text.parse()?)
}
