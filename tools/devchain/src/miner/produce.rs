//! Writes the next block, and applies control calls that change an account.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use alloy_primitives::Address;
use rusqlite::{Connection, TransactionBehavior};

use super::{ControlError, Head, Miner};
use crate::block::{BlockPlan, ExcludedTx, SealedBlock, make_block};
use crate::error::StoreError;
use crate::evm::BlockContext;
use crate::state::{Account, CachedState, StateCache, StateDiff, StateSource};
use crate::store::{amend_head_undo, insert_block, prune_undo, write_state};
use crate::transaction::SignedTx;

impl Miner {
    /// Mines the executable txs into one block. `false` if there are none.
    pub(super) fn mine(&mut self, even_empty: bool) -> Result<bool, StoreError> {
        // Decided once: the txs are selected and executed under the same base fee.
        let context = self.node.next_context(&self.head.header, self.head.hash);
        let txs = self.node.pool().select(context.base_fee, context.gas_limit);
        if txs.is_empty() && !even_empty {
            return Ok(false);
        }
        let written = self.write_block(context, &txs, even_empty);
        if written.is_err() {
            // The cache may have followed a write that was rolled back.
            self.cache = StateCache::new();
        }
        let (block, excluded) = written?;
        self.publish(block, &excluded);
        Ok(true)
    }

    fn write_block(
        &mut self,
        context: BlockContext,
        txs: &[Arc<SignedTx>],
        even_empty: bool,
    ) -> Result<(Option<SealedBlock>, Vec<ExcludedTx>), StoreError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let plan = BlockPlan {
            id: self.last_id + 1,
            chain_id: self.node.rules.chain_id,
            parent: &self.head.header,
            parent_hash: self.head.hash,
            context,
        };
        let state = CachedState {
            connection: &transaction,
            cache: &mut self.cache,
        };
        let (block, excluded) = make_block(&plan, txs, state)?;
        if block.txs.is_empty() && !even_empty {
            return Ok((None, excluded));
        }
        append(&transaction, &mut self.cache, &block)?;
        prune_undo(&transaction, block.header.number)?;
        transaction.commit()?; // from here on requests see the block
        Ok((Some(block), excluded))
    }

    fn publish(&mut self, block: Option<SealedBlock>, excluded: &[ExcludedTx]) {
        let mut pool = self.node.pool();
        for ExcludedTx { tx, reason } in excluded {
            tracing::info!(hash = %tx.hash, reason, "tx dropped: it cannot be in a block");
            pool.remove(tx.hash);
        }
        let Some(block) = block else { return };
        pool.set_accounts(&block.changes.accounts);
        drop(pool);
        tracing::debug!(number = block.header.number, txs = block.txs.len(), "block");
        self.node
            .clear_used_base_fee(block.header.base_fee_per_gas.unwrap_or_default());
        self.last_id = block.id;
        self.head = Head {
            hash: block.hash,
            header: block.header,
        };
        self.last_block_at = Instant::now();
    }

    /// Changes an account between blocks.
    pub(super) fn change_account(
        &mut self,
        address: Address,
        change: impl FnOnce(&mut Account),
    ) -> Result<(), ControlError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut state = CachedState {
            connection: &transaction,
            cache: &mut self.cache,
        };
        let before = state.account(address)?;
        let mut account = before.unwrap_or_default();
        change(&mut account);
        let only = |account| StateDiff {
            accounts: BTreeMap::from([(address, account)]),
            ..StateDiff::default()
        };
        let changes = only((!account.is_empty()).then_some(account));
        amend_head_undo(&transaction, self.head.header.number, &only(before))?;
        write_state(&transaction, &changes)?;
        transaction.commit()?;
        self.cache.apply(&changes);
        self.node.pool().set_accounts(&changes.accounts);
        Ok(())
    }
}

/// Writes a block, and lets the cache follow.
pub(super) fn append(
    connection: &Connection,
    cache: &mut StateCache,
    block: &SealedBlock,
) -> Result<(), StoreError> {
    insert_block(connection, block)?;
    cache.apply(&block.changes);
    Ok(())
}
