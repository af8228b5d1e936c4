//! Real EVM nodes of three independent implementations: anvil, hardhat's EDR and ganache.
//!
//! They differ where it matters: in what their pools accept, in their error messages, and in missing methods. Here
//! each operation has one name; `control` translates it for each kind.

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

use crate::ports::{Port, free_port};
use crate::server_dir::{ServerDir, signal};

/// The chain id of a node whose options name no other.
pub const CHAIN_ID: u64 = 31_337;

/// They answer well before this, even on a busy machine: two of them are JavaScript.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the log that a panic shows.
const LOG_TAIL_LINES: usize = 30;

/// The implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Foundry's.
    Anvil,
    /// Hardhat 2 with its EDR.
    Hardhat,
    /// Truffle's, no longer developed: stands for old nodes.
    Ganache,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Anvil, Self::Hardhat, Self::Ganache];

    pub fn name(self) -> &'static str {
        match self {
            Self::Anvil => "anvil",
            Self::Hardhat => "hardhat",
            Self::Ganache => "ganache",
        }
    }

    /// Whether blocks survive [`EvmNode::restart`]; the pool never does.
    pub fn keeps_blocks(self) -> bool {
        match self {
            Self::Anvil | Self::Ganache => true,
            Self::Hardhat => false,
        }
    }

    /// Whether the `pending` nonce counts the pool. Ganache's equals `latest`.
    pub fn counts_pending(self) -> bool {
        match self {
            Self::Anvil | Self::Hardhat => true,
            Self::Ganache => false,
        }
    }

    /// Whether a single transaction can be removed from the pool.
    pub fn drops_transactions(self) -> bool {
        match self {
            Self::Anvil | Self::Hardhat => true,
            Self::Ganache => false,
        }
    }
}

/// When blocks are mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// One block per transaction, at once.
    Instant,
    /// Periodically.
    Every(Duration),
    /// Only by [`EvmNode::mine`].
    Manual,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// When blocks are mined.
    pub mining: Mining,
    /// The gas limit of a block.
    pub block_gas_limit: u64,
    /// The number of accounts of [`MNEMONIC`] with 10,000 coins each.
    pub accounts: u32,
    /// Anvil: keeps the states of this many blocks, and only the newest after a restart, like a pruned node. Each state
    /// holds all accounts, so tens of thousands of accounts allow only a few. `None` keeps all.
    pub states: Option<u32>,
    /// Other than [`CHAIN_ID`] for a second chain.
    pub chain_id: u64,
    /// The rules of an older chain, such as `berlin`, the last one without a base fee. `None`: the node's newest.
    pub hardfork: Option<&'static str>,
    /// Further command line arguments.
    pub arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mining: Mining::Instant,
            block_gas_limit: 30_000_000,
            accounts: 10,
            states: None,
            chain_id: CHAIN_ID,
            hardfork: None,
            arguments: Vec::new(),
        }
    }
}

/// A private node. Dropping it stops it and deletes its data.
#[derive(Debug)]
pub struct EvmNode {
    kind: Kind,
    options: Options,
    port: Port,
    rpc: Rpc,
    dir: ServerDir,
    process: Mutex<Option<Child>>,
    mining: Mutex<Mining>,
    snapshots: Mutex<Vec<Snapshot>>,
}

impl EvmNode {
    /// A new chain. The accounts' nonces start at 0; ganache's at 1, after some empty blocks.
    pub fn start(kind: Kind, options: Options) -> Self {
        // Its data is deleted afterwards, so a clean stop is not needed.
        let dir = ServerDir::new(kind.name(), "KILL");
        let port = free_port();
        let node = Self {
            rpc: Rpc::at(format!("http://{}", port.address())),
            mining: Mutex::new(options.mining),
            process: Mutex::default(),
            snapshots: Mutex::default(),
            kind,
            options,
            port,
            dir,
        };
        node.start_again();
        if kind == Kind::Ganache {
            // Ganache treats signed bytes with nonce 0 as bytes without a nonce: sent twice, they run twice. No real
            // chain does that, so nonce 0 is consumed here.
            for index in 0..node.options.accounts {
                node.set_nonce(account(index).0, 1);
            }
        }
        node
    }

    /// Mines a block for every transaction.
    pub fn instant(kind: Kind) -> Self {
        Self::start(kind, Options::default())
    }

    /// Mines only on command.
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

    /// Mines periodically.
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

    /// The implementation.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// JSON-RPC over HTTP.
    pub fn url(&self) -> &str {
        self.rpc.url()
    }

    /// JSON-RPC over WebSocket.
    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.port.address())
    }

    pub fn mining(&self) -> Mining {
        *lock(&self.mining)
    }

    /// For calls that have no method here.
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    pub fn log(&self) -> String {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The end of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// `kill -9`. State that is not on disk is lost; see [`Self::restart`].
    pub fn kill(&self) {
        let mut child = lock(&self.process).take().expect("the node is stopped");
        self.dir.kill_all(child.id());
        child.wait().expect("it is a child process");
    }

    /// Stops it cleanly, so that it writes its blocks to disk where it can.
    pub fn stop(&self) {
        let mut child = lock(&self.process).take().expect("the node is stopped");
        signal("INT", &[child.id()]);
        crate::wait_until("the node has ended", READY_TIMEOUT, || {
            child.try_wait().expect("it is a child process")
        });
    }

    /// Starts it with the original options, on the same port and with the blocks on disk.
    pub fn start_again(&self) {
        let mut process = lock(&self.process);
        assert!(process.is_none(), "the node runs");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .expect("the directory was created by the rig");
        let errors = log.try_clone().expect("a file handle");
        let child = launch::command(self.kind, &self.options, &self.dir, self.port.number())
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.kind.name()));
        let child = process.insert(child);
        crate::wait_until("the node answers", READY_TIMEOUT, || {
            let ended = child.try_wait().expect("it is a child process");
            let tail = || self.log_tail();
            assert!(ended.is_none(), "the node does not start:\n{}", tail());
            self.rpc.try_call("eth_chainId", json!([])).ok()
        });
        drop(process);
        lock(&self.snapshots).clear(); // no node keeps snapshots across a restart
        *lock(&self.mining) = self.options.mining;
        if (self.kind, self.options.mining) == (Kind::Ganache, Mining::Manual) {
            self.set_mining(Mining::Manual); // there is no command line option for it
        }
    }

    /// Stops and starts it: the pool is lost, blocks survive where [`Kind::keeps_blocks`].
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }
}

impl Drop for EvmNode {
    fn drop(&mut self) {
        self.dir.close();
        if let Some(mut child) = lock(&self.process).take() {
            // The reaper has ended the process; this only reaps the zombie.
            child.wait().ok();
        }
    }
}

/// After a panic in a test that held the lock, the node must still be stopped.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
