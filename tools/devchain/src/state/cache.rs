//! A bounded memory of the state in front of the tables. It belongs to the miner alone, so it
//! needs no lock, and it always equals what the miner's connection would read.

use std::hash::Hash;

use alloy_primitives::{Address, B256, U256, map::HashMap};
use revm::state::Bytecode;
use rusqlite::Connection;

use super::{Account, StateDiff, StateSource};
use crate::error::StoreError;
use crate::limits;
use crate::store::View;

pub(crate) struct StateCache {
    accounts: Generations<Address, Option<Account>>,
    slots: Generations<(Address, U256), U256>,
    code: Generations<B256, Bytecode>,
}

impl StateCache {
    pub(crate) fn new() -> Self {
        Self {
            accounts: Generations::new(limits::ACCOUNT_CACHE_MAX),
            slots: Generations::new(limits::SLOT_CACHE_MAX),
            code: Generations::new(limits::CODE_CACHE_MAX),
        }
    }

    /// Follows a change that is being written to the tables in the current transaction. If that
    /// transaction fails, the caller starts over with a new cache.
    pub(crate) fn apply(&mut self, diff: &StateDiff) {
        for (address, account) in &diff.accounts {
            self.accounts.insert(*address, *account);
        }
        for (key, value) in &diff.slots {
            self.slots.insert(*key, *value);
        }
    }
}

/// The tables as the miner's connection sees them, through its cache.
pub(crate) struct CachedState<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) cache: &'a mut StateCache,
}

impl StateSource for CachedState<'_> {
    fn account(&mut self, address: Address) -> Result<Option<Account>, StoreError> {
        if let Some(account) = self.cache.accounts.get(&address) {
            return Ok(*account);
        }
        let account = View::new(self.connection).account(address)?;
        self.cache.accounts.insert(address, account);
        Ok(account)
    }

    fn slot(&mut self, address: Address, key: U256) -> Result<U256, StoreError> {
        if let Some(value) = self.cache.slots.get(&(address, key)) {
            return Ok(*value);
        }
        let value = View::new(self.connection).slot(address, key)?;
        self.cache.slots.insert((address, key), value);
        Ok(value)
    }

    fn code(&mut self, hash: B256) -> Result<Bytecode, StoreError> {
        if let Some(code) = self.cache.code.get(&hash) {
            return Ok(code.clone());
        }
        let code = View::new(self.connection).code(hash)?;
        self.cache.code.insert(hash, code.clone());
        Ok(code)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, StoreError> {
        View::new(self.connection).block_hash(number)
    }
}

/// A map of two generations: a full young one becomes the old one, and the old one is discarded. Used entries stay,
/// because a hit in the old generation moves to the young one. Similar to LRU, without a list to maintain.
struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V> Generations<K, V> {
    fn new(capacity: usize) -> Self {
        Self {
            young: HashMap::default(),
            old: HashMap::default(),
            capacity,
        }
    }

    fn get(&mut self, key: &K) -> Option<&V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(key.clone(), value);
        }
        self.young.get(key)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key); // otherwise a stale value could be returned later
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_bounded_and_keeps_what_is_used() {
        let mut cache = Generations::new(10);
        cache.insert(0, "kept");
        for key in 1..1000 {
            cache.insert(key, "new");
            assert_eq!(cache.get(&0), Some(&"kept"));
            assert!(cache.young.len() + cache.old.len() <= 20);
        }
        assert_eq!(cache.get(&500), None);
    }

    #[test]
    fn overwritten_value_does_not_come_back() {
        let mut cache = Generations::new(2);
        cache.insert(1, "before");
        cache.insert(2, "x");
        cache.insert(3, "x"); // 1 is in the old generation now
        cache.insert(1, "after");
        assert_eq!(cache.get(&1), Some(&"after"));
    }
}
