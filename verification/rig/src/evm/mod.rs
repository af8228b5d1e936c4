//! Real EVM nodes of three independent makes: anvil, hardhat's EDR, and ganache.
//!
//! They differ where it matters: in what their pools take and refuse, in which words they refuse,
//! in which methods they lack. What they have in common is here under one name for each thing;
//! `control` knows what each calls it.

mod accounts;
mod block;
mod control;
mod forks;
mod launch;
mod rpc;

pub use accounts::{MNEMONIC, account};
pub use block::{Block, BlockTx};
pub use forks::Snapshot;
pub use rpc::{Rpc, RpcError};

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::json;

use crate::home::{Home, signal};
use crate::ports::{Port, free_port};

/// The chain of every node.
pub const CHAIN_ID: u64 = 31_337;

/// They answer well before this, also on a busy machine: two of them are JavaScript.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How much of the log a panic shows.
const LOG_TAIL_LINES: usize = 30;

/// Which make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Foundry's.
    Anvil,
    /// Hardhat 2 with its EDR.
    Hardhat,
    /// Truffle's, no longer developed: a node of yesterday's manners.
    Ganache,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Anvil, Self::Hardhat, Self::Ganache];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anvil => "anvil",
            Self::Hardhat => "hardhat",
            Self::Ganache => "ganache",
        }
    }

    /// Whether blocks are still there after [`EvmNode::restart`]; its pool is empty on every kind.
    pub fn keeps_blocks(self) -> bool {
        match self {
            Self::Anvil | Self::Ganache => true,
            Self::Hardhat => false,
        }
    }

    /// Whether its `pending` nonce counts what is in the pool. Ganache's is its `latest`.
    pub fn counts_pending(self) -> bool {
        match self {
            Self::Anvil | Self::Hardhat => true,
            Self::Ganache => false,
        }
    }

    /// Whether one transaction can be taken out of its pool.
    pub fn drops_transactions(self) -> bool {
        match self {
            Self::Anvil | Self::Hardhat => true,
            Self::Ganache => false,
        }
    }
}

/// When blocks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// For every transaction, at once.
    Instant,
    /// As time passes.
    Every(Duration),
    /// Only by [`EvmNode::mine`].
    Manual,
}

/// How a node starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// When blocks are made.
    pub mining: Mining,
    /// The gas limit of a block.
    pub block_gas_limit: u64,
    /// How many accounts of [`MNEMONIC`] have 10,000 coins.
    pub accounts: u32,
    /// Anvil: remembers the states of only so many blocks, and after a restart only the newest, as
    /// a pruned node does. Each state holds all accounts, so with tens of thousands of them it
    /// cannot keep more. Without a number it keeps all.
    pub states: Option<u32>,
    /// Further words of its command line.
    pub arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mining: Mining::Instant,
            block_gas_limit: 30_000_000,
            accounts: 10,
            states: None,
            arguments: Vec::new(),
        }
    }
}

/// A node of one's own. Dropping it ends it and deletes its data.
#[derive(Debug)]
pub struct EvmNode {
    kind: Kind,
    options: Options,
    port: Port,
    rpc: Rpc,
    home: Home,
    process: Mutex<Option<Child>>,
    mining: Mutex<Mining>,
    snapshots: Mutex<Vec<Snapshot>>,
}

impl EvmNode {
    /// A new chain. The accounts' nonces begin at 0; ganache's at 1, and with some empty blocks.
    pub fn start(kind: Kind, options: Options) -> Self {
        // Nothing of it is wanted afterwards, so it need not leave in order.
        let home = Home::new(kind.name(), "KILL");
        let port = free_port();
        let node = Self {
            rpc: Rpc::at(format!("http://{}", port.address())),
            mining: Mutex::new(options.mining),
            process: Mutex::default(),
            snapshots: Mutex::default(),
            kind,
            options,
            port,
            home,
        };
        node.start_again();
        if kind == Kind::Ganache {
            // It takes signed bytes with nonce 0 for bytes without a nonce: sent twice, they run
            // twice. No chain does that, so nobody here meets it.
            for index in 0..node.options.accounts {
                node.set_nonce(account(index).0, 1);
            }
        }
        node
    }

    /// One that makes a block for every transaction.
    pub fn instant(kind: Kind) -> Self {
        Self::start(kind, Options::default())
    }

    /// One that makes a block only when it is told to.
    pub fn manual(kind: Kind) -> Self {
        let mining = Mining::Manual;
        Self::start(
            kind,
            Options {
                mining,
                ..Options::default()
            },
        )
    }

    /// One that makes blocks as time passes.
    pub fn every(kind: Kind, block_time: Duration) -> Self {
        let mining = Mining::Every(block_time);
        Self::start(
            kind,
            Options {
                mining,
                ..Options::default()
            },
        )
    }

    /// Which make.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it takes JSON-RPC over HTTP.
    pub fn url(&self) -> &str {
        self.rpc.url()
    }

    /// Where it takes JSON-RPC over WebSocket.
    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.port.address())
    }

    /// When it makes blocks at present.
    pub fn mining(&self) -> Mining {
        *lock(&self.mining)
    }

    /// Any call to it.
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// What it printed.
    pub fn log(&self) -> String {
        let log = fs::read(self.home.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The end of it.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// `kill -9`. What it had not written to disk is lost; see [`Self::restart`].
    pub fn kill(&self) {
        let mut child = lock(&self.process).take().expect("the node is stopped");
        self.home.kill_all(child.id());
        child.wait().expect("it was started by us");
    }

    /// Ends it in order, so that it writes its blocks to disk where it can.
    pub fn stop(&self) {
        let mut child = lock(&self.process).take().expect("the node is stopped");
        signal("INT", &[child.id()]);
        crate::until("the node has ended", READY_WITHIN, || {
            child.try_wait().expect("it was started by us")
        });
    }

    /// Starts it on the same port, with the blocks that are on disk, as it was started first.
    pub fn start_again(&self) {
        let mut process = lock(&self.process);
        assert!(process.is_none(), "the node runs");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("log"))
            .expect("the home is ours");
        let errors = log.try_clone().expect("a file handle");
        let child = launch::command(self.kind, &self.options, &self.home, self.port.number())
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.kind.name()));
        let child = process.insert(child);
        crate::until("the node answers", READY_WITHIN, || {
            let ended = child.try_wait().expect("it was started by us");
            let tail = || self.log_tail();
            assert!(ended.is_none(), "the node does not start:\n{}", tail());
            self.rpc.try_call("eth_chainId", json!([])).ok()
        });
        drop(process);
        lock(&self.snapshots).clear(); // no node remembers its own
        *lock(&self.mining) = self.options.mining;
        if (self.kind, self.options.mining) == (Kind::Ganache, Mining::Manual) {
            self.set_mining(Mining::Manual); // no word of its command line says so
        }
    }

    /// Stops and starts it: the pool is lost, and the blocks stay where [`Kind::keeps_blocks`].
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }
}

impl Drop for EvmNode {
    fn drop(&mut self) {
        self.home.close();
        if let Some(mut child) = lock(&self.process).take() {
            // The undertaker has ended it; this only takes its zombie away.
            child.wait().ok();
        }
    }
}

/// A test that panicked while it held the lock is no reason to leave the node running.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
