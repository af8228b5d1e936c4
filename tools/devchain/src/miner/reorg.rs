//! A reorg on demand: removes blocks and writes others in their place, in one database transaction, so that a reader
//! sees either the old fork or the new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use alloy_primitives::Address;
use rusqlite::{Connection, TransactionBehavior};

use super::produce::append;
use super::{ControlError, Head, Miner};
use crate::block::{BlockPlan, ExcludedTx, make_block};
use crate::error::StoreError;
use crate::limits::UNDO_BLOCKS;
use crate::state::{Account, CachedState, StateCache};
use crate::store::{View, orphan_block, prune_undo, write_state};
use crate::transaction::SignedTx;

pub(crate) struct ReorgCommand {
    /// How many blocks to remove.
    pub(crate) depth: u64,
    /// The txs of each replacement block, in order. Empty: the chain becomes shorter.
    pub(crate) replacement: Vec<Vec<Arc<SignedTx>>>,
    /// Whether the txs of the removed blocks are dropped; otherwise they return to the pool.
    pub(crate) drop_orphans: bool,
}

/// The new fork while it is being built.
struct Fork {
    head: Head,
    last_id: u64,
    /// Every account that differs from the old head, with its new value.
    accounts: BTreeMap<Address, Option<Account>>,
    /// Txs of the removed blocks, in their old order.
    orphans: Vec<SignedTx>,
}

impl Miner {
    pub(super) fn reorg(&mut self, command: ReorgCommand) -> Result<(), ControlError> {
        let head = self.head.header.number;
        let depth_max = head.min(UNDO_BLOCKS);
        if command.depth == 0 || command.depth > depth_max {
            let text = format!("depth {} is not between 1 and {depth_max}", command.depth);
            return Err(ControlError::Refused(text));
        }
        let forked = self.write_fork(&command);
        if forked.is_err() {
            self.cache = StateCache::new(); // it may have followed what was rolled back
        }
        let fork = forked?;
        let mut pool = self.node.pool();
        pool.set_accounts(&fork.accounts);
        let returned_txs = if command.drop_orphans {
            Vec::new()
        } else {
            fork.orphans
        };
        for tx in returned_txs {
            let hash = tx.hash;
            let view = View::new(&self.connection);
            if let Err(refusal) = pool.add(tx, |address| view.account(address))? {
                // Usually because it is in the new fork as well.
                tracing::debug!(%hash, %refusal, "orphaned tx not returned to the pool");
            }
        }
        drop(pool);
        self.head = fork.head;
        self.last_id = fork.last_id;
        self.last_block_at = Instant::now();
        Ok(())
    }

    fn write_fork(&mut self, command: &ReorgCommand) -> Result<Fork, ControlError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut fork = Fork {
            head: self.head.clone(),
            last_id: self.last_id,
            accounts: BTreeMap::new(),
            orphans: Vec::new(),
        };
        for _ in 0..command.depth {
            fork.remove_head(&transaction, &mut self.cache)?;
        }
        for txs in &command.replacement {
            let plan = BlockPlan {
                id: fork.last_id + 1,
                chain_id: self.node.rules.chain_id,
                parent: &fork.head.header,
                parent_hash: fork.head.hash,
                context: self.node.next_context(&fork.head.header, fork.head.hash),
            };
            let state = CachedState {
                connection: &transaction,
                cache: &mut self.cache,
            };
            let (block, excluded) = make_block(&plan, txs, state)?;
            if let Some(ExcludedTx { tx, reason }) = excluded.first() {
                let (number, hash) = (block.header.number, tx.hash);
                let text = format!("tx {hash} cannot be in the new block {number}: {reason}");
                return Err(ControlError::Refused(text));
            }
            append(&transaction, &mut self.cache, &block)?;
            self.node
                .clear_used_base_fee(block.header.base_fee_per_gas.unwrap_or_default());
            fork.last_id = block.id;
            fork.accounts.extend(&block.changes.accounts);
            fork.head = Head {
                hash: block.hash,
                header: block.header,
            };
        }
        prune_undo(&transaction, fork.head.header.number)?;
        transaction.commit()?;
        Ok(fork)
    }
}

impl Fork {
    fn remove_head(
        &mut self,
        connection: &Connection,
        cache: &mut StateCache,
    ) -> Result<(), ControlError> {
        let view = View::new(connection);
        let number = self.head.header.number;
        let Some(undo) = view.undo(number)? else {
            let text = format!("block {number} is too deep to be removed");
            return Err(ControlError::Refused(text));
        };
        write_state(connection, &undo)?;
        cache.apply(&undo);
        self.accounts.extend(&undo.accounts);
        let missing_block = StoreError::damaged("a canonical block is missing");
        let Some(block) = view.block_by_hash(self.head.hash)? else {
            return Err(missing_block.into());
        };
        let mut txs = Vec::new();
        for row in view.txs(&block)? {
            let tx = SignedTx::from_stored(&row.raw, row.sender);
            txs.push(tx.ok().ok_or(StoreError::damaged("a stored tx"))?);
        }
        txs.append(&mut self.orphans);
        self.orphans = txs;
        orphan_block(connection, number, self.head.hash)?;
        let parent = view.block_by_hash(self.head.header.parent_hash)?;
        let Some(parent) = parent else {
            return Err(missing_block.into());
        };
        self.head = Head {
            hash: parent.hash,
            header: parent.header,
        };
        Ok(())
    }
}
