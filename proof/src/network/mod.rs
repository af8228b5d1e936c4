//! A chain of any make, started anew, that makes blocks as time passes: the three independent nodes of
//! the rig, or the dev chain. (`stage` has one whose blocks come only when they are asked for.)

mod control;
mod make;

pub use make::{Make, makes};

use std::sync::Arc;
use std::time::Duration;

use rig::evm::{EvmNode, Mining, Options, account};
use rig::ports::{Port, free_port};
use tokio::sync::Mutex;

use crate::cluster::aside;
use crate::{Chain, Outcome, Scratch, Server, demand, eventually};

/// How a chain starts.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time between blocks, in whole seconds.
    pub block_time: Duration,
    /// The gas limit of a block. (The dev chain has its own.)
    pub block_gas_limit: u64,
    /// How many accounts of the test mnemonic have funds.
    pub accounts: u32,
    /// Anvil: of how many blocks it remembers the state; see the rig's options.
    pub states: Option<u32>,
}

impl Default for Terms {
    fn default() -> Self {
        let options = Options::default();
        Self {
            block_time: Duration::from_secs(1),
            block_gas_limit: options.block_gas_limit,
            accounts: options.accounts,
            states: None,
        }
    }
}

/// A running chain. Ends with the value.
pub struct Network {
    /// Who made it.
    pub make: Make,
    /// Its JSON-RPC, behind the back of every proxy.
    pub chain: Chain,
    terms: Terms,
    process: Process,
}

enum Process {
    Independent(Arc<EvmNode>),
    Devchain(Box<Devchain>),
}

/// Ours, which is killed and started again on the same port and data.
struct Devchain {
    server: Mutex<Option<Server>>,
    port: Port,
    home: Scratch, // after the server that works in it
}

/// The address of an account of the test mnemonic, as the API writes it.
pub fn signer(index: u32) -> String {
    account(index).0.to_checksum(None)
}

impl Network {
    /// A new chain with blocks as time passes.
    pub async fn start(make: Make, terms: Terms) -> Outcome<Self> {
        let (url, process) = match make {
            Make::Independent(kind) => {
                let options = Options {
                    mining: Mining::Every(terms.block_time),
                    block_gas_limit: terms.block_gas_limit,
                    accounts: terms.accounts,
                    states: terms.states,
                    ..Options::default()
                };
                let node = aside(move || EvmNode::start(kind, options)).await?;
                (node.url().to_owned(), Process::Independent(Arc::new(node)))
            }
            Make::Devchain => {
                let devchain = Devchain {
                    server: Mutex::default(),
                    port: free_port(),
                    home: Scratch::new()?,
                };
                devchain.start(&terms).await?;
                let url = format!("http://{}", devchain.port.address());
                (url, Process::Devchain(Box::new(devchain)))
            }
        };
        Ok(Self {
            make,
            chain: Chain::new(url)?,
            terms,
            process,
        })
    }

    /// Where it takes JSON-RPC.
    pub fn url(&self) -> &str {
        self.chain.url()
    }

    /// Ends it, in order where it writes its blocks to disk only then; its pool is lost.
    pub async fn stop(&self) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                demand(
                    node.kind().keeps_blocks(),
                    "it keeps no blocks over a restart",
                )?;
                if self.make == Make::ANVIL {
                    // It writes accounts and blocks one after the other: a block that comes in
                    // between would have had its effect and never have been. The pool is lost anyway.
                    self.forget_pool().await?;
                    self.pause_blocks().await?;
                }
                let node = Arc::clone(node);
                aside(move || node.stop()).await
            }
            Process::Devchain(devchain) => {
                let server = devchain.server.lock().await.take();
                server.ok_or("the chain is stopped")?.kill_nine().await
            }
        }
    }

    /// Starts it again with its blocks, at its first pace.
    pub async fn start_again(&self) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                let node = Arc::clone(node);
                aside(move || node.start_again()).await
            }
            Process::Devchain(devchain) => devchain.start(&self.terms).await,
        }
    }

    /// Ends and starts it: it has its blocks and no pool.
    pub async fn restart(&self) -> Outcome<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// What it has printed, where that is not on our own output.
    pub fn log(&self) -> Option<String> {
        match &self.process {
            Process::Independent(node) => Some(node.log()),
            Process::Devchain(_) => None,
        }
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
}

impl Devchain {
    async fn start(&self, terms: &Terms) -> Outcome<()> {
        let mut server = self.server.lock().await;
        demand(server.is_none(), "the chain runs")?;
        let block_time = format!("{}ms", terms.block_time.as_millis());
        let accounts = terms.accounts.to_string();
        let args = ["--block-time", &block_time, "--accounts", &accounts];
        let port = self.port.number();
        *server = Some(Server::devchain_on(port, self.home.path(), &args).await?);
        Ok(())
    }
}
