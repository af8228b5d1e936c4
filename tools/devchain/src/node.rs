//! The in-memory state that requests and the miner share; the chain itself is in the tables.

use std::sync::{Mutex, MutexGuard, PoisonError};

use alloy_consensus::Header;
use alloy_primitives::B256;

use crate::block;
use crate::evm::BlockContext;
use crate::pool::Pool;
use crate::store::Readers;
use crate::transaction::TxRules;

pub(crate) struct Node {
    pub(crate) rules: TxRules,
    pub(crate) readers: Readers,
    pool: Mutex<Pool>,
    /// A base fee that a control call has set; it applies to the next block only.
    base_fee_override: Mutex<Option<u64>>,
}

impl Node {
    pub(crate) fn new(rules: TxRules, readers: Readers, pool: Pool) -> Self {
        Self {
            rules,
            readers,
            pool: Mutex::new(pool),
            base_fee_override: Mutex::new(None),
        }
    }

    /// Hold the lock for as long as a decision about the pool depends on the head: the miner moves the pool to a new
    /// head under the same lock, after it has committed the block.
    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    pub(crate) fn set_base_fee(&self, base_fee: u64) {
        *lock(&self.base_fee_override) = Some(base_fee);
    }

    /// Called after a block with this base fee. A value that was set while the block was built stays.
    pub(crate) fn clear_used_base_fee(&self, base_fee: u64) {
        lock(&self.base_fee_override).take_if(|requested| *requested == base_fee);
    }

    /// The base fee of the block after `head`.
    pub(crate) fn next_base_fee(&self, head: &Header) -> u64 {
        lock(&self.base_fee_override).unwrap_or_else(|| block::next_base_fee(head))
    }

    /// The context of the block after `head`, if it were mined now.
    pub(crate) fn next_context(&self, head: &Header, hash: B256) -> BlockContext {
        let base_fee = self.next_base_fee(head);
        block::next_context(head, hash, self.rules.block_gas_limit, base_fee, unix_now())
    }
}

/// Ignores poisoning: every holder keeps its data consistent at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn unix_now() -> u64 {
    std::time::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs()
}
