//! The chain of a scenario: a real node of one of four makes, with blocks that can be held back.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use proof::cluster::aside;
use proof::{Chain, Outcome, Scratch, Server, eventually};
use rig::evm::{EvmNode, Kind, Mining};
use serde_json::{Value, json};

/// The pace of all chains.
const BLOCK_TIME: Duration = Duration::from_secs(1);

/// A transaction is in the pool, or out of it, well before this.
const POOL_WITHIN: Duration = Duration::from_secs(30);

/// Which make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Make {
    Anvil,
    Hardhat,
    Ganache,
    Devchain,
}

impl Make {
    pub(crate) const ALL: [Self; 4] = [Self::Anvil, Self::Hardhat, Self::Ganache, Self::Devchain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Anvil => "anvil",
            Self::Hardhat => "hardhat",
            Self::Ganache => "ganache",
            Self::Devchain => "devchain",
        }
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Self::Anvil => Some(Kind::Anvil),
            Self::Hardhat => Some(Kind::Hardhat),
            Self::Ganache => Some(Kind::Ganache),
            Self::Devchain => None,
        }
    }
}

/// A running chain. Ends with the value.
pub(crate) struct Net {
    make: Make,
    /// Asked directly, behind the back of every proxy.
    pub(crate) chain: Chain,
    process: Process,
}

enum Process {
    Node(Arc<EvmNode>),
    Devchain(Box<Server>),
}

impl Net {
    pub(crate) async fn start(make: Make, home: &Scratch) -> Outcome<Self> {
        let process = match make.kind() {
            Some(kind) => {
                let node = aside(move || EvmNode::every(kind, BLOCK_TIME)).await?;
                Process::Node(Arc::new(node))
            }
            None => {
                let folder = home.folder("chain")?;
                let server = Server::devchain(&folder, &["--block-time", "1s"]).await?;
                Process::Devchain(Box::new(server))
            }
        };
        let chain = match &process {
            Process::Node(node) => Chain::new(node.url().to_owned())?,
            Process::Devchain(server) => server.chain.clone(),
        };
        Ok(Self {
            make,
            chain,
            process,
        })
    }

    pub(crate) fn url(&self) -> &str {
        self.chain.url()
    }

    /// Makes no blocks by itself any more.
    pub(crate) async fn hold_blocks(&self) -> Outcome<()> {
        self.set_mining(Mining::Manual, 0).await
    }

    /// Makes blocks at its pace again.
    pub(crate) async fn make_blocks(&self) -> Outcome<()> {
        self.set_mining(Mining::Every(BLOCK_TIME), BLOCK_TIME.as_secs())
            .await
    }

    async fn set_mining(&self, mining: Mining, seconds: u64) -> Outcome<()> {
        match &self.process {
            Process::Node(node) => {
                let node = Arc::clone(node);
                aside(move || node.set_mining(mining)).await
            }
            Process::Devchain(server) => {
                let params = json!([seconds]);
                server.chain.call("evm_setIntervalMining", params).await?;
                Ok(())
            }
        }
    }

    /// Makes blocks now, so that nobody waits for depth.
    pub(crate) async fn mine(&self, blocks: u64) -> Outcome<()> {
        for _ in 0..blocks {
            self.chain.call("evm_mine", json!([])).await?;
        }
        Ok(())
    }

    /// Ends in order and starts again with its blocks and without its pool.
    pub(crate) async fn restart(&self) -> Outcome<()> {
        match &self.process {
            Process::Node(node) => {
                let node = Arc::clone(node);
                aside(move || node.restart()).await
            }
            Process::Devchain(_) => Err("the dev chain's restart is another proof's".into()),
        }
    }

    /// Takes one transaction out of the pool.
    pub(crate) async fn drop_transaction(&self, hash: B256) -> Outcome<()> {
        let method = match self.make {
            Make::Anvil | Make::Devchain => "anvil_dropTransaction",
            Make::Hardhat => "hardhat_dropTransaction",
            Make::Ganache => return Err("ganache cannot drop one transaction".into()),
        };
        self.chain.call(method, json!([hash])).await?;
        let what = format!("{hash} is out of the pool");
        eventually(&what, POOL_WITHIN, || async {
            Ok((!self.knows(hash).await?).then_some(()))
        })
        .await
    }

    /// Whether the node knows a transaction, in a block or in its pool.
    pub(crate) async fn knows(&self, hash: B256) -> Outcome<bool> {
        Ok(!self.transaction(hash).await?.is_null())
    }

    /// Whether it stands in a block.
    pub(crate) async fn has_mined(&self, hash: B256) -> Outcome<bool> {
        Ok(self.transaction(hash).await?["blockNumber"].is_string())
    }

    async fn transaction(&self, hash: B256) -> Outcome<Value> {
        let call = self.chain.call("eth_getTransactionByHash", json!([hash]));
        call.await
    }

    /// Until the node knows all of these.
    pub(crate) async fn until_known(&self, hashes: &[B256]) -> Outcome<()> {
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
    pub(crate) async fn send_raw(&self, raw: &str) -> Outcome<()> {
        self.chain
            .call("eth_sendRawTransaction", json!([raw]))
            .await?;
        Ok(())
    }
}
