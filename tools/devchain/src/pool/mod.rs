//! The mempool, with geth's rules and geth's error texts.
//!
//! Nonce gaps are allowed: such txs are queued and become executable when the gap closes. A tx below the base fee is
//! accepted and waits. Unlike geth's, a full pool refuses a tx instead of dropping another sender's, nothing expires,
//! and nothing survives a restart.

mod refusal;
mod select;
mod sender;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, map::HashMap};

pub(super) use self::refusal::Refusal;
use self::sender::{Pooled, Sender};
use super::error::StoreError;
use super::limits;
use super::state::Account;
use super::transaction::SignedTx;

pub(super) struct Pool {
    tx_max: usize,
    /// Most txs of one sender.
    account_slots: Option<usize>,
    by_hash: HashMap<B256, (Address, u64)>,
    senders: HashMap<Address, Sender>,
    /// Senders with an executable tx: selection reads no others.
    ready: BTreeSet<Address>,
    bytes: usize,
    arrivals: u64,
}

/// Numbers for `txpool_status`.
pub(super) struct PoolStatus {
    pub(super) pending: usize,
    pub(super) queued: usize,
}

impl Pool {
    pub(super) fn new(tx_max: usize, account_slots: Option<usize>) -> Self {
        Self {
            tx_max,
            account_slots,
            by_hash: HashMap::default(),
            senders: HashMap::default(),
            ready: BTreeSet::new(),
            bytes: 0,
            arrivals: 0,
        }
    }

    /// Adds a tx, or returns why not. `account` reads the sender's account at the head; the pool must be locked from
    /// that read on, so that no block can be committed in between.
    pub(super) fn add(
        &mut self,
        tx: SignedTx,
        account: impl FnOnce(Address) -> Result<Option<Account>, StoreError>,
    ) -> Result<Result<(), Refusal>, StoreError> {
        if self.contains(tx.hash) {
            return Ok(Err(Refusal::AlreadyKnown));
        }
        let cost = tx.cost();
        if let Some(sender) = self.senders.get(&tx.sender) {
            if let Err(refusal) = self.check(sender, &tx, cost) {
                return Ok(Err(refusal));
            }
        } else {
            let account = account(tx.sender)?.unwrap_or_default();
            let sender = Sender::new(account);
            let checked = if account.has_code() {
                Err(Refusal::SenderHasCode)
            } else {
                self.check(&sender, &tx, cost)
            };
            if let Err(refusal) = checked {
                return Ok(Err(refusal));
            }
            self.senders.insert(tx.sender, sender);
        }
        self.insert(Arc::new(tx), cost);
        Ok(Ok(()))
    }

    fn check(&self, sender: &Sender, tx: &SignedTx, cost: U256) -> Result<(), Refusal> {
        sender.check(tx, cost)?;
        // A replacement needs no additional room.
        let is_new = sender.get(tx.nonce()).is_none();
        let has_room = self.by_hash.len() < self.tx_max
            && self.bytes + tx.size <= limits::POOL_BYTES_MAX
            && self.account_slots.is_none_or(|slots| sender.len() < slots);
        if is_new && !has_room {
            Err(Refusal::Full)
        } else {
            Ok(())
        }
    }

    fn insert(&mut self, tx: Arc<SignedTx>, cost: U256) {
        self.arrivals += 1;
        self.bytes += tx.size;
        self.by_hash.insert(tx.hash, (tx.sender, tx.nonce()));
        let address = tx.sender;
        let sender = self
            .senders
            .get_mut(&address)
            .expect("checked against this sender");
        let replaced = sender.insert(Pooled {
            tx,
            cost,
            arrival: self.arrivals,
        });
        if let Some(old) = replaced {
            self.remove_from_indexes(&old);
        }
        self.refresh(address);
    }

    pub(super) fn contains(&self, hash: B256) -> bool {
        self.by_hash.contains_key(&hash)
    }

    pub(super) fn get(&self, hash: B256) -> Option<Arc<SignedTx>> {
        let (address, nonce) = self.by_hash.get(&hash)?;
        self.senders.get(address)?.get(*nonce).cloned()
    }

    /// The nonce after the sender's executable txs; `None` when the pool has none of its txs.
    pub(super) fn next_nonce(&self, address: Address) -> Option<u64> {
        self.senders.get(&address).map(Sender::next_nonce)
    }

    pub(super) fn remove(&mut self, hash: B256) -> Option<Arc<SignedTx>> {
        let (address, nonce) = *self.by_hash.get(&hash)?;
        let removed = self.senders.get_mut(&address)?.remove(nonce)?;
        self.remove_from_indexes(&removed);
        self.refresh(address);
        Some(removed)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.tx_max, self.account_slots);
    }

    /// Follows the accounts that a new head has changed.
    pub(super) fn set_accounts(&mut self, changed: &BTreeMap<Address, Option<Account>>) {
        for (address, account) in changed {
            let Some(sender) = self.senders.get_mut(address) else {
                continue;
            };
            for removed in sender.set_account(account.unwrap_or_default()) {
                self.remove_from_indexes(&removed);
            }
            self.refresh(*address);
        }
    }

    pub(super) fn status(&self) -> PoolStatus {
        let pending = self.ready_senders().map(Sender::executable_len).sum();
        PoolStatus {
            pending,
            queued: self.by_hash.len() - pending,
        }
    }

    /// Up to `limit` txs with their place: `true` for executable ones.
    pub(super) fn content(&self, limit: usize) -> Vec<(bool, Arc<SignedTx>)> {
        let senders: BTreeMap<&Address, &Sender> = self.senders.iter().collect();
        let entries = senders.values().flat_map(|sender| {
            let executable = sender.executable().map(|pooled| (true, pooled.tx.clone()));
            executable.chain(sender.queued().map(|pooled| (false, pooled.tx.clone())))
        });
        entries.take(limit).collect()
    }

    fn ready_senders(&self) -> impl Iterator<Item = &Sender> {
        self.ready
            .iter()
            .filter_map(|address| self.senders.get(address))
    }

    /// For a tx that was removed from its sender.
    fn remove_from_indexes(&mut self, tx: &SignedTx) {
        self.by_hash.remove(&tx.hash);
        self.bytes -= tx.size;
    }

    fn refresh(&mut self, address: Address) {
        let sender = self.senders.get(&address);
        if sender.is_some_and(|sender| sender.executable_len() > 0) {
            self.ready.insert(address);
        } else {
            self.ready.remove(&address);
        }
        if sender.is_some_and(Sender::is_empty) {
            self.senders.remove(&address);
        }
    }
}
