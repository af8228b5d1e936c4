//! A chain of any make, started anew: the three independent nodes of the rig, or the dev chain.

use std::time::Duration;

use alloy_primitives::Address;
use rig::evm::{EvmNode, Kind, Mining, Options, account};
use serde_json::json;

use crate::cluster::aside;
use crate::{Chain, Outcome, Scratch, Server, demand, eventually};

/// Who made the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// A node that others wrote.
    Independent(Kind),
    /// Our own.
    Devchain,
}

impl Make {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Independent(Kind::Anvil),
        Self::Independent(Kind::Hardhat),
        Self::Independent(Kind::Ganache),
        Self::Devchain,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent(kind) => kind.name(),
            Self::Devchain => "devchain",
        }
    }

    /// Whether its `pending` nonce tells what its pool holds.
    pub fn counts_pending(self) -> bool {
        match self {
            Self::Independent(kind) => kind.counts_pending(),
            Self::Devchain => true,
        }
    }

    /// The first nonce of an account on a new chain.
    pub fn first_nonce(self) -> u64 {
        u64::from(self == Self::Independent(Kind::Ganache))
    }
}

/// How a chain starts.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time between blocks.
    pub block_time: Duration,
    /// The gas limit of a block. (The dev chain has its own.)
    pub block_gas_limit: u64,
    /// How many accounts of the test mnemonic have funds.
    pub accounts: u32,
}

/// A running chain. Ends with the value.
pub struct Network {
    /// Who made it.
    pub make: Make,
    /// Its JSON-RPC.
    pub chain: Chain,
    terms: Terms,
    _process: Process,
}

/// What ends with the network.
enum Process {
    Independent { _node: EvmNode },
    Devchain { _server: Server, _home: Scratch },
}

/// The address of an account of the test mnemonic, as the API writes it.
pub fn signer(index: u32) -> String {
    checksummed(account(index).0)
}

/// As the API writes addresses.
fn checksummed(address: Address) -> String {
    address.to_checksum(None)
}

impl Network {
    /// A new chain with blocks as time passes.
    pub async fn start(make: Make, terms: Terms) -> Outcome<Self> {
        let (chain, process) = match make {
            Make::Independent(kind) => {
                let options = Options {
                    mining: Mining::Every(terms.block_time),
                    block_gas_limit: terms.block_gas_limit,
                    accounts: terms.accounts,
                    ..Options::default()
                };
                let node = aside(move || EvmNode::start(kind, options)).await?;
                let chain = Chain::new(node.url().to_owned())?;
                (chain, Process::Independent { _node: node })
            }
            Make::Devchain => {
                let home = Scratch::new()?;
                let block_time = format!("{}ms", terms.block_time.as_millis());
                let accounts = terms.accounts.to_string();
                let args = ["--block-time", &block_time, "--accounts", &accounts];
                let server = Server::devchain(home.path(), &args).await?;
                let chain = server.chain.clone();
                let process = Process::Devchain {
                    _server: server,
                    _home: home,
                };
                (chain, process)
            }
        };
        Ok(Self {
            make,
            chain,
            terms,
            _process: process,
        })
    }

    /// Waits until so many more blocks have come; says how many came.
    pub async fn pass(&self, blocks: u64) -> Outcome<u64> {
        let from = self.chain.height().await?;
        let within = Duration::from_secs(30 + 3 * blocks);
        let what = format!("{blocks} more blocks");
        let height = eventually(&what, within, || async {
            let height = self.chain.height().await?;
            Ok((height >= from + blocks).then_some(height))
        });
        Ok(height.await? - from)
    }

    /// Makes no blocks until further notice. (Anvil, and the dev chain: it knows anvil's words.)
    pub async fn stop_blocks(&self) -> Outcome<()> {
        self.chain.call("evm_setIntervalMining", json!([0])).await?;
        Ok(())
    }

    /// Makes a block a second again, in which there is no room for anything: a chain that moves while what
    /// was sent to it waits. (With fees that are too low it would not wait: anvil drops it.)
    pub async fn blocks_without_room(&self) -> Outcome<()> {
        self.block_gas_limit(1).await?;
        self.chain.call("evm_setIntervalMining", json!([1])).await?;
        Ok(())
    }

    /// Takes as much into a block as at the start.
    pub async fn blocks_with_room(&self) -> Outcome<()> {
        self.block_gas_limit(self.terms.block_gas_limit).await
    }

    async fn block_gas_limit(&self, gas: u64) -> Outcome<()> {
        let gas = format!("{gas:#x}");
        let done = self
            .chain
            .call("evm_setBlockGasLimit", json!([gas]))
            .await?;
        demand(
            done == true,
            format!("the gas limit of blocks was not set: {done}"),
        )
    }
}
