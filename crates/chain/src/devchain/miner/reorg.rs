//! Taking blocks back and putting others in their place: what a real chain does now and then, on
//! demand. One transaction, so that a reader sees the old fork or the new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use alloy_primitives::Address;
use rusqlite::{Connection, TransactionBehavior};

use super::produce::append;
use super::{ControlError, Head, Miner};
use crate::devchain::block::{BlockPlan, Unfit, make_block};
use crate::devchain::error::StoreError;
use crate::devchain::limits::UNDO_BLOCKS;
use crate::devchain::state::{Account, CachedState, StateCache};
use crate::devchain::store::{View, orphan_block, prune_undo, write_state};
use crate::devchain::transaction::SignedTx;

pub(in crate::devchain) struct ReorgOrder {
    /// How many blocks to take back.
    pub(in crate::devchain) depth: u64,
    /// The txs of each replacement block, in order. Empty: the chain just gets shorter.
    pub(in crate::devchain) replacement: Vec<Vec<Arc<SignedTx>>>,
    /// Whether the txs of the blocks taken back are lost; otherwise they return to the pool.
    pub(in crate::devchain) drop_orphans: bool,
}

/// The state of affairs while blocks are taken back and made.
struct Fork {
    head: Head,
    last_id: u64,
    /// Every account that differs from the old head, as it is now.
    accounts: BTreeMap<Address, Option<Account>>,
    /// Txs of the blocks taken back, in their old order.
    orphans: Vec<SignedTx>,
}

impl Miner {
    pub(super) fn reorg(&mut self, order: ReorgOrder) -> Result<(), ControlError> {
        let head = self.head.header.number;
        let depth_max = head.min(UNDO_BLOCKS);
        if order.depth == 0 || order.depth > depth_max {
            let text = format!("depth {} is not between 1 and {depth_max}", order.depth);
            return Err(ControlError::Refused(text));
        }
        let forked = self.write_fork(&order);
        if forked.is_err() {
            self.cache = StateCache::new(); // it may have followed what was rolled back
        }
        let fork = forked?;
        let mut pool = self.node.pool();
        pool.set_accounts(&fork.accounts);
        let returning = if order.drop_orphans {
            Vec::new()
        } else {
            fork.orphans
        };
        for tx in returning {
            let hash = tx.hash;
            let view = View::new(&self.connection);
            if let Err(refusal) = pool.add(tx, |address| view.account(address))? {
                // Mostly: it is in the new fork too.
                tracing::debug!(%hash, %refusal, "orphaned tx not returned to the pool");
            }
        }
        drop(pool);
        self.head = fork.head;
        self.last_id = fork.last_id;
        self.last_block_at = Instant::now();
        Ok(())
    }

    fn write_fork(&mut self, order: &ReorgOrder) -> Result<Fork, ControlError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut fork = Fork {
            head: self.head.clone(),
            last_id: self.last_id,
            accounts: BTreeMap::new(),
            orphans: Vec::new(),
        };
        for _ in 0..order.depth {
            fork.take_back_head(&transaction, &mut self.cache)?;
        }
        for txs in &order.replacement {
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
            let (block, unfit) = make_block(&plan, txs, state)?;
            if let Some(Unfit { tx, reason }) = unfit.first() {
                let (number, hash) = (block.header.number, tx.hash);
                let text = format!("tx {hash} cannot be in the new block {number}: {reason}");
                return Err(ControlError::Refused(text));
            }
            append(&transaction, &mut self.cache, &block)?;
            self.node
                .base_fee_used(block.header.base_fee_per_gas.unwrap_or_default());
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
    fn take_back_head(
        &mut self,
        connection: &Connection,
        cache: &mut StateCache,
    ) -> Result<(), ControlError> {
        let view = View::new(connection);
        let number = self.head.header.number;
        let Some(undo) = view.undo(number)? else {
            let text = format!("block {number} is too deep to be taken back");
            return Err(ControlError::Refused(text));
        };
        write_state(connection, &undo)?;
        cache.apply(&undo);
        self.accounts.extend(&undo.accounts);
        let gone = StoreError::damaged("a canonical block is missing");
        let Some(block) = view.block_by_hash(self.head.hash)? else {
            return Err(gone.into());
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
            return Err(gone.into());
        };
        self.head = Head {
            hash: parent.hash,
            header: parent.header,
        };
        Ok(())
    }
}
