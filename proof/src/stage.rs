//! A chain of any make to prove things on: anvil, hardhat, ganache or the dev chain, all under the same
//! names and with the same accounts. Blocks come only when they are asked for.
//!
//! Calls block for a moment, as the rig's do; nothing else of a proof is in a hurry meanwhile.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex};
use rig::evm::{CHAIN_ID, EvmNode, Kind, Rpc};
use serde_json::{Value, json};

use crate::cluster::aside;
use crate::network::Make;
use crate::{Chain, Outcome, Scratch, Server, demand};

/// A block without its transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The block below it.
    pub parent: B256,
}

impl Head {
    /// From the JSON of a header, in which heights are numbers or quantities.
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

/// A hash in JSON.
pub fn hash_of(value: &Value) -> Outcome<B256> {
    let text = value.as_str().ok_or_else(|| format!("no hash: {value}"))?;
    Ok(text.parse()?)
}

/// A node of some make with a chain of its own. Everything of it ends with the value.
pub struct Stage {
    make: Make,
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

impl Stage {
    /// A new chain that makes blocks only when it is told to.
    pub async fn start(make: Make) -> Outcome<Self> {
        let (rpc, node) = match make {
            Make::Independent(kind) => {
                let node = aside(move || EvmNode::manual(kind)).await?;
                (node.rpc().clone(), Node::Rig(node))
            }
            Make::Devchain => {
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
        Ok(Self { make, rpc, node })
    }

    /// Which make.
    pub fn make(&self) -> Make {
        self.make
    }

    /// Whether the next block's base fee can be set.
    pub fn sets_base_fee(&self) -> bool {
        self.make != Make::GANACHE
    }

    /// Whether one transaction can be taken out of its pool.
    pub fn drops_transactions(&self) -> bool {
        match self.make {
            Make::Independent(kind) => kind.drops_transactions(),
            Make::Devchain => true,
        }
    }

    /// Where it takes JSON-RPC.
    pub fn url(&self) -> &str {
        self.rpc.url()
    }

    /// Where it announces heads, if it does.
    pub fn ws_url(&self) -> Option<String> {
        match &self.node {
            Node::Rig(node) => Some(node.ws_url()),
            Node::Dev { .. } => None,
        }
    }

    /// The same chain for what asks without blocking.
    pub fn chain(&self) -> Outcome<Chain> {
        Chain::new(self.rpc.url().to_owned())
    }

    /// The height of its newest block.
    pub fn height(&self) -> Outcome<u64> {
        Ok(u64::try_from(quantity(
            &self.rpc.try_call("eth_blockNumber", json!([]))?,
        )?)?)
    }

    /// A block of the chain as it is now.
    pub fn head(&self, number: u64) -> Outcome<Head> {
        let params = json!([format!("{number:#x}"), false]);
        Head::read(&self.rpc.try_call("eth_getBlockByNumber", params)?)
    }

    /// Blocks of the chain as it is now.
    pub fn heads(&self, numbers: std::ops::RangeInclusive<u64>) -> Outcome<Vec<Head>> {
        numbers.map(|number| self.head(number)).collect()
    }

    /// Makes blocks now, the first with what is pending.
    pub fn mine(&self, blocks: u64) -> Outcome<()> {
        for _ in 0..blocks {
            self.rpc.try_call("evm_mine", json!([]))?;
        }
        Ok(())
    }

    /// Remembers this height, where a fork from it needs that.
    pub fn snapshot(&self) {
        match &self.node {
            Node::Rig(node) if node.kind() != Kind::Anvil => {
                node.snapshot();
            }
            Node::Rig(_) | Node::Dev { .. } => {}
        }
    }

    /// Takes the newest blocks back and puts as many others in their place, with these transactions in
    /// the lowest of them. What was in the old ones is lost.
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
        // Empty blocks of the same second can be the very same again: no fork at all.
        demand(
            self.head(first)? != before,
            "the fork has the same blocks; give it a transaction of its own",
        )
    }

    /// What it knows of a transaction, pending or mined.
    pub fn transaction(&self, hash: B256) -> Outcome<Option<Value>> {
        let found = self
            .rpc
            .try_call("eth_getTransactionByHash", json!([hash]))?;
        Ok((!found.is_null()).then_some(found))
    }

    /// The block of a transaction, once it is mined.
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

    /// The signed bytes of a transaction that it knows: no make gives them, but all give the parts.
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
        demand(
            *envelope.tx_hash() == hash,
            format!("{tx} does not give {hash} when it is put together again"),
        )?;
        Ok(envelope.encoded_2718().into())
    }

    /// Hands signed bytes over.
    pub fn send_raw(&self, raw: &[u8]) -> Outcome<()> {
        let params = json!([hex::encode_prefixed(raw)]);
        self.rpc.try_call("eth_sendRawTransaction", params)?;
        Ok(())
    }

    /// Takes a transaction out of the pool. Only where [`Self::drops_transactions`].
    pub fn drop_transaction(&self, hash: B256) -> Outcome<()> {
        match &self.node {
            Node::Rig(node) => node.drop_transaction(hash),
            Node::Dev { .. } => {
                self.rpc.try_call("anvil_dropTransaction", json!([hash]))?;
            }
        }
        Ok(())
    }

    /// What the next block asks for per gas. Only where [`Self::sets_base_fee`].
    pub fn set_base_fee(&self, wei: u64) -> Outcome<()> {
        let method = match self.make {
            Make::HARDHAT => "hardhat_setNextBlockBaseFeePerGas",
            Make::Independent(Kind::Anvil | Kind::Ganache) | Make::Devchain => {
                "anvil_setNextBlockBaseFeePerGas"
            }
        };
        self.rpc.try_call(method, json!([format!("{wei:#x}")]))?;
        Ok(())
    }

    /// Gives or takes money.
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

    /// The account's nonce in blocks.
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
