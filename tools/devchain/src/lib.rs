//! The dev chain: an EVM node in one process, for development and tests. revm executes; this crate is the rest of a
//! node: a pool with geth's rules, a miner, a durable chain on disk and JSON-RPC over HTTP. The product uses it
//! through JSON-RPC only, like any other node.
//!
//! ```text
//! HTTP ─> rpc ──(lock)──> pool <──(lock)── miner: select, execute (evm), write one SQLite
//!          │                                 │    transaction per block, then move the pool on
//!          └──── read, one snapshot ─────> store
//! ```
//!
//! Invariant: a block is on disk before any answer shows it. The pool may be lost.
//! Invariant: the miner's thread is the only writer.
//! Invariant: memory does not grow with the chain; only bounded caches and the bounded pool.
//!
//! Control calls have anvil's names (`rpc/control.rs`). One differs on purpose: after `anvil_reorg` the txs of the
//! replaced blocks return to the pool, as on a real chain, unless its third argument drops them.
//!
//! Simplifications, on purpose: only the state of the head can be queried; the state root is a running hash, not a
//! trie; there are no blob and set-code txs, no uncles, no peers, no subscriptions; `safe` and `finalized` are fixed
//! depths.

mod accounts;
mod block;
mod error;
mod evm;
mod limits;
mod miner;
mod node;
mod pool;
mod rpc;
mod state;
mod store;
mod transaction;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use rusqlite::Connection;
use tokio::net::TcpListener;

pub use self::accounts::{dev_account, dev_accounts};
pub use self::error::{DevChainError, StoreError};
use self::evm::BlockContext;
pub use self::miner::Mining;
use self::miner::{Miner, MinerHandle};
use self::node::Node;
use self::pool::Pool;
pub use self::rpc::DevChainServer;
use self::state::{Account, StateDiff};
use self::store::{Folder, Readers};
use self::transaction::TxRules;

/// The conventional chain id of dev chains.
pub const DEV_CHAIN_ID: u64 = 31337;

const GENESIS_BASE_FEE: u64 = 1_000_000_000;
const DEV_ACCOUNTS: u32 = 10;
const DEV_ACCOUNT_ETHER: u64 = 10_000;
const WEI_PER_ETHER: u64 = 1_000_000_000_000_000_000;

#[derive(Clone, Debug)]
pub struct DevChainConfig {
    /// The folder of the chain. `None`: a private temporary folder that is deleted with the chain; writes to it do
    /// not wait for the disk.
    pub dir: Option<PathBuf>,
    pub chain_id: u64,
    pub mining: Mining,
    /// With instant mining: an empty block after this time without one, so that confirmations progress without new
    /// txs.
    pub heartbeat: Option<Duration>,
    /// Balances of a new chain; a folder that exists keeps its own.
    pub genesis_accounts: Vec<(Address, U256)>,
    /// Large by default, so that thousands of transfers fit into one block.
    pub block_gas_limit: u64,
    /// Most txs in the pool; more get "txpool is full".
    pub pool_txs_max: usize,
    /// Most txs of one sender in the pool; more get "txpool is full".
    pub account_slots: Option<usize>,
}

impl DevChainConfig {
    /// The defaults: instant mining, a block at least every 12 s, ten funded accounts.
    pub fn new(dir: Option<PathBuf>) -> Self {
        let balance = U256::from(DEV_ACCOUNT_ETHER) * U256::from(WEI_PER_ETHER);
        let accounts = dev_accounts(DEV_ACCOUNTS);
        Self {
            dir,
            chain_id: DEV_CHAIN_ID,
            mining: Mining::Instant,
            heartbeat: Some(Duration::from_secs(12)),
            genesis_accounts: accounts
                .iter()
                .map(|(address, _)| (*address, balance))
                .collect(),
            block_gas_limit: 1_000_000_000,
            pool_txs_max: 100_000,
            account_slots: None,
        }
    }

    fn check(&self) -> Result<(), DevChainError> {
        let problem = if i64::try_from(self.chain_id).is_err() {
            "the chain id must be below 2^63"
        } else if !(21_000..1 << 53).contains(&self.block_gas_limit) {
            "the block gas limit must be at least 21000 and below 2^53"
        } else if self.mining == Mining::Interval(Duration::ZERO) {
            "the mining interval must not be zero; use instant mining"
        } else if self.heartbeat == Some(Duration::ZERO) {
            "the heartbeat must not be zero"
        } else {
            return Ok(());
        };
        Err(DevChainError::Config(problem))
    }
}

/// A running dev chain. Clones share the chain; when the last clone and the last server are
/// dropped, the miner stops and the folder is unlocked.
#[derive(Clone)]
pub struct DevChain {
    inner: Arc<Inner>,
}

/// Field order matters: the miner stops before `node` unlocks the folder.
struct Inner {
    miner: MinerHandle,
    filters: Mutex<rpc::Filters>,
    node: Arc<Node>,
}

impl DevChain {
    /// Opens the folder, or creates a new chain in it, and starts mining. Blocks on disk I/O.
    pub fn open(config: DevChainConfig) -> Result<Self, DevChainError> {
        config.check()?;
        let folder = Folder::open(config.dir.clone())?;
        let (mut connection, is_new) = store::open_writer(&folder, config.chain_id)?;
        if is_new {
            write_genesis(&mut connection, &config)?;
        }
        let rules = TxRules {
            chain_id: config.chain_id,
            block_gas_limit: config.block_gas_limit,
            tip_min: 1,
        };
        let pool = Pool::new(config.pool_txs_max, config.account_slots);
        let node = Arc::new(Node::new(rules, Readers::new(folder), pool));
        let miner = Miner::spawn(node.clone(), connection, config.mining, config.heartbeat)?;
        let filters = Mutex::default();
        Ok(Self {
            inner: Arc::new(Inner {
                miner,
                filters,
                node,
            }),
        })
    }

    /// Serves JSON-RPC on `listener` until the returned handle is shut down or dropped. Must be
    /// called within a tokio runtime.
    pub fn serve(&self, listener: TcpListener) -> std::io::Result<DevChainServer> {
        rpc::serve(self.inner.clone(), listener)
    }
}

impl std::fmt::Debug for DevChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules = &self.inner.node.rules;
        f.debug_struct("DevChain")
            .field("rules", rules)
            .finish_non_exhaustive()
    }
}

/// Writes the tables and the genesis block, in one transaction.
fn write_genesis(connection: &mut Connection, config: &DevChainConfig) -> Result<(), StoreError> {
    let account = |balance| Account {
        balance,
        ..Account::default()
    };
    let funded = config.genesis_accounts.iter();
    let changes = StateDiff {
        accounts: funded
            .map(|(address, wei)| (*address, Some(account(*wei))))
            .collect(),
        ..StateDiff::default()
    };
    let context = BlockContext {
        number: 0,
        timestamp: node::unix_now(),
        gas_limit: config.block_gas_limit,
        base_fee: GENESIS_BASE_FEE,
        randao: B256::ZERO,
    };
    let transaction = connection.transaction()?;
    store::create_tables(&transaction, config.chain_id)?;
    store::insert_genesis(&transaction, &block::genesis(&context, changes))?;
    transaction.commit()?;
    Ok(())
}
