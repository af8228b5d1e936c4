//! All limits of the dev chain. A node that tests run against must not fail itself, so nothing grows with what a
//! caller sends or with the chain's age.

use std::time::Duration;

/// Largest HTTP body; a full batch of largest txs is refused before it is read.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;
/// Calls in one JSON-RPC batch.
pub(crate) const BATCH_MAX: usize = 1000;
/// Once a batch's answers are this long, its remaining calls are refused (geth does the same).
pub(crate) const BATCH_ANSWER_BYTES_MAX: usize = 64 << 20;
/// Concurrent requests; the others wait in order of arrival. Each one holds a blocking thread and at most one read
/// connection.
pub(crate) const REQUESTS_MAX: usize = 8;
/// How long a stopping server waits for requests that are already running.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Live `eth_newFilter` / `eth_newBlockFilter` registrations.
pub(crate) const FILTERS_MAX: usize = 1000;
/// A filter that is not polled for this long is removed (as in geth).
pub(crate) const FILTER_IDLE: Duration = Duration::from_secs(300);
/// Addresses, or alternatives for one topic, in a filter.
pub(crate) const FILTER_TERMS_MAX: usize = 1000;
/// Logs in one answer.
pub(crate) const LOGS_MAX: usize = 10_000;
/// Blocks that one log query or filter poll may read.
pub(crate) const LOG_BLOCKS_MAX: u64 = 10_000;

/// Blocks in one `eth_feeHistory` answer, and percentiles per block.
pub(crate) const FEE_HISTORY_BLOCKS_MAX: u64 = 1024;
pub(crate) const FEE_PERCENTILES_MAX: usize = 100;
/// Txs shown by `txpool_content` and by the `pending` block.
pub(crate) const POOL_SHOWN_MAX: usize = 5000;

/// Blocks of one `anvil_mine`.
pub(crate) const MINE_BLOCKS_MAX: u64 = 1000;
/// Depth to which the chain can be rolled back: undo records older than this are deleted.
pub(crate) const UNDO_BLOCKS: u64 = 256;
/// Control calls waiting for the miner.
pub(crate) const COMMANDS_MAX: usize = 64;
/// The miner's retry interval after a failed write (a full disk).
pub(crate) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Bits of a stored tx id that number the tx inside its block; see `store`.
pub(crate) const TX_INDEX_BITS: u32 = 20;
/// Txs in one block. Bounds the memory of one block; the gas limit normally binds first.
pub(crate) const BLOCK_TXS_MAX: usize = 50_000;
const _: () = assert!(
    BLOCK_TXS_MAX < 1 << TX_INDEX_BITS,
    "a tx index must fit into its id"
);
/// Encoded txs in one block; below the 10 MiB of EIP-7934.
pub(crate) const BLOCK_BYTES_MAX: usize = 8 << 20;
/// geth's limit for one tx.
pub(crate) const TX_BYTES_MAX: usize = 128 << 10;
/// Encoded txs in the whole pool; the number of txs is bounded by the configuration.
pub(crate) const POOL_BYTES_MAX: usize = 256 << 20;

/// The highest base fee in wei: more than an ether per gas. Above it the arithmetic of EIP-1559 could overflow.
pub(crate) const BASE_FEE_MAX: u64 = 1 << 60;
/// Gas of one tx (EIP-7825) and of one `eth_call` (geth's default RPC cap).
pub(crate) const TX_GAS_MAX: u64 = 16_777_216;
pub(crate) const CALL_GAS_MAX: u64 = 50_000_000;

/// Entries the miner's cache in front of the state tables may hold, per generation.
pub(crate) const ACCOUNT_CACHE_MAX: usize = 20_000;
pub(crate) const SLOT_CACHE_MAX: usize = 20_000;
/// Contract codes are up to 24 KiB each.
pub(crate) const CODE_CACHE_MAX: usize = 128;
