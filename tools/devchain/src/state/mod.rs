//! World state: accounts, contract storage and code, and the change that a block makes to them.

mod cache;
mod overlay;

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, Keccak256, U256};
use revm::state::Bytecode;

pub(super) use self::cache::{CachedState, StateCache};
pub(super) use self::overlay::Overlay;
use super::error::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) nonce: u64,
    pub(super) balance: U256,
    /// `KECCAK256_EMPTY` for an account without code.
    pub(super) code_hash: B256,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            nonce: 0,
            balance: U256::ZERO,
            code_hash: KECCAK256_EMPTY,
        }
    }
}

impl Account {
    pub(super) fn has_code(&self) -> bool {
        self.code_hash != KECCAK256_EMPTY
    }

    /// EIP-161: such an account does not exist.
    pub(super) fn is_empty(&self) -> bool {
        self.nonce == 0 && self.balance.is_zero() && !self.has_code()
    }
}

/// Where execution reads from. Two forms: the plain tables (requests, each on its own snapshot)
/// and the tables behind a cache (the miner, which is the only writer).
pub(super) trait StateSource {
    fn account(&mut self, address: Address) -> Result<Option<Account>, StoreError>;
    fn slot(&mut self, address: Address, key: U256) -> Result<U256, StoreError>;
    fn code(&mut self, hash: B256) -> Result<Bytecode, StoreError>;
    fn block_hash(&mut self, number: u64) -> Result<B256, StoreError>;
}

/// Values to put into the state. Sorted, so that its hash and the order of writes do not depend
/// on a hasher, and so that neighbouring keys are written together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StateDiff {
    /// `None`: the account is deleted.
    pub(super) accounts: BTreeMap<Address, Option<Account>>,
    /// Zero: the slot is deleted.
    pub(super) slots: BTreeMap<(Address, U256), U256>,
    /// Codes seen for the first time. Code is never removed: it is found by hash only.
    pub(super) code: BTreeMap<B256, Bytes>,
}

impl StateDiff {
    /// The state root of the header: a running hash over all changes, not the root of a Merkle trie. It commits to
    /// the whole history like a real one, which is all that a dev chain needs; proofs are not served, and a trie
    /// would double the cost of a tx.
    pub(super) fn root_after(&self, parent_root: B256) -> B256 {
        let mut hasher = Keccak256::new();
        hasher.update(parent_root);
        for (address, account) in &self.accounts {
            let account = account.unwrap_or_default();
            hasher.update(address);
            hasher.update(account.nonce.to_be_bytes());
            hasher.update(account.balance.to_be_bytes::<32>());
            hasher.update(account.code_hash);
        }
        for ((address, key), value) in &self.slots {
            hasher.update(address);
            hasher.update(key.to_be_bytes::<32>());
            hasher.update(value.to_be_bytes::<32>());
        }
        hasher.finalize()
    }
}
