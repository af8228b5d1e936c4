//! A new chain of any kind that mines periodically: one of the rig's nodes, or the dev chain. (`manual_chain` mines
//! only on command.)

mod control;
mod node_kind;

pub use node_kind::{NodeKind, parse_node_kinds};

use std::sync::Arc;
use std::time::Duration;

use rig::evm::{EvmNode, Mining, Options, account};
use rig::ports::{Port, free_port};
use tokio::sync::Mutex;

use crate::cluster::run_blocking;
use crate::{Chain, Outcome, Scratch, Server, ensure, eventually};

/// The settings of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The block time, in whole seconds.
    pub block_time: Duration,
    /// The gas limit of a block. (The dev chain has its own.)
    pub block_gas_limit: u64,
    /// The number of funded accounts of the test mnemonic.
    pub accounts: u32,
    /// Anvil: the number of blocks whose state is kept; see the rig's options.
    pub states: Option<u32>,
    /// The rules of an older chain; see the rig's options. (The dev chain has its own.)
    pub hardfork: Option<&'static str>,
}

impl Default for Terms {
    fn default() -> Self {
        let options = Options::default();
        Self {
            block_time: Duration::from_secs(1),
            block_gas_limit: options.block_gas_limit,
            accounts: options.accounts,
            states: None,
            hardfork: None,
        }
    }
}

pub struct Network {
    pub node_kind: NodeKind,
    /// A direct JSON-RPC client, without a proxy.
    pub chain: Chain,
    terms: Terms,
    process: Process,
}

enum Process {
    Independent(Arc<EvmNode>),
    Devchain(Box<Devchain>),
}

/// The dev chain; it is killed and restarted on the same port and data.
struct Devchain {
    server: Mutex<Option<Server>>,
    port: Port,
    home: Scratch, // after the server that works in it
}

/// The checksummed address of an account of the test mnemonic.
pub fn signer(index: u32) -> String {
    account(index).0.to_checksum(None)
}

impl Network {
    pub async fn start(node_kind: NodeKind, terms: Terms) -> Outcome<Self> {
        let (url, process) = match node_kind {
            NodeKind::Independent(kind) => {
                let options = Options {
                    mining: Mining::Every(terms.block_time),
                    block_gas_limit: terms.block_gas_limit,
                    accounts: terms.accounts,
                    states: terms.states,
                    hardfork: terms.hardfork,
                    ..Options::default()
                };
                let node = run_blocking(move || EvmNode::start(kind, options)).await?;
                (node.url().to_owned(), Process::Independent(Arc::new(node)))
            }
            NodeKind::Devchain => {
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
            node_kind,
            chain: Chain::new(url)?,
            terms,
            process,
        })
    }

    /// The JSON-RPC URL.
    pub fn url(&self) -> &str {
        self.chain.url()
    }

    /// Stops it, cleanly where blocks are written to disk only then; the pool is lost.
    pub async fn stop(&self) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                ensure(
                    node.kind().keeps_blocks(),
                    "it keeps no blocks over a restart",
                )?;
                if self.node_kind == NodeKind::ANVIL {
                    // It writes accounts and blocks one after the other: a block mined in between would have had
                    // its effect and be missing. The pool is lost anyway.
                    self.clear_pool().await?;
                    self.stop_mining_and_wait().await?;
                }
                let node = Arc::clone(node);
                run_blocking(move || node.stop()).await
            }
            Process::Devchain(devchain) => {
                let server = devchain.server.lock().await.take();
                server.ok_or("the chain is stopped")?.kill_nine().await
            }
        }
    }

    /// Restarts it with its blocks and the original block time.
    pub async fn start_again(&self) -> Outcome<()> {
        match &self.process {
            Process::Independent(node) => {
                let node = Arc::clone(node);
                run_blocking(move || node.start_again()).await
            }
            Process::Devchain(devchain) => devchain.start(&self.terms).await,
        }
    }

    /// Restarts it: the blocks survive, the pool is lost.
    pub async fn restart(&self) -> Outcome<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// The log, where it is not on the proof's own output.
    pub fn log(&self) -> Option<String> {
        match &self.process {
            Process::Independent(node) => Some(node.log()),
            Process::Devchain(_) => None,
        }
    }

    /// Waits for `blocks` more blocks; returns the actual number.
    pub async fn wait_for_blocks(&self, blocks: u64) -> Outcome<u64> {
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
        ensure(server.is_none(), "the chain runs")?;
        let block_time = format!("{}ms", terms.block_time.as_millis());
        let accounts = terms.accounts.to_string();
        let args = ["--block-time", &block_time, "--accounts", &accounts];
        let port = self.port.number();
        *server = Some(Server::devchain_on(port, self.home.path(), &args).await?);
        Ok(())
    }
}
