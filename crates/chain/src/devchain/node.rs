//! What requests and the miner share. The tables carry the chain; this carries the rest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use alloy_consensus::Header;
use alloy_primitives::B256;

use super::block;
use super::evm::BlockContext;
use super::pool::Pool;
use super::store::Readers;
use super::transaction::TxRules;

pub(super) struct Node {
    pub(super) rules: TxRules,
    pub(super) readers: Readers,
    pool: Mutex<Pool>,
    /// A base fee that a control call has asked for; the next block uses it up.
    base_fee_override: Mutex<Option<u64>>,
}

impl Node {
    pub(super) fn new(rules: TxRules, readers: Readers, pool: Pool) -> Self {
        Self {
            rules,
            readers,
            pool: Mutex::new(pool),
            base_fee_override: Mutex::new(None),
        }
    }

    /// Held for as long as a decision about the pool depends on the head: the miner moves the
    /// pool to a new head under the same lock, after it has committed the block.
    pub(super) fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    pub(super) fn set_base_fee(&self, base_fee: u64) {
        *lock(&self.base_fee_override) = Some(base_fee);
    }

    /// A block with this base fee was made. An order that came while it was being made stays.
    pub(super) fn base_fee_used(&self, base_fee: u64) {
        lock(&self.base_fee_override).take_if(|ordered| *ordered == base_fee);
    }

    /// The base fee of the block after `head`.
    pub(super) fn next_base_fee(&self, head: &Header) -> u64 {
        lock(&self.base_fee_override).unwrap_or_else(|| block::next_base_fee(head))
    }

    /// The block after `head` if it were made now.
    pub(super) fn next_context(&self, head: &Header, hash: B256) -> BlockContext {
        let base_fee = self.next_base_fee(head);
        block::next_context(head, hash, self.rules.block_gas_limit, base_fee, unix_now())
    }
}

/// A poisoned lock is taken over: each holder leaves its data whole at every step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn unix_now() -> u64 {
    std::time::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs()
}
